// Products and rows of EXL3 weights of one codebook. One row is multiplied while its weights are
// decoded; for more, 128 inputs of a strip are decoded once, into a buffer in the first cache, for
// up to 128 rows.
#if defined(ATLAS_CPU_EXL3_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_CPU_EXL3_PRODUCT_INL_H_
#undef ATLAS_CPU_EXL3_PRODUCT_INL_H_
#else
#define ATLAS_CPU_EXL3_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/cpu/exl3_decode-inl.h"
#include "kernels/cpu/exl3_hadamard-inl.h"
#include "kernels/cpu/grouped_items.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// Rows that share a decoded block.
constexpr uint32_t kBlockRows = 128;
/// Rows of a tile whose sums stay in registers.
constexpr uint32_t kRegisterRows = kLanes == 16 ? 8 : 4;

/// Adds one segment for kRows rows of a block of x.
template <uint32_t kRows>
HWY_INLINE void add_rows(const DecodedBlock& block, const float* x, LanePair* totals) {
  VF sums[2 * kRows];
  unrolled<2 * kRows>([&](auto i) ATLAS_INLINE_LAMBDA { sums[i] = hn::Zero(F32()); });
  for (uint32_t i = 0; i < kExl3Block / kExl3Tile; ++i) {
    const float* w = block.floats + size_t{i} * kExl3Tile * 2 * kLanes;
    const float* inputs = x + kExl3Tile * i;
    unrolled<kExl3Tile>([&](auto s) ATLAS_INLINE_LAMBDA {
      const VF first = hn::Load(F32(), w + 2 * s * kLanes);
      const VF second = hn::Load(F32(), w + (2 * s + 1) * kLanes);
      unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
        const VF value = hn::Set(F32(), inputs[r * kExl3Block + exl3_input(s)]);
        sums[2 * r] = fma(first, value, sums[2 * r]);
        sums[2 * r + 1] = fma(second, value, sums[2 * r + 1]);
      });
    });
  }
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    totals[r].v[0] = hn::Add(totals[r].v[0], sums[2 * r]);
    totals[r].v[1] = hn::Add(totals[r].v[1], sums[2 * r + 1]);
  });
}

/// Adds one segment for `rows` rows.
inline HWY_NOINLINE void add_block(const DecodedBlock& block, const float* x, uint32_t rows,
                                   LanePair* totals) {
  uint32_t r = 0;
  for (; rows - r >= kRegisterRows; r += kRegisterRows) {
    add_rows<kRegisterRows>(block, x + r * kExl3Block, totals + r);
  }
  if (kRegisterRows > 4 && rows - r >= 4) {
    add_rows<4>(block, x + r * kExl3Block, totals + r);
    r += 4;
  }
  if (rows - r >= 2) {
    add_rows<2>(block, x + r * kExl3Block, totals + r);
    r += 2;
  }
  if (r < rows) add_rows<1>(block, x + r * kExl3Block, totals + r);
}

struct StripOperands {
  const float* x;  // [k / 128, room, 128]
  float* sums;     // [n / 128, room, 128]
  uint32_t k, room;
};

/// Rows [row, row_end), at most kBlockRows, times one strip's lanes lane .. lane + kLanes - 1.
inline void multiply_lanes(const StripOperands& operands, const StripReader& reader,
                           const uint8_t* strip, uint32_t output, uint32_t lane, uint32_t row,
                           uint32_t row_end) {
  LanePair totals[kBlockRows];
  const uint32_t rows = row_end - row;
  for (uint32_t r = 0; r < rows; ++r) totals[r].v[0] = totals[r].v[1] = hn::Zero(F32());
  DecodedBlock block;
  for (uint32_t k = 0; k < operands.k; k += kExl3Block) {
    const float* x = operands.x + size_t{k} * operands.room + size_t{row} * kExl3Block;
    if (rows == 1) {
      reader.add_one_row(strip, lane, k / kExl3Tile, x, totals[0]);
    } else {
      reader.decode(strip, lane, k / kExl3Tile, block);
      add_block(block, x, rows, totals);
    }
  }
  float* sums = operands.sums + size_t{output / kExl3Block * kExl3Block} * operands.room +
                size_t{row} * kExl3Block + output % kExl3Block + lane;
  for (uint32_t r = 0; r < rows; ++r) {
    float* to = sums + r * kExl3Block;
    hn::StoreU(totals[r].v[0], F32(), to);
    hn::StoreU(totals[r].v[1], F32(), to + kStripLanes);
  }
}

/// Strips [strip, strip_end) of the weight at `strips`, times rows [row, row_end).
inline void multiply_strips(const StripOperands& operands, const StripReader& reader,
                            uint64_t strip_bytes, const uint8_t* strips, uint32_t strip,
                            uint32_t strip_end, uint32_t row, uint32_t row_end) {
  for (; strip < strip_end; ++strip) {
    const uint8_t* at = strips + strip * strip_bytes;
    for (uint32_t first = row; first < row_end; first += kBlockRows) {
      const uint32_t last = std::min(row_end, first + kBlockRows);
      for (uint32_t lane = 0; lane < kStripLanes; lane += kLanes) {
        multiply_lanes(operands, reader, at, strip * kExl3Strip, lane, first, last);
      }
    }
  }
}

