// Scalar decoders of the number and block formats that checkpoints use: what a stored block means.
// Plain functions for host and device code. They define the formats; kernels are tested against
// them.
//
// Source of the block layouts: the GGUF specification and the quantization types of ggml.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define ATLAS_HOST_DEVICE __host__ __device__
#else
#define ATLAS_HOST_DEVICE
#endif

namespace atlas::kernels {

ATLAS_HOST_DEVICE inline float float_from_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

ATLAS_HOST_DEVICE inline float bf16_to_f32(uint16_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

/// IEEE binary16, exact; subnormals, infinities and NaN included.
ATLAS_HOST_DEVICE inline float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // As a float32 the same fields are 2^112 too small; the product is exact, subnormals too.
  const float magnitude = float_from_bits(rest << 13) * float_from_bits((127u + 112u) << 23);
  return sign != 0 ? -magnitude : magnitude;
}

ATLAS_HOST_DEVICE inline uint16_t load_u16(const uint8_t* bytes) {
  return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}
ATLAS_HOST_DEVICE inline uint32_t load_u32(const uint8_t* bytes) {
  return static_cast<uint32_t>(load_u16(bytes)) | static_cast<uint32_t>(load_u16(bytes + 2)) << 16;
}
ATLAS_HOST_DEVICE inline float load_f16(const uint8_t* bytes) {
  return f16_to_f32(load_u16(bytes));
}

/// Q4_0, 18 bytes: f16 d, 16 bytes of codes (byte j: element j low, element j + 16 high).
/// Value d * (code - 8).
ATLAS_HOST_DEVICE inline void decode_q4_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((block[2 + j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((block[2 + j] >> 4) - 8);
  }
}

/// Q4_1, 20 bytes: f16 d, f16 m, codes as in Q4_0. Value d * code + m.
ATLAS_HOST_DEVICE inline void decode_q4_1(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const float m = load_f16(block + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(block[4 + j] & 15) + m;
    out[j + 16] = d * static_cast<float>(block[4 + j] >> 4) + m;
  }
}

/// The fifth bits of Q5_0 and Q5_1 stand in a 32-bit word, bit j of element j.
ATLAS_HOST_DEVICE inline int code_q5(const uint8_t* high, const uint8_t* low, int j) {
  const int nibble = j < 16 ? low[j] & 15 : low[j - 16] >> 4;
  return nibble | static_cast<int>(load_u32(high) >> j & 1) << 4;
}

/// Q5_0, 22 bytes: f16 d, 4 bytes of fifth bits, 16 bytes of codes. Value d * (code - 16).
ATLAS_HOST_DEVICE inline void decode_q5_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int j = 0; j < 32; ++j) {
    out[j] = d * static_cast<float>(code_q5(block + 2, block + 6, j) - 16);
  }
}

/// Q5_1, 24 bytes: f16 d, f16 m, 4 bytes of fifth bits, 16 bytes of codes. Value d * code + m.
ATLAS_HOST_DEVICE inline void decode_q5_1(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const float m = load_f16(block + 2);
  for (int j = 0; j < 32; ++j) {
    out[j] = d * static_cast<float>(code_q5(block + 4, block + 8, j)) + m;
  }
}

/// Q8_0, 34 bytes: f16 d, 32 signed codes. Value d * code.
ATLAS_HOST_DEVICE inline void decode_q8_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(block[2 + j]));
}

