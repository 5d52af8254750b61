// The two kernels that a weight format's Product class makes: its product, and its product of
// experts.
#pragma once

#include "kernels/cpu/kernel.h"

/// Inside the namespace of a target: the functions `linear_name` and `grouped_name` over the
/// Product class that follows them.
#define ATLAS_CPU_PRODUCT(linear_name, grouped_name, ...)                        \
  void linear_name(const LinearParams& params, uint32_t begin, uint32_t end) {   \
    linear<__VA_ARGS__>(params, begin, end);                                     \
  }                                                                              \
  void grouped_name(const GroupedParams& params, uint32_t begin, uint32_t end) { \
    grouped<__VA_ARGS__>(params, begin, end);                                    \
  }

/// Once, inside namespace atlas::kernels::cpu: the kernels that run them.
#define ATLAS_CPU_PRODUCT_KERNELS(linear_name, grouped_name) \
  HWY_EXPORT(linear_name);                                   \
  HWY_EXPORT(grouped_name);                                  \
  ATLAS_CPU_KERNEL(linear_name, LinearParams) {              \
    HWY_DYNAMIC_DISPATCH(linear_name)(params, begin, end);   \
  }                                                          \
  ATLAS_CPU_KERNEL(grouped_name, GroupedParams) {            \
    HWY_DYNAMIC_DISPATCH(grouped_name)(params, begin, end);  \
  }