template <Exl3Codebook kCodebook>
void exl3_product(const Exl3ProductParams& params, uint32_t begin, uint32_t end) {
  const StripOperands operands{params.x, params.sums, params.k, params.rows};
  const StripReader reader = strip_reader<kCodebook>(params.units);
  const uint64_t strip_bytes = exl3_strip_bytes(params.units, params.k);
  const auto* strips = static_cast<const uint8_t*>(params.strips);
  if (params.offsets == nullptr) {
    const uint32_t rows = *params.row_count;
    multiply_strips(operands, reader, strip_bytes, strips, begin,
                    std::min(end, params.n / kExl3Strip), 0, rows);
    return;
  }
  GroupedItems items(params.offsets, params.experts, params.n / kExl3Strip, params.tasks, begin,
                     end);
  for (GroupedItem item; items.next(item);) {
    multiply_strips(operands, reader, strip_bytes, strips + item.expert * params.expert_bytes,
                    item.group_begin, item.group_end, item.row_begin, item.row_end);
  }
}

/// Sums over the 128 outputs of a block, each with the sign that output `id` has in the Hadamard
/// matrix, of 128 inputs of What: lane by lane over strips and halves, then lanes pairwise.
inline void sum_outputs(const StripReader& reader, const uint8_t* strips, uint64_t strip_bytes,
                        uint32_t tile, uint32_t id, float* out) {
  alignas(64) float sums[kExl3Block * kStripLanes] = {};
  DecodedBlock block;
  for (uint32_t strip = 0; strip < kExl3Block / kExl3Strip; ++strip) {
    for (uint32_t lane = 0; lane < kStripLanes; lane += kLanes) {
      alignas(64) float signs[2][kLanes];
      for (uint32_t i = 0; i < 2 * kLanes; ++i) {
        const uint32_t half = i / kLanes, at = lane + i % kLanes;
        const uint32_t output = exl3_output(strip * kExl3Strip + half * kStripLanes + at);
        signs[half][i % kLanes] = std::popcount(output & id) % 2 == 0 ? 1.0f : -1.0f;
      }
      reader.decode(strips + strip * strip_bytes, lane, tile, block);
      const VF first = hn::Load(F32(), signs[0]), second = hn::Load(F32(), signs[1]);
      for (uint32_t s = 0; s < kExl3Block; ++s) {
        float* to = sums + s * kStripLanes + lane;
        const float* w = block.floats + size_t{2} * s * kLanes;
        VF sum = fma(hn::Load(F32(), w), first, hn::Load(F32(), to));
        sum = fma(hn::Load(F32(), w + kLanes), second, sum);
        hn::Store(sum, F32(), to);
      }
    }
  }
  for (uint32_t s = 0; s < kExl3Block; ++s) {
    float* each = sums + s * kStripLanes;
    for (uint32_t apart = kStripLanes / 2; apart != 0; apart /= 2) {
      for (uint32_t i = 0; i < apart; ++i) each[i] += each[i + apart];
    }
    out[s / kExl3Tile * kExl3Tile + exl3_input(s % kExl3Tile)] = each[0];
  }
}

template <Exl3Codebook kCodebook>
void exl3_gather_row(const Exl3GatherParams& params, uint32_t id, float* y) {
  const StripReader reader = strip_reader<kCodebook>(params.units);
  const auto* weight = static_cast<const uint8_t*>(params.weight);
  const uint64_t strip_bytes = exl3_strip_bytes(params.units, params.k);
  const uint8_t* strips = weight + exl3_head_bytes(params.n, params.k) +
                          uint64_t{id / kExl3Block} * (kExl3Block / kExl3Strip) * strip_bytes;
  const float output = load_f16(weight + 2 * (exl3_padded(params.k) + id));
  for (uint32_t k = 0; k < params.k; k += kExl3Block) {
    alignas(64) float block[kExl3Block];
    sum_outputs(reader, strips, strip_bytes, k / kExl3Tile, id % kExl3Block, block);
    for (float& value : block) value *= kExl3Norm;
    hadamard_block(block);
    for (uint32_t i = 0; i < std::min(kExl3Block, params.k - k); ++i) {
      y[k + i] = block[i] * kExl3Norm * load_f16(weight + 2 * (uint64_t{k} + i)) * output;
    }
  }
}

/// A row whose id is no output becomes NaN, which the step's check of its logits reports.
template <Exl3Codebook kCodebook>
void exl3_gather(const Exl3GatherParams& params, uint32_t begin, uint32_t end) {
  const uint32_t rows = *params.row_count;
  for (uint32_t row = begin; row < end && row < rows; ++row) {
    uint32_t id;
    std::memcpy(&id, static_cast<const uint8_t*>(params.ids) + size_t{row} * params.id_stride,
                sizeof(id));
    float* y = params.y + row * params.y_stride;
    if (id < params.n) {
      exl3_gather_row<kCodebook>(params, id, y);
    } else {
      std::fill_n(y, params.k, std::numeric_limits<float>::quiet_NaN());
    }
  }
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_EXL3_PRODUCT_INL_H_
