// A linear as EXL3: scaled, rotated, rounded to a trellis.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tools/atlas-quantize/hessian.h"
#include "tools/atlas-quantize/tensors.h"
#include "tools/atlas-quantize/trellis.h"

namespace atlas::quantize {

struct Exl3Options {
  uint32_t bits = 4;  // 1..8
  Codebook codebook = Codebook::kMul1;
  uint64_t seed = 0;           // of the random signs
  bool error_feedback = true;  // LDLQ; false rounds every tile by itself
  uint32_t threads = 1;
  std::function<void(double)> on_part;  // hears the share that is done, one call at a time
};

/// Four tensors under exllamav3's names: `<module>.trellis` I16 [k/16, n/16, 16 K], `.suh` F16 [k],
/// `.svh` F16 [n], and the codebook's marker `.mul1` or `.mcg` I32 [] (none for 3inst): W =
/// diag(suh) Hk What Hn diag(svh), W [k, n]. Sizes are padded with zeros to multiples of 128;
/// outputs of zeros alone get svh 0. `weight` is [n, k] as a checkpoint has it, and `moments` its
/// inputs'. Without moments, or where they are of no use (`note` says so), the identity stands for
/// them. Deterministic for a seed, whatever `threads`.
EncodedLinear encode_exl3(const std::string& module, const Matrix& weight, const Moments& moments,
                          const Exl3Options& options);

}  // namespace atlas::quantize
