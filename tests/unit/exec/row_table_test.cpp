// Rows of a table in files: every type, uneven shards, a small cache, files that end too early.
#include "daemon/exec/row_table.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "kernels/common/codecs.h"
#include "kernels/common/exl3.h"
#include "tests/support/tiny_llama.h"

using namespace atlas;
using namespace atlas::exec;

TEST_SUITE_BEGIN("exec");

namespace {

constexpr uint32_t kWidth = 20;

/// A table of random bytes in shards of 7 rows, the last one shorter, behind some other bytes.
class Table {
 public:
  Table(AtlasDType dtype, uint32_t element_bytes, uint64_t rows) {
    files_.dtype = dtype;
    files_.row_width = kWidth;
    files_.rows = rows;
    files_.shard_rows = 7;
    row_bytes_ = kWidth * element_bytes;
    std::mt19937 random(static_cast<uint32_t>(dtype) + 1);
    bytes_.resize(rows * row_bytes_);
    for (uint8_t& byte : bytes_) byte = static_cast<uint8_t>(random());
    for (uint64_t first = 0; first < rows; first += 7) {
      const uint64_t count = std::min<uint64_t>(7, rows - first), before = 11 + first;
      const std::string path = folder_.file("shard" + std::to_string(first));
      std::ofstream out(path, std::ios::binary);
      out << std::string(before, 'x');
      out.write(reinterpret_cast<const char*>(&bytes_[first * row_bytes_]),
                static_cast<std::streamsize>(count * row_bytes_));
      files_.shards.push_back({path, before, count});
    }
  }
  RowTableFiles& files() { return files_; }
  const uint8_t* row(uint64_t key) const { return &bytes_[key * row_bytes_]; }
  uint64_t row_bytes() const { return row_bytes_; }

 private:
  testing::TempDir folder_;
  RowTableFiles files_;
  uint64_t row_bytes_ = 0;
  std::vector<uint8_t> bytes_;
};

float element(AtlasDType dtype, const uint8_t* row, uint32_t i) {
  switch (dtype) {
    case ATLAS_F32:
      return kernels::float_from_bits(kernels::load_u32(row + 4 * i));
    case ATLAS_F16:
      return kernels::load_f16(row + 2 * i);
    case ATLAS_BF16:
      return kernels::bf16_to_f32(kernels::load_u16(row + 2 * i));
    default:
      return kernels::e4m3_to_f32(row[i]) * 0.5f;
  }
}

}  // namespace

TEST_CASE("row table: rows of every type, from any shard, in any order and more than once") {
  const std::pair<AtlasDType, uint32_t> types[] = {
      {ATLAS_F32, 4}, {ATLAS_F16, 2}, {ATLAS_BF16, 2}, {ATLAS_F8_E4M3, 1}};
  for (const auto& [dtype, bytes] : types) {
    CAPTURE(dtype);
    Table table(dtype, bytes, 45);
    table.files().scale = dtype == ATLAS_F8_E4M3 ? 0.5f : 1.0f;
    // A cache of five rows: most of what is asked for is read, some of it in the same call.
    auto opened = RowTable::open(table.files(), 5 * table.row_bytes());
    REQUIRE_MESSAGE(opened, opened.error().message());
    RowTable& rows = **opened;
    CHECK(rows.width() == kWidth);
    std::mt19937 random(3);
    for (const size_t count : {1u, 2u, 16u, 100u, 3u, 0u}) {
      std::vector<uint64_t> keys(count);
      for (uint64_t& key : keys) key = random() % 45;
      std::vector<float> out(count * kWidth, -7.0f);
      REQUIRE(rows.read(keys, out.data()).ok());
      for (size_t r = 0; r < count; ++r) {
        for (uint32_t i = 0; i < kWidth; ++i) {
          const float expected = element(dtype, table.row(keys[r]), i);
          const float found = out[r * kWidth + i];
          CHECK((expected == found || (std::isnan(expected) && std::isnan(found))));
        }
      }
    }
    CHECK(rows.counters().hits + rows.counters().reads > 0);
  }
}

TEST_CASE("row table: what is in the cache is not read again") {
  Table table(ATLAS_BF16, 2, 30);
  auto opened = RowTable::open(table.files(), 30 * table.row_bytes());
  REQUIRE(opened);
  std::vector<uint64_t> keys(30);
  for (uint64_t i = 0; i < 30; ++i) keys[i] = i;
  std::vector<float> out(30 * kWidth);
  REQUIRE((*opened)->read(keys, out.data()).ok());
  CHECK((*opened)->counters().reads == 30);
  REQUIRE((*opened)->read(keys, out.data()).ok());
  CHECK((*opened)->counters().reads == 30);
  CHECK((*opened)->counters().hits == 30);
}

