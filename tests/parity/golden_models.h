// The tiny checkpoints of tests/golden/qwen with the logits that transformers computes from them.
#pragma once

#include <string>
#include <vector>

#include "daemon/engine/request.h"

namespace atlas::testing {

using Tokens = std::vector<engine::TokenId>;

struct GoldenModel {
  std::string name, architecture, folder;
  uint32_t vocab = 0;
  std::vector<Tokens> sequences;
  std::vector<float> logits;        // [tokens of all sequences in order, vocab]
  std::vector<float> draft_logits;  // the same, a row less for each sequence; empty: no draft head

  uint32_t longest() const;
  uint32_t tokens() const;  // of all sequences
};

/// All models of tests/golden/qwen/index.json. Ends the test with a message if a file is not as
/// make_golden.py writes it.
const std::vector<GoldenModel>& golden_models();

/// Little-endian float32 values of a whole file.
std::vector<float> read_floats(const std::string& path);

}  // namespace atlas::testing
