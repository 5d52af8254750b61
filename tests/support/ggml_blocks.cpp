// Layouts follow the table of GGUF blocks in ggml's documentation; scales are chosen from the
// largest values of a block, codes are rounded to the nearest.
#include "tests/support/ggml_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

namespace atlas::testing {
namespace {

// The processor's conversions, independent of the code under test. g++ 12 has no _Float16 on arm64.
#if defined(__aarch64__)
using Half = __fp16;
#else
using Half = _Float16;
#endif

template <typename T>
void append(std::string* out, const T& value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

int code(float value, float scale, int low, int high) {
  const float scaled = scale == 0 ? 0 : value / scale;
  return std::clamp(static_cast<int>(std::lrintf(scaled)), low, high);
}

/// A scale as it will be read back.
float stored(float value, std::string* out) {
  const uint16_t half = float_to_half(value);
  append(out, half);
  return half_to_float(half);
}

float largest(std::span<const float> x) {
  float most = 0;
  for (const float v : x) most = std::abs(v) > std::abs(most) ? v : most;
  return most;
}

/// Codes of 4 or 5 bits: nibbles j and j+16 share a byte, fifth bits share one word.
void append_nibbles(const int (&codes)[32], bool five, std::string* out) {
  if (five) {
    uint32_t high = 0;
    for (int j = 0; j < 32; ++j) high |= static_cast<uint32_t>(codes[j] >> 4) << j;
    append(out, high);
  }
  for (int j = 0; j < 16; ++j) {
    out->push_back(static_cast<char>((codes[j] & 15) | (codes[j + 16] & 15) << 4));
  }
}

/// Q4_0 and Q5_0: the value of largest magnitude gets the lowest code.
void append_symmetric(std::span<const float> x, int bits, std::string* out) {
  const int half = 1 << (bits - 1);
  const float scale = stored(largest(x) / static_cast<float>(-half), out);
  int codes[32];
  for (int j = 0; j < 32; ++j) codes[j] = code(x[j], scale, -half, half - 1) + half;
  append_nibbles(codes, bits == 5, out);
}

/// Q4_1 and Q5_1: a scale and the least value.
void append_affine(std::span<const float> x, int bits, std::string* out) {
  const int most = (1 << bits) - 1;
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float scale = stored((*high - *low) / static_cast<float>(most), out);
  const float least = stored(*low, out);
  int codes[32];
  for (int j = 0; j < 32; ++j) codes[j] = code(x[j] - least, scale, 0, most);
  append_nibbles(codes, bits == 5, out);
}

void append_q8_0(std::span<const float> x, std::string* out) {
  const float scale = stored(std::abs(largest(x)) / 127, out);
  for (const float v : x) out->push_back(static_cast<char>(code(v, scale, -127, 127)));
}

/// Q4_K and Q5_K: eight sub-blocks of 32 with 6-bit scales and minima under two halves.
void append_super_affine(std::span<const float> x, int bits, std::string* out) {
  const int most = (1 << bits) - 1;
  float scales[8], minima[8];
  for (int s = 0; s < 8; ++s) {
    const auto part = x.subspan(s * 32, 32);
    const auto [low, high] = std::minmax_element(part.begin(), part.end());
    minima[s] = std::max(0.0f, -*low);
    scales[s] = std::max(0.0f, *high + minima[s]) / static_cast<float>(most);
  }
  const float d = stored(*std::max_element(scales, scales + 8) / 63, out);
  const float dmin = stored(*std::max_element(minima, minima + 8) / 63, out);
  uint8_t packed[12] = {};
  uint8_t codes[256];
  for (int s = 0; s < 8; ++s) {
    const int sc = code(scales[s], d, 0, 63);
    const int mn = code(minima[s], dmin, 0, 63);
    if (s < 4) {
      packed[s] |= static_cast<uint8_t>(sc);
      packed[s + 4] |= static_cast<uint8_t>(mn);
    } else {
      packed[s + 4] |= static_cast<uint8_t>((sc & 15) | (mn & 15) << 4);
      packed[s - 4] |= static_cast<uint8_t>(sc >> 4 << 6);
      packed[s] |= static_cast<uint8_t>(mn >> 4 << 6);
    }
    for (int j = 0; j < 32; ++j) {
      const float v = x[s * 32 + j] + dmin * static_cast<float>(mn);
      codes[s * 32 + j] = static_cast<uint8_t>(code(v, d * static_cast<float>(sc), 0, most));
    }
  }
  append(out, packed);
  if (bits == 5) {
    // Bit s of byte j is the fifth bit of element j of sub-block s.
    for (int j = 0; j < 32; ++j) {
      uint8_t high = 0;
      for (int s = 0; s < 8; ++s) high |= static_cast<uint8_t>(codes[s * 32 + j] >> 4 << s);
      append(out, high);
    }
  }
  for (int pair = 0; pair < 4; ++pair) {
    for (int j = 0; j < 32; ++j) {
      const uint8_t* at = codes + pair * 64 + j;
      out->push_back(static_cast<char>((at[0] & 15) | (at[32] & 15) << 4));
    }
  }
}

/// Q6_K: sixteen sub-blocks of 16 with 8-bit scales under one half.
void append_q6_k(std::span<const float> x, std::string* out) {
  float scales[16];
  float most = 0;
  for (int s = 0; s < 16; ++s) {
    scales[s] = largest(x.subspan(s * 16, 16)) / -32;
    most = std::max(most, std::abs(scales[s]));
  }
  const float d = half_to_float(float_to_half(most / 127));
  int8_t packed[16];
  uint8_t codes[256];
  for (int s = 0; s < 16; ++s) {
    packed[s] = static_cast<int8_t>(code(scales[s], d, -127, 127));
    for (int j = 0; j < 16; ++j) {
      codes[s * 16 + j] = static_cast<uint8_t>(
          code(x[s * 16 + j], d * static_cast<float>(packed[s]), -32, 31) + 32);
    }
  }
  uint8_t low[128], high[64];
  for (int half = 0; half < 2; ++half) {
    for (int l = 0; l < 32; ++l) {
      const uint8_t* at = codes + half * 128 + l;
      low[half * 64 + l] = static_cast<uint8_t>((at[0] & 15) | (at[64] & 15) << 4);
      low[half * 64 + 32 + l] = static_cast<uint8_t>((at[32] & 15) | (at[96] & 15) << 4);
      high[half * 32 + l] =
          static_cast<uint8_t>(at[0] >> 4 | at[32] >> 4 << 2 | at[64] >> 4 << 4 | at[96] >> 4 << 6);
    }
  }
  append(out, low);
  append(out, high);
  append(out, packed);
  stored(d, out);
}

void append_block(AtlasDType dtype, std::span<const float> x, std::string* out) {
  switch (dtype) {
    case ATLAS_Q4_0:
      return append_symmetric(x, 4, out);
    case ATLAS_Q5_0:
      return append_symmetric(x, 5, out);
    case ATLAS_Q4_1:
      return append_affine(x, 4, out);
    case ATLAS_Q5_1:
      return append_affine(x, 5, out);
    case ATLAS_Q8_0:
      return append_q8_0(x, out);
    case ATLAS_Q4_K:
      return append_super_affine(x, 4, out);
    case ATLAS_Q5_K:
      return append_super_affine(x, 5, out);
    case ATLAS_Q6_K:
      return append_q6_k(x, out);
    default:
      std::fprintf(stderr, "append_as: type %u is not written by tests\n", dtype);
      std::abort();
  }
}

}  // namespace

uint16_t float_to_half(float value) { return std::bit_cast<uint16_t>(static_cast<Half>(value)); }

float half_to_float(uint16_t half) { return static_cast<float>(std::bit_cast<Half>(half)); }

uint16_t float_to_bfloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void append_as(AtlasDType dtype, const std::vector<float>& values, std::string* out) {
  if (dtype == ATLAS_F32) {
    out->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  } else if (dtype == ATLAS_F16) {
    for (const float v : values) append(out, float_to_half(v));
  } else if (dtype == ATLAS_BF16) {
    for (const float v : values) append(out, float_to_bfloat(v));
  } else {
    const size_t block = dtype >= ATLAS_Q4_K ? 256 : 32;
    if (values.size() % block != 0) {
      std::fprintf(stderr, "append_as: %zu values are no multiple of %zu\n", values.size(), block);
      std::abort();
    }
    const std::span<const float> all(values);
    for (size_t i = 0; i < values.size(); i += block)
      append_block(dtype, all.subspan(i, block), out);
  }
}

}  // namespace atlas::testing
