// One draw of `sample` or `draft_sample`: its logits after bias and penalties, and its noise.
#pragma once

#include "kernels/common/core.h"
#include "kernels/common/core_grids.h"
#include "kernels/common/gpu/block.h"
#include "kernels/common/gpu/order.h"
#include "kernels/common/philox.h"

namespace atlas::kernels {

/// What a draw is made of; a block keeps it in shared memory. Tokens that were accepted earlier in
/// the same step count as output too: those of `counted` rows, which are the drafts.
struct Draw {
  const float* logits;
  const LogitBias* biases;
  const uint32_t* counts;  // null: no penalties
  const RowInput* counted_rows;
  unsigned char* scratch;  // see SampleScratch
  SamplingInput sampling;
  uint32_t vocab;
  uint32_t position;  // of the row whose logits these are
  uint32_t counted;
  uint32_t reserved;
};

static_assert(sizeof(Draw) <= 128);

ATLAS_DEVICE bool is_greedy(const SamplingInput* sampling) {
  return !(device::load(&sampling->temperature) > 0.0f);
}
ATLAS_DEVICE bool keeps_top_k(const Draw* draw) {
  const uint32_t k = device::load(&draw->sampling.top_k);
  return k != 0 && k < device::load(&draw->vocab);
}
ATLAS_DEVICE bool keeps_top_p(const Draw* draw) {
  return device::load(&draw->sampling.top_p) < 1.0f;
}
/// One of SampleScratch's arrays.
template <typename T>
ATLAS_DEVICE T* scratch_of(const Draw* draw, uint64_t offset) {
  return reinterpret_cast<T*>(device::load(&draw->scratch) + offset);
}

/// A draw's logits after stages 1 and 2, computed where they are read.
class DrawLogits {
 public:
  /// All threads of the block come: tokens with a bias are marked in a table, several tokens to a
  /// bit, so that the others' reads stay cheap.
  ATLAS_DEVICE DrawLogits(const Draw* draw, uint32_t* special)
      : draw_(draw), special_(special), logits_(device::load(&draw->logits)) {
    using namespace device;
    const uint32_t biases = load(&draw->sampling.bias_count);
    penalized_ = load(&draw->counts) != nullptr;
    const uint32_t counted = penalized_ ? load(&draw->counted) : 0;
    marked_ = biases != 0 || counted != 0;
    if (!marked_) return;
    for (uint32_t i = thread_index(); i < kSpecialWords; i += kSampleThreads) {
      store(special + i, 0u);
    }
    block_barrier();  // empty before the first mark
    for (uint32_t i = thread_index(); i < biases; i += kSampleThreads) {
      mark(load(&load(&draw->biases)[i].token));
    }
    if (thread_index() < counted) mark(load(&load(&draw->counted_rows)[thread_index()].token));
    block_barrier();  // all marks are there
  }

  /// As the model gave it.
  ATLAS_DEVICE float raw(uint32_t token) const { return device::load(logits_ + token); }
  ATLAS_DEVICE float operator()(uint32_t token) const { return adjusted(raw(token), token); }
  /// From the raw one.
  ATLAS_DEVICE float adjusted(float x, uint32_t token) const {
    using device::load;
    if (!adjusts()) return x;
    const bool special = marked_ && (load(special_ + token / 32 % kSpecialWords) >> token % 32 & 1);
    if (special) {
      const LogitBias* biases = load(&draw_->biases);
      const uint32_t count = load(&draw_->sampling.bias_count);
      ATLAS_ROLLED
      for (uint32_t i = 0; i < count; ++i) {
        if (load(&biases[i].token) == token) x = x + load(&biases[i].bias);
      }
    }
    if (!penalized_) return x;
    uint32_t count = load(load(&draw_->counts) + token);
    if (special) {
      const RowInput* rows = load(&draw_->counted_rows);
      const uint32_t counted = load(&draw_->counted);
      ATLAS_ROLLED
      for (uint32_t i = 0; i < counted; ++i) count += load(&rows[i].token) == token ? 2 : 0;
    }
    if (count == 0) return x;
    const auto times = static_cast<float>(count >> 1);
    const float repetition = load(&draw_->sampling.repetition_penalty);
    x = x < 0.0f ? x * repetition : device::divide(x, repetition);
    x = x - load(&draw_->sampling.frequency_penalty) * times;
    return times > 0.0f ? x - load(&draw_->sampling.presence_penalty) : x;
  }

