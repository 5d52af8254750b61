// Raw logits of a list of ids, written as they come.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "tools/common/local_model.h"

namespace atlas::eval {

/// Writes [tokens, vocab] as little-endian float32 to `path`. Chunks of `chunk` rows; a chunk of 1
/// runs as decode steps after the first row. After an error a regular file is removed, so that no
/// cut file is taken for a whole one.
Status write_logits(const tools::LocalModel& model, const std::vector<engine::TokenId>& ids,
                    const std::string& path, uint32_t chunk);

}  // namespace atlas::eval
