// Rounding to e4m3, e2m1, f16 and bf16 against the formats' tables, and the FP8 and NVFP4 encoders.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/common/codecs.h"
#include "tools/atlas-quantize/fp8.h"
#include "tools/atlas-quantize/number_codes.h"
#include "tools/atlas-quantize/nvfp4.h"
#include "tools/atlas-quantize/report.h"

namespace atlas::quantize {
namespace {

/// Of a small format given by its values: the nearest code, the even one of two that are as near.
template <typename Value>
uint32_t nearest_code(float value, uint32_t codes, Value value_of) {
  uint32_t best = 0;
  double best_apart = std::numeric_limits<double>::infinity();
  for (uint32_t code = 0; code < codes; ++code) {
    const double apart = std::fabs(double{value_of(code)} - double{value});
    if (apart < best_apart || (apart == best_apart && code % 2 == 0)) {
      best_apart = apart;
      best = code;
    }
  }
  return best;
}

Matrix normal_matrix(uint64_t rows, uint64_t columns, uint32_t seed, float scale = 0.05f) {
  Matrix m(rows, columns);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  for (float& value : m.values) value = normal(random);
  return m;
}

uint8_t byte_of(const EncodedTensor& tensor, size_t i) {
  return static_cast<uint8_t>(tensor.bytes.at(i));
}
uint16_t half_of(const EncodedTensor& tensor, size_t i) {
  return static_cast<uint16_t>(byte_of(tensor, 2 * i) | byte_of(tensor, 2 * i + 1) << 8);
}

TEST_SUITE_BEGIN("quantize");

TEST_CASE("e4m3: every code is its own rounding, and values between go to the nearest") {
  for (uint32_t code = 0; code < 0x7f; ++code) {
    const float value = e4m3_value(static_cast<uint8_t>(code));
    CHECK(e4m3_from_float(value) == code);
    if (code != 0) CHECK(e4m3_from_float(-value) == (code | 0x80));
  }
  for (float value = 0.0007f; value < 600; value *= 1.0137f) {
    const uint32_t expected =
        nearest_code(value, 0x7f, [](uint32_t c) { return e4m3_value(static_cast<uint8_t>(c)); });
    CHECK_MESSAGE(e4m3_from_float(value) == expected, value);
  }
  CHECK(e4m3_from_float(1e9f) == 0x7e);
  CHECK(std::isnan(e4m3_value(e4m3_from_float(NAN))));
  // 17 lies between 16 and 18: the even code has the even mantissa.
  CHECK(e4m3_value(e4m3_from_float(17.0f)) == 16.0f);
  CHECK(e4m3_value(e4m3_from_float(19.0f)) == 20.0f);
}

TEST_CASE("e2m1: ties go to the even code, and beyond 6 it saturates") {
  const auto value_of = [](uint32_t code) { return e2m1_value(static_cast<uint8_t>(code)); };
  for (int i = 0; i <= 1000; ++i) {
    const float value = static_cast<float>(i) / 125.0f;
    CHECK_MESSAGE(e2m1_from_float(value) == nearest_code(value, 8, value_of), value);
  }
  CHECK(e2m1_from_float(-1.3f) == (3 | 8));
  CHECK(e2m1_from_float(0.0f) == 0);
  CHECK(e2m1_from_float(100.0f) == 7);
}

TEST_CASE("f16: all codes come back, and rounding is to nearest even") {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float value = kernels::f16_to_f32(static_cast<uint16_t>(bits));
    CHECK(f16_from_float(value) == bits);
    const float next = kernels::f16_to_f32(static_cast<uint16_t>(bits + 1));
    if (bits + 1 == 0x7c00) continue;
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    CHECK(f16_from_float((value + next) / 2) == even);
  }
  CHECK(f16_from_float(65519.0f) == 0x7bff);
  CHECK(f16_from_float(65520.0f) == 0x7c00);
  CHECK(f16_from_float(-1.0f) == 0xbc00);
}

TEST_CASE("bf16: rounding is to nearest even") {
  CHECK(bf16_from_float(1.0f) == 0x3f80);
  CHECK(bf16_from_float(1.00390625f) == 0x3f80);  // a tie below an even code
  CHECK(bf16_from_float(1.01171875f) == 0x3f82);  // one above an odd code
  CHECK(bf16_from_float(INFINITY) == 0x7f80);
}

TEST_CASE("fp8: a block's scale is its maximum over 448, and partial blocks have their own") {
  Matrix weight = normal_matrix(200, 130, 7);
  weight.at(0, 0) = 4.48f;
  weight.at(199, 129) = -0.448f;
  const EncodedLinear out = encode_fp8("m", weight, 2);
  REQUIRE(out.tensors.size() == 2);
  CHECK(out.tensors[0].name == "m.weight");
  CHECK(out.tensors[0].dims == std::vector<uint64_t>{200, 130});
  CHECK(out.tensors[1].name == "m.weight_scale_inv");
  CHECK(out.tensors[1].dims == std::vector<uint64_t>{2, 2});
  CHECK(half_of(out.tensors[1], 0) == bf16_from_float(0.01f));
  CHECK(half_of(out.tensors[1], 3) == bf16_from_float(0.001f));
  // A reader that only follows the layout.
  for (uint64_t r = 0; r < 200; ++r) {
    for (uint64_t c = 0; c < 130; ++c) {
      const float scale = kernels::bf16_to_f32(half_of(out.tensors[1], r / 128 * 2 + c / 128));
      CHECK(e4m3_value(byte_of(out.tensors[0], r * 130 + c)) * scale == out.decoded.at(r, c));
    }
  }
  const double error = relative_error(weight, out.decoded);
  CHECK(error > 0.015);
  CHECK(error < 0.03);  // three bits of mantissa
}

TEST_CASE("fp8 and nvfp4: zeros stay zeros") {
  const Matrix zeros(32, 128);
  CHECK(encode_fp8("m", zeros, 1).decoded.values == zeros.values);
  CHECK(encode_nvfp4("m", zeros, {}, Nvfp4Scales::kMse, 1).decoded.values == zeros.values);
}

TEST_CASE("nvfp4: the worked example gives its bytes") {
  Matrix weight(1, 32);
  const float first[16] = {0.11f, -0.42f, 0.03f, 0.9f, -1.25f, 0.66f, 0.31f, -0.05f,
                           0.2f,  0.75f,  -0.8f, 0.5f, -0.15f, 0.02f, 1.0f,  -0.6f};
  std::copy(first, first + 16, weight.values.begin());
  weight.at(0, 16) = 2.0f;  // the tensor's largest
  const EncodedLinear out = encode_nvfp4("m", weight, {}, Nvfp4Scales::kMax, 1);
  REQUIRE(out.tensors.size() == 3);
  const uint8_t expected[8] = {0xc1, 0x60, 0x5f, 0x03, 0x62, 0x4e, 0x09, 0xd6};
  for (size_t i = 0; i < 8; ++i) CHECK(byte_of(out.tensors[0], i) == expected[i]);
  CHECK(byte_of(out.tensors[1], 0) == 0x79);
  CHECK(byte_of(out.tensors[1], 1) == 0x7e);
  CHECK(out.tensors[2].dims.empty());
  float global = 0;
  std::memcpy(&global, out.tensors[2].bytes.data(), sizeof(global));
  CHECK(global == doctest::Approx(7.440476e-4));
}

TEST_CASE("nvfp4: better choices of scales have smaller errors") {
  const Matrix weight = normal_matrix(64, 256, 3);
  const auto error = [&](Nvfp4Scales scales) {
    return relative_error(weight, encode_nvfp4("m", weight, {}, scales, 2).decoded);
  };
  const double max = error(Nvfp4Scales::kMax), four = error(Nvfp4Scales::kFourOverSix);
  const double mse = error(Nvfp4Scales::kMse);
  CHECK(max < 0.11);
  CHECK(four < 0.95 * max);
  CHECK(mse < 0.95 * four);
}

/// What a reader of the layout sees.
Matrix read_nvfp4(const EncodedLinear& linear, uint64_t n, uint64_t k) {
  float global = 0;
  std::memcpy(&global, linear.tensors[2].bytes.data(), sizeof(global));
  Matrix out(n, k);
  for (uint64_t r = 0; r < n; ++r) {
    for (uint64_t c = 0; c < k; ++c) {
      const uint8_t pair = byte_of(linear.tensors[0], (r * k + c) / 2);
      const auto code = static_cast<uint8_t>(c % 2 == 0 ? pair & 15 : pair >> 4);
      const float scale = e4m3_value(byte_of(linear.tensors[1], (r * k + c) / 16)) * global;
      out.at(r, c) = e2m1_value(code) * scale;
    }
  }
  return out;
}

/// Moments of inputs of which neighbours go together.
Moments correlated(uint64_t k) {
  const Matrix noise = normal_matrix(4 * k, k, 9, 1);
  Hessian h(k);
  std::vector<float> rows = noise.values;
  for (size_t i = 1; i < rows.size(); ++i) rows[i] += 0.9f * rows[i - 1];
  h.add(rows, 1);
  return {std::make_shared<const Matrix>(h.mean()), "full", h.rows()};
}

TEST_CASE("nvfp4: what a reader of the layout sees is what the encoder says, fed back or not") {
  const Matrix weight = normal_matrix(80, 64, 5, 3.0f);
  for (const Moments& moments : {Moments{}, correlated(64)}) {
    const EncodedLinear out = encode_nvfp4("m", weight, moments, Nvfp4Scales::kMse, 2);
    CHECK(read_nvfp4(out, 80, 64).values == out.decoded.values);
    CHECK(relative_error(weight, out.decoded) < 0.2);
    const EncodedLinear one = encode_nvfp4("m", weight, moments, Nvfp4Scales::kMse, 1);
    for (size_t i = 0; i < 3; ++i) CHECK(one.tensors[i].bytes == out.tensors[i].bytes);
  }
}

TEST_CASE("nvfp4: with moments, what correlated inputs lose is smaller") {
  const Matrix weight = normal_matrix(64, 256, 6);
  const Moments moments = correlated(256);
  for (const Nvfp4Scales scales : {Nvfp4Scales::kMax, Nvfp4Scales::kMse}) {
    const EncodedLinear plain = encode_nvfp4("m", weight, {}, scales, 2);
    const EncodedLinear fed = encode_nvfp4("m", weight, moments, scales, 2);
    CHECK(plain.proxy_error < 0);  // not known
    CHECK(fed.proxy_error < 0.8 * proxy_error(weight, plain.decoded, *moments.mean, 1));
    CHECK(relative_error(weight, fed.decoded) > relative_error(weight, plain.decoded));
  }
  Moments none;
  none.mean = std::make_shared<const Matrix>(256, 256);
  const EncodedLinear out = encode_nvfp4("m", weight, none, Nvfp4Scales::kMse, 1);
  CHECK(out.note.find("without a Hessian") != std::string::npos);
  CHECK(out.decoded.values == encode_nvfp4("m", weight, {}, Nvfp4Scales::kMse, 1).decoded.values);
}

TEST_SUITE_END();

}  // namespace
}  // namespace atlas::quantize
