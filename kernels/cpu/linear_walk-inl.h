// The walk of a product over its tasks, row groups, lanes and rows, for all weight formats; and of
// a product of experts over its items, each of which is a small product.
//
// A Product is kLanes outputs: `tile<R>(x, sums)` leaves the product of R rows of x, anywhere in
// memory, in registers. Each tile walks k once; after the first, the group's weights come from a
// near cache.
#if defined(ATLAS_CPU_LINEAR_WALK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_CPU_LINEAR_WALK_INL_H_
#undef ATLAS_CPU_LINEAR_WALK_INL_H_
#else
#define ATLAS_CPU_LINEAR_WALK_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "kernels/common/cpu_linear.h"
#include "kernels/cpu/grouped_items.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// Rows of a full tile: sums of all kinds fill the registers.
constexpr uint32_t kTileRows = kLanes == 16 ? 8 : 4;

/// What products read and write, but for their part of the weight.
struct Operands {
  const uint8_t* x;
  size_t x_row_bytes;
  const uint32_t* source;  // of row i of y: the row of x; null: row i
  float* y;
  size_t y_stride;
  uint32_t n, k;
  bool add;

  const uint8_t* row(uint32_t i) const {
    return x + size_t{source == nullptr ? i : source[i]} * x_row_bytes;
  }
};

/// Rows row .. row + kRows - 1 of y, kLanes outputs from `first`.
template <uint32_t kRows, class Product>
void tile(const Product& product, const Operands& operands, uint32_t first, uint32_t row) {
  const uint8_t* x[kRows];
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA { x[r] = operands.row(row + r); });
  VF sums[kRows];
  product.template tile<kRows>(x, sums);
  float* y = operands.y + row * operands.y_stride + first;
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    store_outputs(sums[r], y + r * operands.y_stride, operands.n - first, operands.add);
  });
}

template <class Product>
void all_rows(const Product& product, const Operands& operands, uint32_t first, uint32_t row,
              uint32_t end) {
  if constexpr (requires { Product::kManyRows; }) {
    for (; end - row >= Product::kManyRows; row += Product::kManyRows) {
      tile<Product::kManyRows>(product, operands, first, row);
    }
  }
  for (; end - row >= kTileRows; row += kTileRows) {
    tile<kTileRows>(product, operands, first, row);
  }
  if (kTileRows > 4 && end - row >= 4) {
    tile<4>(product, operands, first, row);
    row += 4;
  }
  if (end - row >= 2) {
    tile<2>(product, operands, first, row);
    row += 2;
  }
  if (row < end) tile<1>(product, operands, first, row);
}

/// Row groups [group, group_end) of a weight, times rows [row, row_end) of y. One copy for the
/// kernels of a format.
template <class Product>
HWY_NOINLINE void multiply(const Operands& operands, const uint8_t* weight, uint32_t group,
                           uint32_t group_end, uint32_t row, uint32_t row_end) {
  for (; group < group_end; ++group) {
    const uint8_t* at = weight + group * Product::group_bytes(operands.k);
    for (uint32_t lane = 0; lane < kRowGroup; lane += kLanes) {
      const uint32_t first = group * kRowGroup + lane;
      if (first >= operands.n) break;
      all_rows(Product(at, lane, operands.k), operands, first, row, row_end);
    }
  }
}

/// Tasks [begin, end) of a product: each walks all rows for its row groups of W.
template <class Product>
void linear(const LinearParams& params, uint32_t begin, uint32_t end) {
  const uint32_t groups = params.n / kRowGroup + (params.n % kRowGroup != 0 ? 1 : 0);
  const uint32_t per_task = linear_groups_per_task(params.n);
  const auto last = static_cast<uint32_t>(std::min<uint64_t>(groups, uint64_t{end} * per_task));
  const Operands operands{static_cast<const uint8_t*>(params.x),
                          params.x_row_bytes,
                          nullptr,
                          params.y,
                          params.y_stride,
                          params.n,
                          params.k,
                          params.epilogue == ATLAS_EPILOGUE_ADD};
  multiply<Product>(operands, static_cast<const uint8_t*>(params.weight), begin * per_task, last, 0,
                    *params.row_count);
}

/// Tasks [begin, end) of a product of experts.
template <class Product>
void grouped(const GroupedParams& params, uint32_t begin, uint32_t end) {
  const Operands operands{static_cast<const uint8_t*>(params.x),
                          params.x_row_bytes,
                          params.source,
                          params.y,
                          params.y_stride,
                          params.n,
                          params.k,
                          false};
  GroupedItems items(params, begin, end);
  for (GroupedItem item; items.next(item);) {
    const uint8_t* weight =
        static_cast<const uint8_t*>(params.weight) + item.expert * params.expert_bytes;
    multiply<Product>(operands, weight, item.group_begin, item.group_end, item.row_begin,
                      item.row_end);
  }
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_LINEAR_WALK_INL_H_
