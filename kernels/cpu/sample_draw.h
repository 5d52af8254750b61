// What one draw of `sample` reads.
#pragma once

#include <cstdint>

#include "kernels/common/control.h"

namespace atlas::kernels::cpu {

struct SampleDraw {
  const SamplingInput& sampling;
  const float* logits;  // [vocab]
  uint32_t vocab;
  uint32_t position;        // of the row whose logits these are
  const LogitBias* biases;  // [sampling.bias_count]
  const uint32_t* counts;   // [vocab] as StepControl::counts; null: no penalties
  float* scratch;           // [vocab]
};

}  // namespace atlas::kernels::cpu
