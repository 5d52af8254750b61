// Inverse frequencies of rotary position embeddings, in the variants that checkpoints ask for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"

namespace atlas::model {

enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

/// What a checkpoint says about rope, before frequencies are computed from it.
struct RopeSettings {
  double theta = 10000;
  uint32_t rotary_dim = 0;  ///< elements of a head that rotate; even
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  double original_positions = 0;                     ///< llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  double attention_factor = 0;                       ///< yarn; 0: from `factor`
  double mscale = 0, mscale_all_dim = 0;             ///< yarn; 0: absent
  bool truncate = true;                              ///< yarn: whole bounds of the ramp
};

/// "default", "linear", "llama3" or "yarn", as Hugging Face spells it.
std::string_view rope_scaling_name(RopeScaling scaling);

/// Frequencies [rotary_dim / 2] in radians a position, in the arithmetic of `transformers` (float32
/// where it uses tensors), so that angles far into a context agree with it.
/// Source: transformers' modeling_rope_utils; YaRN: https://arxiv.org/abs/2309.00071, section 3.
std::vector<float> rope_inverse_frequencies(const RopeSettings& settings);

/// What cosines and sines are multiplied by: 1 except for yarn.
float rope_attention_scale(const RopeSettings& settings);

}  // namespace atlas::model
