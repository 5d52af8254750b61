// qsa_score and qsa_select: scores of blocks, and each row's choice of them (kernels/common/qsa.h).
//
// Scores are not negative, so their bits order as they do. The last chosen one is found digit by
// digit from histograms, and one walk then lists what is above it and the first of what equals it.
#include "kernels/common/qsa.h"
#include "kernels/cpu/gqa_item.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/qsa_select.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <bit>

#include "kernels/cpu/gqa_product-inl.h"

// One definition for all targets.
#ifndef ATLAS_KERNELS_CPU_QSA_TILE_
#define ATLAS_KERNELS_CPU_QSA_TILE_
namespace atlas::kernels::cpu {

/// Rows of one sequence that choose among blocks.
struct QsaTile {
  uint32_t slot;
  uint32_t first_row, rows;
  uint32_t first_index;  // of first_row in its sequence

  /// Complete blocks that row r of the tile may choose from.
  uint32_t blocks(uint32_t r, uint32_t ratio) const { return (first_index + r + 1) / ratio; }
  uint32_t pages(uint32_t ratio) const {
    return (blocks(rows - 1, ratio) - 1) / qsa_page_blocks(ratio) + 1;
  }
};

}  // namespace atlas::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace atlas::kernels::cpu::HWY_NAMESPACE {
namespace {

/// Scores of the blocks in pages [begin, end) for all rows of the tile, row r's at to + r *
/// to_stride. What a row may not choose yet gets something too.
void ScorePages(const QsaSelectParams& p, const QsaTile& tile, uint32_t begin, uint32_t end,
                float* to, size_t to_stride, float* dots) {
  const size_t stride = qsa_pooled_stride(p.ratio), page_blocks = qsa_page_blocks(p.ratio);
  const size_t all = tile.rows * p.heads, runs = (all + kProductRows - 1) / kProductRows;
  const uint32_t* table =
      p.control->block_table + uint64_t{tile.slot} * p.control->limits.max_pages;
  const F16 zero = Set16(0.0f);
  for (uint32_t page = begin; page < end; ++page) {
    const float* keys =
        reinterpret_cast<const float*>(p.pages + table[page] * p.page_stride) + p.pooled_offset;
    for (size_t run = 0; run < runs; ++run) {
      const size_t v = run * all / runs, count = (run + 1) * all / runs - v;
      const float* q[kProductRows];
      for (size_t i = 0; i < count; ++i) {
        q[i] = p.q + (tile.first_row + (v + i) / p.heads) * p.q_stride +
               (v + i) % p.heads * p.head_dim;
      }
      Product(count, q, keys, stride, p.head_dim, dots + v * stride, stride, stride / 16, false);
    }
    for (size_t r = 0; r < tile.rows; ++r) {
      const float* dot = dots + r * p.heads * stride;
      for (size_t b = 0; b < page_blocks; b += 16) {
        F16 sum = zero;
        for (size_t h = 0; h < p.heads; ++h) {
          const F16 x = Load16(dot + h * stride + b);
          sum = Add(sum, Select(Lt(zero, x), x, zero));
        }
        float* score = to + r * to_stride + page * page_blocks + b;
        if (b + 16 <= page_blocks) {
          Store16(sum, score);
        } else {  // the next page's are another task's
          StorePart16(sum, score, page_blocks - b);
        }
      }
    }
  }
}

}  // namespace
}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atlas::kernels::cpu {
namespace {

HWY_EXPORT(ScorePages);

/// Calls what(tile) for the tiles of all rows that have to choose, in a fixed order.
template <typename What>
void for_each_tile(const QsaSelectParams& p, const What& what) {
  const uint64_t positions =
      std::min(uint64_t{p.control->limits.max_pages} * kGqaPageTokens, p.score_stride * p.ratio);
  for (uint32_t s = 0; s < p.rows->span_count; ++s) {
    const RowSpan& span = p.rows->spans[s];
    // control_fetch lets no such span pass.
    if (uint64_t{span.index} + span.row_count > positions) continue;
    for (uint32_t r = qsa_dense_rows(span, p.ratio, p.budget_blocks); r < span.row_count;
         r += kQsaTileRows) {
      what(QsaTile{span.slot, span.first_row + r, std::min(kQsaTileRows, span.row_count - r),
                   span.index + r});
    }
  }
}

/// The `chosen` (at most `count`) largest scores' numbers, ties to the lower one, ascending.
void choose(const float* scores, uint32_t count, uint32_t chosen, uint32_t* list,
            uint32_t* histogram) {
  constexpr uint32_t kShifts[] = {21, 10, 0};
  // The bits of the last chosen score that are known, and how many of the scores that agree in
  // these are chosen.
  uint32_t known = 0, known_mask = 0, left = chosen;
  for (const uint32_t shift : kShifts) {
    const uint32_t digit_mask = (shift == 0 ? 1024u : kQsaHistogram) - 1;
    std::fill_n(histogram, kQsaHistogram, 0u);
    for (uint32_t b = 0; b < count; ++b) {
      const auto bits = std::bit_cast<uint32_t>(scores[b]);
      if ((bits & known_mask) == known) ++histogram[bits >> shift & digit_mask];
    }
    uint32_t digit = digit_mask;
    for (; histogram[digit] < left; --digit) left -= histogram[digit];
    known |= digit << shift;
    known_mask |= digit_mask << shift;
  }
  for (uint32_t b = 0; b < count; ++b) {
    const auto bits = std::bit_cast<uint32_t>(scores[b]);
    if (bits < known || (bits == known && left == 0)) continue;
    if (bits == known) --left;
    *list++ = b;
  }
}

/// Whether qsa_score has computed the tile's scores.
bool scored_before(const QsaSelectParams& p, const QsaTile& tile) {
  return tile.first_row + tile.rows <= p.score_rows;
}

void select_tile(const QsaSelectParams& p, const QsaTile& tile, std::byte* scratch) {
  auto* histogram = reinterpret_cast<uint32_t*>(scratch);
  auto* dots = reinterpret_cast<float*>(histogram + kQsaHistogram);
  float* scores = nullptr;
  if (scored_before(p, tile)) {
    scores = p.scores + uint64_t{tile.first_row} * p.score_stride;
  } else {
    scores = dots + qsa_score_scratch_bytes(p.heads, p.ratio) / sizeof(float);
    HWY_DYNAMIC_DISPATCH(ScorePages)
    (p, tile, 0, tile.pages(p.ratio), scores, p.score_stride, dots);
  }
  for (uint32_t r = 0; r < tile.rows; ++r) {
    choose(scores + r * p.score_stride, tile.blocks(r, p.ratio), p.budget_blocks,
           p.lists + (uint64_t{tile.first_row} + r) * p.budget_blocks, histogram);
  }
}

}  // namespace

ATLAS_CPU_KERNEL(qsa_score, QsaSelectParams) {
  uint32_t place = 0;
  for_each_tile(params, [&](const QsaTile& tile) {
    if (!scored_before(params, tile)) return;
    const uint32_t pages = tile.pages(params.ratio);
    for (uint32_t page = 0; page < pages; page += kQsaScorePages, ++place) {
      const uint32_t task = reversed(place % params.tasks, params.tasks);
      if (task < begin || task >= end) continue;
      HWY_DYNAMIC_DISPATCH(ScorePages)
      (params, tile, page, std::min(pages, page + kQsaScorePages),
       params.scores + uint64_t{tile.first_row} * params.score_stride, params.score_stride,
       reinterpret_cast<float*>(scratch));
    }
  });
}

ATLAS_CPU_KERNEL(qsa_select, QsaSelectParams) {
  uint32_t place = 0;
  for_each_tile(params, [&](const QsaTile& tile) {
    const uint32_t task = reversed(place++ % params.tasks, params.tasks);
    if (task >= begin && task < end) select_tile(params, tile, scratch);
  });
}

}  // namespace atlas::kernels::cpu
#endif
