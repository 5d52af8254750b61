// The scalar decoders of kernels/common/exl3.h, and the slow reference that other tests use,
// against golden numbers (tests/golden/exl3).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/common/exl3.h"
#include "tests/support/exl3_reference.h"

using namespace atlas;
using kernels::Exl3Codebook;

namespace {

const nlohmann::json& golden() {
  static const nlohmann::json vectors = [] {
    std::ifstream file(ATLAS_SOURCE_DIR "/tests/golden/exl3/vectors.json");
    return nlohmann::json::parse(file);
  }();
  return vectors;
}

std::vector<uint32_t> hex_words(const std::string& text) {
  std::vector<uint32_t> words;
  std::istringstream in(text);
  for (uint32_t word; in >> std::hex >> word;) words.push_back(word);
  return words;
}

std::vector<uint8_t> hex_bytes(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Exl3Codebook codebook_of(const std::string& name) {
  if (name == "mul1") return Exl3Codebook::kMul1;
  return name == "mcg" ? Exl3Codebook::kMcg : Exl3Codebook::k3Inst;
}

}  // namespace

TEST_SUITE_BEGIN("plugins/quant_exl3");

TEST_CASE("vectors: all states of the codebooks have the checksums of the golden tables") {
  for (const auto& [name, checksum] : golden()["codebooks"].items()) {
    CAPTURE(name);
    uint64_t hash = 0xcbf29ce484222325ull;
    for (uint32_t state = 0; state < 65536; ++state) {
      const float value = kernels::exl3_value(codebook_of(name), state);
      REQUIRE(value == test::slow_value(name, state));
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      // All values are 0 or normal float16 numbers.
      const uint32_t size = bits & 0x7fffffffu;
      const uint32_t half = (bits >> 16 & 0x8000u) | (size == 0 ? 0 : (size >> 13) - (112u << 10));
      for (const uint32_t byte : {half & 255u, half >> 8}) {
        hash = (hash ^ byte) * 0x100000001b3ull;
      }
    }
    CHECK(hash == std::stoull(checksum.get<std::string>(), nullptr, 16));
  }
}

TEST_CASE("vectors: tiles of every number of bits decode, by the decoder and by the reference") {
  std::vector<double> seen;
  for (const nlohmann::json& tile : golden()["tiles"]) {
    const double bits = tile["bits"].get<double>();
    CAPTURE(bits);
    seen.push_back(bits);
    const std::vector<uint8_t> bytes = hex_bytes(tile["bytes"].get<std::string>());
    REQUIRE(bytes.size() == static_cast<size_t>(32 * bits));
    std::vector<uint32_t> words(bytes.size() / 4);
    std::vector<uint16_t> halves(bytes.size() / 2);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    std::memcpy(halves.data(), bytes.data(), bytes.size());
    const test::SlowTile slow(halves.data(), bits);
    const std::vector<uint32_t> states = hex_words(tile["states"].get<std::string>());
    REQUIRE(states.size() == 256);
    for (uint32_t t = 0; t < 256; ++t) {
      REQUIRE(kernels::exl3_state(words.data(), static_cast<uint32_t>(2 * bits), t) == states[t]);
      REQUIRE(slow.states[t] == states[t]);
    }
    for (const auto& [name, text] : tile["values"].items()) {
      CAPTURE(name);
      const std::vector<uint32_t> values = hex_words(text.get<std::string>());
      REQUIRE(values.size() == 256);
      for (uint32_t t = 0; t < 256; ++t) {
        const double value = test::half_value(
            static_cast<uint16_t>(values[16 * kernels::exl3_row(t) + kernels::exl3_column(t)]));
        REQUIRE(kernels::exl3_value(codebook_of(name), states[t]) == value);
      }
    }
  }
  for (const double bits : {1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0}) {
    CHECK(std::count(seen.begin(), seen.end(), bits) != 0);
  }
}

TEST_CASE("vectors: a tile's places are a permutation, the reference's own") {
  std::vector<int> seen(256);
  for (uint32_t t = 0; t < 256; ++t) {
    REQUIRE(static_cast<int>(kernels::exl3_row(t)) == test::tile_input(static_cast<int>(t)));
    REQUIRE(static_cast<int>(kernels::exl3_column(t)) == test::tile_output(static_cast<int>(t)));
    ++seen[16 * kernels::exl3_row(t) + kernels::exl3_column(t)];
  }
  CHECK(std::count(seen.begin(), seen.end(), 1) == 256);
}

TEST_CASE("vectors: rows of n-gram tables") {
  for (const nlohmann::json& row : golden()["rows"]) {
    const auto bits = row["bits"].get<uint32_t>();
    const std::vector<uint32_t> words = hex_words(row["words"].get<std::string>());
    REQUIRE(words.size() == 1 + 10 * bits);
    std::vector<uint8_t> bytes;
    for (const uint32_t word : words) {
      bytes.push_back(static_cast<uint8_t>(word));
      bytes.push_back(static_cast<uint8_t>(word >> 8));
    }
    REQUIRE(bytes.size() == kernels::exl3_row_bytes(bits));
    float out[kernels::kExl3RowElements];
    kernels::exl3_decode_row(bytes.data(), bits, out);
    const std::vector<uint32_t> values = hex_words(row["values"].get<std::string>());
    REQUIRE(values.size() == kernels::kExl3RowElements);
    const double scale = test::half_value(static_cast<uint16_t>(words[0]));
    for (size_t i = 0; i < values.size(); ++i) {
      REQUIRE(out[i] == test::half_value(static_cast<uint16_t>(values[i])) * scale);
    }
  }
}

TEST_CASE("vectors: the reference's product is the golden one") {
  const nlohmann::json& golden_matrix = golden()["matrix"];
  test::SlowMatrix matrix("mul1", 2, 128, 128, 0);
  const std::vector<uint32_t> words = hex_words(golden_matrix["words"].get<std::string>());
  REQUIRE(words.size() * 2 == matrix.words.size());
  std::memcpy(matrix.words.data(), words.data(), words.size() * sizeof(uint32_t));
  const std::vector<uint32_t> suh = hex_words(golden_matrix["suh"].get<std::string>());
  const std::vector<uint32_t> svh = hex_words(golden_matrix["svh"].get<std::string>());
  matrix.suh.assign(suh.begin(), suh.end());
  matrix.svh.assign(svh.begin(), svh.end());
  const std::vector<uint32_t> x = hex_words(golden_matrix["x"].get<std::string>());
  const std::vector<double> w = matrix.outer();
  for (uint32_t j = 0; j < 128; ++j) {
    double sum = 0;
    for (uint32_t i = 0; i < 128; ++i) {
      sum += test::half_value(static_cast<uint16_t>(x[i])) * w[size_t{j} * 128 + i];
    }
    CHECK(sum == doctest::Approx(golden_matrix["y"][j].get<double>()).epsilon(1e-9));
  }
}

TEST_SUITE_END();
