// NVFP4 weights under ModelOpt's names: 4-bit codes, a scale for 16 inputs, one for the tensor.
#pragma once

#include <string>

#include "daemon/base/status.h"
#include "tools/atlas-quantize/hessian.h"
#include "tools/atlas-quantize/tensors.h"

namespace atlas::quantize {

/// How the scale of a block of 16 is chosen.
enum class Nvfp4Scales {
  kMax,          // its largest magnitude is the code 6
  kFourOverSix,  // the code 6 or the code 4, whichever has the smaller squared error
  kMse,          // the e4m3 scale with the smallest squared error of those near the maximum's
};
Result<Nvfp4Scales> nvfp4_scales(const std::string& name);

/// Three tensors: `<module>.weight` U8 [n, k/2] (low nibble: even input), `<module>.weight_scale`
/// F8_E4M3 [n, k/16], `<module>.weight_scale_2` F32 []: value = e2m1 * e4m3 * weight_scale_2.
/// 16 divides k. weight_scale_2 is the tensor's largest magnitude / (6 * 448), with four-over-six
/// / (6 * 256), which leaves room for scales that map a maximum to 4.
/// With moments of its inputs, what a block's rounding gets wrong is made up for by the blocks that
/// follow (`feed_back`); without, or where they are of no use (`note` says so), every block is
/// rounded by itself. The layout is the same.
/// Source: NVIDIA Model Optimizer's nvfp4_tensor; Four Over Six (arXiv 2512.02010).
EncodedLinear encode_nvfp4(const std::string& module, const Matrix& weight, const Moments& moments,
                           Nvfp4Scales scales, uint32_t threads);

}  // namespace atlas::quantize
