// The walk of a product over its tasks, row groups, lanes and rows, for all weight formats.
//
// A Product is kLanes outputs: `tile<R>(row, sums)` leaves the product of rows row .. row + R - 1
// in registers. Each tile walks k once; after the first, the group's weights come from a near
// cache.
#if defined(ATLAS_CPU_LINEAR_WALK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATLAS_CPU_LINEAR_WALK_INL_H_
#undef ATLAS_CPU_LINEAR_WALK_INL_H_
#else
#define ATLAS_CPU_LINEAR_WALK_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "kernels/common/cpu_linear.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
ATLAS_VNNI_BEGIN
namespace atlas::kernels::cpu::HWY_NAMESPACE {

/// Rows of a full tile: sums of all kinds fill the registers.
constexpr uint32_t kTileRows = kLanes == 16 ? 8 : 4;

/// Where a tile's outputs go: rows of y at the first of kLanes outputs, `count` of which exist.
struct Outputs {
  float* y;
  size_t stride;
  uint32_t count;
  bool add;
};

template <uint32_t kRows, class Product>
void tile(const Product& product, const Outputs& out, uint32_t row) {
  VF sums[kRows];
  product.template tile<kRows>(row, sums);
  unrolled<kRows>([&](auto r) ATLAS_INLINE_LAMBDA {
    store_outputs(sums[r], out.y + (row + r) * out.stride, out.count, out.add);
  });
}

template <class Product>
void all_rows(const Product& product, const Outputs& out, uint32_t rows) {
  uint32_t row = 0;
  if constexpr (requires { Product::kManyRows; }) {
    for (; row + Product::kManyRows <= rows; row += Product::kManyRows) {
      tile<Product::kManyRows>(product, out, row);
    }
  }
  for (; row + kTileRows <= rows; row += kTileRows) tile<kTileRows>(product, out, row);
  if (kTileRows > 4 && row + 4 <= rows) {
    tile<4>(product, out, row);
    row += 4;
  }
  if (row + 2 <= rows) {
    tile<2>(product, out, row);
    row += 2;
  }
  if (row < rows) tile<1>(product, out, row);
}

/// Tasks [begin, end) of a product: each walks all rows for its row groups of W.
template <class Product>
void linear(const LinearParams& params, uint32_t begin, uint32_t end) {
  const uint32_t rows = *params.row_count;
  const uint32_t groups = params.n / kRowGroup + (params.n % kRowGroup != 0 ? 1 : 0);
  const uint32_t per_task = linear_groups_per_task(params.n);
  const auto last = static_cast<uint32_t>(std::min<uint64_t>(groups, uint64_t{end} * per_task));
  for (uint32_t group = begin * per_task; group < last; ++group) {
    const uint8_t* weight =
        static_cast<const uint8_t*>(params.weight) + group * Product::group_bytes(params.k);
    for (uint32_t lane = 0; lane < kRowGroup; lane += kLanes) {
      const uint32_t first = group * kRowGroup + lane;
      if (first >= params.n) break;
      const Outputs out{params.y + first, params.y_stride, params.n - first,
                        params.epilogue == ATLAS_EPILOGUE_ADD};
      all_rows(Product(params, weight, lane), out, rows);
    }
  }
}

}  // namespace atlas::kernels::cpu::HWY_NAMESPACE
ATLAS_VNNI_END
HWY_AFTER_NAMESPACE();

#endif  // ATLAS_CPU_LINEAR_WALK_INL_H_