/// The 6-bit scale and minimum of sub-block j (of 8) in the 12 bytes that Q4_K and Q5_K share.
ATLAS_HOST_DEVICE inline void scale_min_k(const uint8_t* q, int j, uint8_t* scale, uint8_t* min) {
  if (j < 4) {
    *scale = q[j] & 63;
    *min = q[j + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((q[j + 4] & 15) | (q[j - 4] >> 6) << 4);
    *min = static_cast<uint8_t>((q[j + 4] >> 4) | (q[j] >> 6) << 4);
  }
}

/// Q4_K, 144 bytes for 256 elements: f16 d, f16 dmin, 12 bytes of scales, 128 bytes of codes (each
/// 32 bytes: one sub-block in the low nibbles, the next in the high). Value d*scale*code -
/// dmin*min.
ATLAS_HOST_DEVICE inline void decode_q4_k(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const float dmin = load_f16(block + 2);
  for (int j = 0; j < 8; ++j) {
    uint8_t scale, min;
    scale_min_k(block + 4, j, &scale, &min);
    const float step = d * static_cast<float>(scale);
    const float offset = dmin * static_cast<float>(min);
    const uint8_t* codes = block + 16 + 32 * (j / 2);
    for (int l = 0; l < 32; ++l) {
      const int code = codes[l] >> 4 * (j & 1) & 15;
      out[32 * j + l] = step * static_cast<float>(code) - offset;
    }
  }
}

/// Q5_K, 176 bytes for 256 elements: as Q4_K, with 32 bytes of fifth bits (bit j of byte l: element
/// l of sub-block j) before the codes.
ATLAS_HOST_DEVICE inline void decode_q5_k(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const float dmin = load_f16(block + 2);
  for (int j = 0; j < 8; ++j) {
    uint8_t scale, min;
    scale_min_k(block + 4, j, &scale, &min);
    const float step = d * static_cast<float>(scale);
    const float offset = dmin * static_cast<float>(min);
    const uint8_t* codes = block + 48 + 32 * (j / 2);
    for (int l = 0; l < 32; ++l) {
      const int code = (codes[l] >> 4 * (j & 1) & 15) | (block[16 + l] >> j & 1) << 4;
      out[32 * j + l] = step * static_cast<float>(code) - offset;
    }
  }
}

/// Code 0..63 of element e (0..255) of a Q6_K block.
ATLAS_HOST_DEVICE inline int code_q6_k(const uint8_t* block, int e) {
  const int half = e / 128;
  const int quarter = e % 128 / 32;  // 32 elements that share a nibble plane and a bit pair
  const int l = e % 32;
  const uint8_t* low = block + 64 * half + 32 * (quarter & 1);
  const uint8_t* high = block + 128 + 32 * half;
  return (low[l] >> 4 * (quarter / 2) & 15) | (high[l] >> 2 * quarter & 3) << 4;
}

/// Q6_K, 210 bytes for 256 elements: 128 bytes of low nibbles, 64 bytes of high bit pairs, a signed
/// scale for every 16 elements, f16 d. Value d * scale * (code - 32).
ATLAS_HOST_DEVICE inline void decode_q6_k(const uint8_t* block, float* out) {
  const float d = load_f16(block + 208);
  for (int e = 0; e < 256; ++e) {
    const float step = d * static_cast<float>(static_cast<int8_t>(block[192 + e / 16]));
    out[e] = step * static_cast<float>(code_q6_k(block, e) - 32);
  }
}

/// An OCP float8 e4m3: 4 bits of exponent with bias 7, no infinities, NaN where all bits but the
/// sign are set. Source: OCP 8-bit floating point specification 1.0.
ATLAS_HOST_DEVICE inline float e4m3_to_f32(uint8_t bits) {
  const uint32_t sign = uint32_t{bits & 0x80u} << 24;
  const uint32_t exponent = (bits >> 3) & 15u, mantissa = bits & 7u;
  if ((bits & 0x7fu) == 0x7fu) return float_from_bits(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-9f;
    return sign != 0 ? -value : value;
  }
  return float_from_bits(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

/// An OCP float4 e2m1, bits 0 to 3 of `code`: bit 3 is the sign. Source: OCP microscaling
/// formats 1.0.
ATLAS_HOST_DEVICE inline float e2m1_to_f32(uint8_t code) {
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const float magnitude = exponent == 0
                              ? 0.5f * static_cast<float>(mantissa)
                              : 0.5f * static_cast<float>((2 + mantissa) << (exponent - 1));
  return (code & 8) != 0 ? -magnitude : magnitude;
}

/// An OCP ue8m0, a power of two: 2^(bits - 127), NaN for 255. Source: OCP microscaling formats 1.0.
ATLAS_HOST_DEVICE inline float ue8m0_to_f32(uint8_t bits) {
  if (bits == 255) return float_from_bits(0x7fc00000u);
  return float_from_bits(bits == 0 ? 0x00400000u : uint32_t{bits} << 23);
}

}  // namespace atlas::kernels
