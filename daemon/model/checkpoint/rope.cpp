// Each variant starts from theta^(-2i/d) and bends it; powers are rounded once to float32.
#include "daemon/model/checkpoint/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace atlas::model {
namespace {

/// theta^(2i/d): the exponent and the power are float32, as a tensor library computes them.
std::vector<float> periods(const RopeSettings& settings) {
  std::vector<float> out(settings.rotary_dim / 2);
  const auto theta = static_cast<float>(settings.theta);
  for (uint32_t i = 0; i < out.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(settings.rotary_dim);
    out[i] =
        static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
  }
  return out;
}

/// Long waves are stretched by the factor, short ones stay, those between are blended.
void scale_llama3(const RopeSettings& settings, std::vector<float>* frequencies) {
  const auto factor = static_cast<float>(settings.factor);
  const auto low = static_cast<float>(settings.low_freq_factor);
  const auto span = static_cast<float>(settings.high_freq_factor - settings.low_freq_factor);
  const auto original = static_cast<float>(settings.original_positions);
  const auto longest = static_cast<float>(settings.original_positions / settings.low_freq_factor);
  const auto shortest = static_cast<float>(settings.original_positions / settings.high_freq_factor);
  for (float& frequency : *frequencies) {
    const float wave = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wave < shortest) continue;
    if (wave > longest) {
      frequency /= factor;
      continue;
    }
    const float keep = (original / wave - low) / span;
    frequency = (1.0f - keep) * frequency / factor + keep * frequency;
  }
}

/// The index at which a wave turns `turns` times within the original context.
double yarn_index(const RopeSettings& settings, double turns) {
  return settings.rotary_dim *
         std::log(settings.original_positions / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(settings.theta));
}

std::vector<float> yarn(const RopeSettings& settings, const std::vector<float>& period) {
  double low = yarn_index(settings, settings.beta_fast);
  double high = yarn_index(settings, settings.beta_slow);
  if (settings.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, settings.rotary_dim - 1.0);
  // A ramp of no width would divide by zero.
  if (low == high) high += 0.001;
  std::vector<float> out(period.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float keep = 1.0f - ramp;
    const float stretched = 1.0f / (static_cast<float>(settings.factor) * period[i]);
    out[i] = stretched * (1.0f - keep) + 1.0f / period[i] * keep;
  }
  return out;
}

double yarn_mscale(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

}  // namespace

std::string_view rope_scaling_name(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "default";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kLlama3:
      return "llama3";
    case RopeScaling::kYarn:
      return "yarn";
  }
  return "default";
}

std::vector<float> rope_inverse_frequencies(const RopeSettings& settings) {
  std::vector<float> out = periods(settings);
  if (settings.scaling == RopeScaling::kYarn) return yarn(settings, out);
  for (float& value : out) value = 1.0f / value;
  if (settings.scaling == RopeScaling::kLinear) {
    for (float& value : out) value /= static_cast<float>(settings.factor);
  }
  if (settings.scaling == RopeScaling::kLlama3) scale_llama3(settings, &out);
  return out;
}

float rope_attention_scale(const RopeSettings& settings) {
  if (settings.scaling != RopeScaling::kYarn) return 1.0f;
  if (settings.attention_factor != 0) return static_cast<float>(settings.attention_factor);
  if (settings.mscale != 0 && settings.mscale_all_dim != 0) {
    return static_cast<float>(yarn_mscale(settings.factor, settings.mscale) /
                              yarn_mscale(settings.factor, settings.mscale_all_dim));
  }
  return static_cast<float>(yarn_mscale(settings.factor, 1));
}

}  // namespace atlas::model