TEST_CASE("row table: a file cut short, a key beyond the table and wrong sizes are errors") {
  Table table(ATLAS_F16, 2, 20);
  auto opened = RowTable::open(table.files(), 0);
  REQUIRE(opened);
  std::vector<float> out(2 * kWidth);
  const uint64_t beyond[] = {3, 20};
  CHECK((*opened)->read(beyond, out.data()).code() == Code::kInvalidArgument);
  std::filesystem::resize_file(table.files().shards[1].path, 30);
  const uint64_t cut[] = {3, 9};
  const Status status = (*opened)->read(cut, out.data());
  CHECK(status.code() == Code::kDataLoss);
  CHECK(status.message().find("cut short") != std::string::npos);
  CHECK(status.message().find(table.files().shards[1].path) != std::string::npos);
  const uint64_t whole[] = {3, 19};
  CHECK((*opened)->read(whole, out.data()).ok());

  RowTableFiles wrong = table.files();
  wrong.rows = 21;
  CHECK_FALSE(RowTable::open(wrong, 0));
  wrong = table.files();
  wrong.dtype = ATLAS_I64;
  CHECK_FALSE(RowTable::open(wrong, 0));
  wrong = table.files();
  wrong.shards[0].path += ".absent";
  CHECK(RowTable::open(wrong, 0).error().code() == Code::kNotFound);
}

TEST_CASE("float8 e4m3: every code") {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    CAPTURE(bits);
    const float found = kernels::e4m3_to_f32(static_cast<uint8_t>(bits));
    const uint32_t exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (exponent == 15 && mantissa == 7) {
      CHECK(std::isnan(found));
      continue;
    }
    const double magnitude = exponent == 0
                                 ? std::ldexp(mantissa, -9)
                                 : std::ldexp(8 + mantissa, static_cast<int>(exponent) - 10);
    CHECK(found == static_cast<float>(bits & 128 ? -magnitude : magnitude));
    CHECK(std::signbit(found) == ((bits & 128) != 0));
  }
}

TEST_CASE("row table: rows of a trellis are decoded, with the bias of their head") {
  testing::TempDir folder;
  constexpr uint64_t kRows = 9;
  constexpr uint32_t kElements = kernels::kExl3RowElements;
  std::mt19937 random(3);
  for (const uint32_t bits : {1u, 5u, 8u}) {
    CAPTURE(bits);
    const uint64_t row_bytes = kernels::exl3_row_bytes(bits);
    std::vector<uint8_t> bytes(kRows * row_bytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    for (uint64_t row = 0; row < kRows; ++row) bytes[row * row_bytes + 1] = 0x34;  // 0.25 and more
    const std::string path = folder.file("table" + std::to_string(bits));
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    RowTableFiles files;
    files.shards = {{path, 0, kRows}};
    files.shard_rows = files.rows = kRows;
    files.row_width = kElements;
    files.dtype = ATLAS_I16;
    files.trellis_bits = bits;
    files.head_offsets = {0, 4, 7};
    for (uint32_t i = 0; i < 3 * kElements; ++i) files.head_bias.push_back(static_cast<float>(i));
    auto opened = RowTable::open(files, 3 * row_bytes);
    REQUIRE_MESSAGE(opened, opened.error().message());
    const std::vector<uint64_t> keys = {8, 0, 3, 4, 6, 7, 0};
    const uint32_t heads[] = {2, 0, 0, 1, 1, 2, 0};
    std::vector<float> out(keys.size() * kElements);
    for (int twice = 0; twice < 2; ++twice) {
      REQUIRE((*opened)->read(keys, out.data()).ok());
      for (size_t r = 0; r < keys.size(); ++r) {
        float expected[kElements];
        kernels::exl3_decode_row(&bytes[keys[r] * row_bytes], bits, expected);
        for (uint32_t i = 0; i < kElements; ++i) {
          REQUIRE(out[r * kElements + i] ==
                  expected[i] + static_cast<float>(heads[r] * kElements + i));
        }
      }
    }
    files.head_bias.pop_back();
    CHECK(RowTable::open(files, 0).error().code() == Code::kInvalidArgument);
    files.trellis_bits = 9;
    CHECK(RowTable::open(files, 0).error().code() == Code::kUnimplemented);
  }
}

TEST_SUITE_END();
