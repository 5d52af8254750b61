// FP8 weights in blocks of 128 x 128.
#pragma once

#include <string>

#include "tools/atlas-quantize/tensors.h"

namespace atlas::quantize {

/// Two tensors: `<module>.weight` F8_E4M3 [n, k] and `<module>.weight_scale_inv` BF16
/// [ceil(n/128), ceil(k/128)], which multiplies in spite of its name. A block's scale is its
/// largest magnitude / 448, rounded to bf16; codes are rounded with the rounded scale. `threads`
/// share rows of blocks. Source of the layout: the FP8 releases of Qwen and DeepSeek.
EncodedLinear encode_fp8(const std::string& module, const Matrix& weight, uint32_t threads);

}  // namespace atlas::quantize
