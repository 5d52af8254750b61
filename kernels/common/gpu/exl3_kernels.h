// The kernels of one EXL3 codebook for every GPU pack. The number of bits a weight is a constant of
// the code that runs: a launch chooses among them once.
#pragma once

#include "kernels/common/gpu/exl3_few.h"
#include "kernels/common/gpu/exl3_gather.h"
#include "kernels/common/gpu/exl3_many.h"

namespace atlas::kernels {

template <uint32_t kHalfBits>
struct Exl3Units {
  static constexpr uint32_t kUnits = kHalfBits;
};

/// call(Exl3Units<units>()), for a number of half bits that the codebook has.
template <Exl3Codebook kCodebook, typename Call>
ATLAS_DEVICE void exl3_with_units(uint32_t units, const Call& call) {
  if (units == 2) return call(Exl3Units<2>());
  if (units == 4) return call(Exl3Units<4>());
  if (units == 6) return call(Exl3Units<6>());
  if (units == 8) return call(Exl3Units<8>());
  if (units == 10) return call(Exl3Units<10>());
  if (units == 12) return call(Exl3Units<12>());
  if (units == 14) return call(Exl3Units<14>());
  if (units == 16) return call(Exl3Units<16>());
  if constexpr (kCodebook == Exl3Codebook::kMul1) {
    if (units == 3) return call(Exl3Units<3>());
    if (units == 5) return call(Exl3Units<5>());
    if (units == 7) return call(Exl3Units<7>());
  }
}

}  // namespace atlas::kernels

#define ATLAS_EXL3_KERNELS(name, codebook)                                                        \
  ATLAS_EARLY_KERNEL(exl3_few_##name, Exl3FewParams, kExl3FewThreads, 4) {                        \
    exl3_with_units<codebook>(                                                                    \
        params.units, [&](auto units) { exl3_few<codebook, decltype(units)::kUnits>(params); });  \
  }                                                                                               \
  ATLAS_DEVICE_KERNEL(exl3_many_##name, Exl3ProductGpuParams, exl3_many_threads(kExl3Lanes)) {    \
    exl3_with_units<codebook>(                                                                    \
        params.units, [&](auto units) { exl3_many<codebook, decltype(units)::kUnits>(params); }); \
  }                                                                                               \
  ATLAS_DEVICE_KERNEL(exl3_gather_##name, Exl3GatherParams, kExl3GatherThreads) {                 \
    exl3_gather<codebook>(params);                                                                \
  }

/// exl3_few for one number of half bits: fewer registers than all together need, so that `blocks`
/// of them fit a multiprocessor.
#define ATLAS_EXL3_FEW(name, codebook, units, blocks)                           \
  ATLAS_EARLY_KERNEL(exl3_few_##name, Exl3FewParams, kExl3FewThreads, blocks) { \
    exl3_few<codebook, units>(params);                                          \
  }
