// What every operation of a step wrote, as files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/atlas-eval/trace.h"

namespace atlas::eval {

struct Dump {
  uint64_t tensors = 0, bytes = 0;
};

/// Runs `ids` as one prefill step and writes each operation's output into `folder`, which is made
/// if it is absent: little-endian float32 [rows, columns] each, and index.json, written last, which
/// names them in order. `layer`: only operations of that layer. Errors: kInvalidArgument for a
/// folder that is not empty or cannot be written, or a model without that layer.
Result<Dump> write_dump(Tracer& tracer, const std::vector<engine::TokenId>& ids,
                        const std::string& folder, std::optional<uint32_t> layer);

}  // namespace atlas::eval