 private:
  /// Whether any logit may differ from the model's.
  ATLAS_DEVICE bool adjusts() const { return marked_ || penalized_; }
  ATLAS_DEVICE void mark(uint32_t token) const {
    device::atomic_or(special_ + token / 32 % kSpecialWords, 1u << token % 32);
  }

  const Draw* draw_;
  uint32_t* special_;
  const float* logits_;
  bool marked_, penalized_;
};

/// No noise is larger: -log(-log1p(-2^-32)) is 22.18; and none is below -3.1.
inline constexpr float kLargestNoise = 22.25f;
inline constexpr float kLeastNoise = -3.25f;

/// The four words of a Philox block: the noise of tokens 64 g + 16 w + l, where block is 16 g + l.
struct PhiloxWords {
  uint32_t w0, w1, w2, w3;
};
ATLAS_DEVICE PhiloxWords philox_words(uint32_t block, uint32_t position, uint64_t seed) {
  PhiloxWords words{block, position, 0, 0};
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  ATLAS_UNROLL
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * words.w0;
    const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * words.w2;
    words = {
        static_cast<uint32_t>(product1 >> 32) ^ words.w1 ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ words.w3 ^ key1, static_cast<uint32_t>(product0)};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return words;
}
/// That of one token.
ATLAS_DEVICE uint32_t word_of(const PhiloxWords& words, uint32_t token) {
  const uint32_t low = (token & 16) != 0 ? words.w1 : words.w0;
  const uint32_t high = (token & 16) != 0 ? words.w3 : words.w2;
  return (token & 32) != 0 ? high : low;
}
/// Gumbel noise from one of these words.
ATLAS_DEVICE float noise_of(uint32_t word) {
  return -device::log_positive(device::exponential_from_bits(word >> 1));
}

/// The largest z + noise of the tokens that one thread has seen.
class NoisyBest {
 public:
  ATLAS_DEVICE explicit NoisyBest(const Draw* draw)
      : first_{0, kNoToken}, bound_(kLeastNoise), draw_(draw) {}

  /// Whether a token with this z may be the largest yet. If not, no noise makes it so.
  ATLAS_DEVICE bool hopes(float z) const { return z + kLargestNoise >= bound_; }
  /// Whether min_p keeps it.
  ATLAS_DEVICE bool keeps(float z) const {
    const float least = device::load(&draw_->sampling.min_p);
    return !(least > 0.0f) || device::exp(z) >= (least < 1.0f ? least : 1.0f);
  }
  ATLAS_DEVICE PhiloxWords words(uint32_t block) const {
    return philox_words(block, device::load(&draw_->position), device::load(&draw_->sampling.seed));
  }
  ATLAS_DEVICE void take(float z, uint32_t token, uint32_t word) {
    const float noisy = z + noise_of(word);
    const OrderedId own = {order_of(noisy), token};
    if (own.order < first_.order || (own.order == first_.order && own.id > first_.id)) return;
    first_ = own;
    bound_ = noisy > bound_ ? noisy : bound_;
  }
  ATLAS_DEVICE void consider(float z, uint32_t token) {
    if (hopes(z) && keeps(z)) {
      take(z, token, word_of(words(token / 64 * 16 + token % 16), token));
    }
  }
  ATLAS_DEVICE const OrderedId& first() const { return first_; }

 private:
  OrderedId first_;
  float bound_;  // the largest z is 0, so that it begins as the least noise
  const Draw* draw_;
};

}  // namespace atlas::kernels
