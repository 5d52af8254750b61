// The hashed n-gram embedding for every GPU pack: ngram_keys and feed_take, which ask the host for
// rows and wait for them, ngram_gate, and ngram_conv. Their contracts are core.h's.
#pragma once

#include "kernels/common/core.h"
#include "kernels/common/gpu/quads.h"

namespace atlas::kernels {

/// Which record of the ring is the running step's.
ATLAS_DEVICE uint64_t ring_place(const StepControl* control, uint64_t step) {
  return (step - 1) % device::load(&control->limits.ring_entries);
}

/// The hash of a row's id and those before it: of bigrams (s 1), trigrams (s 2), ...
ATLAS_DEVICE uint64_t mixed_ids(const NgramKeysParams& params, const RowSpan& span,
                                const SlotState* slot, const RowInput* rows, uint32_t row,
                                uint32_t s) {
  using namespace device;
  uint64_t mix = load(&rows[row].token) * load(params.multipliers);
  bool ended = false;  // behind an end of text or the sequence's begin nothing counts
  for (uint32_t back = 1; back <= s; ++back) {
    uint32_t id = params.eos_id;
    if (!ended) {
      const uint32_t of_span = row - span.first_row;
      id = back <= of_span ? load(&rows[row - back].token)
                           : load(&slot->history[back - of_span - 1]);
      ended = id == params.eos_id || id == kNoToken;
      if (ended) id = params.eos_id;
    }
    mix ^= id * load(params.multipliers + back);
  }
  return mix;
}

/// A thread a key.
ATLAS_DEVICE_KERNEL(ngram_keys, NgramKeysParams, kKeysThreads) {
  using namespace device;
  const StepControl* control = params.control;
  const uint64_t step = load(&control->next_step);
  const uint32_t row_count = load(&control->step.row_count);
  const RowInput* rows = load(&control->step.rows);
  const RowSpan* spans = load(&control->step.spans);
  unsigned char* request = params.requests + ring_place(control, step) * params.request_bytes;
  auto* keys = reinterpret_cast<uint64_t*>(request + feed_keys_offset());
  const uint32_t heads_of_size = params.heads / (params.ngram - 1);
  const uint64_t count = uint64_t{row_count} * params.heads;
  for (uint64_t i = thread_index(); i < count; i += kKeysThreads) {
    const auto row = static_cast<uint32_t>(i / params.heads);
    const auto head = static_cast<uint32_t>(i % params.heads);
    const RowSpan* span = spans + load(&rows[row].sequence);
    RowSpan own;
    own.first_row = load(&span->first_row);
    const SlotState* slot = load(&control->slots) + load(&span->slot);
    const uint64_t mix = mixed_ids(params, own, slot, rows, row, head / heads_of_size + 1);
    store(keys + i, load(params.head_offsets + head) + mix % load(params.head_sizes + head));
  }
  block_barrier();  // all keys are written before the step's number says so
  if (thread_index() != 0) return;
  auto* head = reinterpret_cast<FeedRequest*>(request);
  store(&head->row_count, row_count);
  store(&head->heads, params.heads);
  // Pairs with the host's acquire load: who sees the number sees the keys before it.
  atomic_store<Order::kRelease, Scope::kSystem>(&head->step, step);
}

/// Whether the answer to `step` is there, within the time.
ATLAS_DEVICE bool await_answer(const unsigned char* answer, uint64_t step, uint64_t timeout_ns) {
  using namespace device;
  auto* word = const_cast<uint64_t*>(reinterpret_cast<const uint64_t*>(answer));
  // Pairs with the host's release store: who sees the number sees the rows and their status.
  if (atomic_load<Order::kAcquire, Scope::kSystem>(word) == step) return true;
  const uint64_t start = clock_ns();
  bool late = timeout_ns == 0;
  for (;;) {
    // A last look after the time has passed.
    if (atomic_load<Order::kAcquire, Scope::kSystem>(word) == step) return true;
    if (late) return false;
    late = clock_ns() - start >= timeout_ns;
    pause();
  }
}

/// A block a row; its first thread waits.
ATLAS_DEVICE_KERNEL(feed_take, FeedTakeParams, kQuadThreads) {
  using namespace device;
  StepControl* control = params.control;
  const uint32_t row = block_index();
  if (row >= load(&control->step.row_count)) return;
  const uint64_t step = load(&control->next_step);
  const unsigned char* answer = params.answers + ring_place(control, step) * params.answer_bytes;
  uint32_t* shared_error = shared_memory<uint32_t>();
  if (thread_index() == 0) {
    // Where one row has waited in vain the others only look, or a step would wait once for each.
    const bool late = (atomic_load(&control->error) & kErrorFeedLate) != 0;
    uint32_t error = kErrorFeedLate;
    if (await_answer(answer, step, late ? 0 : params.timeout_ns)) {
      const auto* status = reinterpret_cast<const uint32_t*>(answer + feed_status_offset());
      error = row < params.max_rows ? load(status + row) : uint32_t{kErrorFeed};
    } else {
      atomic_or(&control->error, uint32_t{kErrorFeedLate});
    }
    if (error != 0) {
      const uint32_t slot = load(&load(&control->step.rows)[row].slot);
      atomic_or(&load(&control->slots)[slot].error, error);
    }
    store(shared_error, error);
  }
  block_barrier();  // what the first thread has acquired is known to all
  const bool good = load(shared_error) == 0;
  const auto* from = reinterpret_cast<const float*>(answer + feed_rows_offset(params.max_rows)) +
                     uint64_t{row} * params.width;
  float* y = params.y + uint64_t{row} * params.y_stride;
  const bool aligned = has_quads(from, params.width) && has_quads(y, 0);
  for (uint32_t i = 4 * thread_index(); i < params.width; i += 4 * kQuadThreads) {
    store_quad(y, i, params.width, aligned,
               good ? load_quad(from, i, params.width, aligned) : Quad{});
  }
}

/// sign(g) sqrt(max(|g|, 1e-6)); 0 of 0, NaN of NaN.
ATLAS_DEVICE float signed_root(float g) {
  if (g == 0.0f) return 0.0f;
  const float size = g < 0.0f ? -g : g;
  const float root = device::square_root(size < 1e-6f ? 1e-6f : size);
  return g < 0.0f ? -root : root;
}

/// Grid (rows, streams). The sum is a chain in each of 16 lanes; the whole block brings elements to
/// shared memory, so that the chains wait for nothing farther away.
ATLAS_DEVICE_KERNEL(ngram_gate, NgramGateParams, kGateThreads) {
  using namespace device;
  const uint64_t row = block_index(), s = block_index<1>();
  if (row >= load(params.row_count)) return;
  const uint32_t n = params.n;
  const float* key = params.key + row * params.key_stride + s * n;
  const float* query = params.query + row * params.query_stride + s * n;
  float* keys = shared_memory<float>();
  float* queries = keys + kGateChunk;
  float* shared_gate = queries + kGateChunk;
  float sum = 0.0f;
  for (uint32_t first = 0; first < n; first += kGateChunk) {
    const uint32_t count = n - first < kGateChunk ? n - first : kGateChunk;
    if (first != 0) block_barrier();  // the last chunk has been read before this one overwrites it
    for (uint32_t i = 4 * thread_index(); i < count; i += 4 * kGateThreads) {
      store_quad(keys, i, count, true, load_quad(key + first, i, count, has_quads(key, 0)));
      store_quad(queries, i, count, true, load_quad(query + first, i, count, has_quads(query, 0)));
    }
    block_barrier();  // elements are written before lanes of other warps read them
    if (thread_index() < 16) sum = add_products(sum, keys, queries, count);
  }
  if (thread_index() < 16) {
    for (uint32_t apart = 8; apart > 0; apart /= 2) sum += shuffle_xor(sum, apart, 0xffff);
    if (thread_index() == 0) {
      const float root = square_root(static_cast<float>(n));
      store(shared_gate, sigmoid(signed_root(divide(sum, root))));
    }
  }
  block_barrier();  // the gate is written before all read it
  const float gate = load(shared_gate);
  const float* value = params.value + row * params.value_stride;
  float* y = params.y + row * params.y_stride + s * n;
  const bool aligned = has_quads(value, 0) && has_quads(y, 0);
  for (uint32_t i = 4 * thread_index(); i < n; i += 4 * kGateThreads) {
    Quad quad = load_quad(value, i, n, aligned);
    ATLAS_UNROLL
    for (uint32_t j = 0; j < 4; ++j) quad.f[j] = gate * quad.f[j];
    store_quad(y, i, n, aligned, quad);
  }
}

/// One channel of a sequence's inputs: of its rows in the step, its slot's ring and its anchors.
class ChannelInputs {
 public:
  ATLAS_DEVICE ChannelInputs(const NgramConvParams& params, const RowSpan* span, uint32_t channel)
      : params_(params),
        channel_(channel),
        reach_(params.dilation * (params.taps - 1)),
        ring_rows_(conv_ring_rows(reach_)) {
    using device::load;
    const uint32_t slot = load(&span->slot);
    first_row_ = load(&span->first_row);
    row_count_ = load(&span->row_count);
    index_ = load(&span->index);
    anchor_ = load(&span->anchor);
    anchor_index_ = load(&span->anchor_index);
    next_anchor_ = load(&span->next_anchor);
    next_index_ = load(&span->next_index);
    ring_ = reinterpret_cast<float*>(params.slots + slot * params.slot_stride);
  }
  ATLAS_DEVICE uint32_t first_row() const { return first_row_; }
  ATLAS_DEVICE uint32_t row_count() const { return row_count_; }
  ATLAS_DEVICE uint32_t reach() const { return reach_; }

  /// The input `back` (at most the reach) positions before the span's row `row`; null before the
  /// sequence.
  ATLAS_DEVICE const float* before(uint32_t row, uint32_t back) const {
    if (back <= row) {
      return params_.in + (uint64_t{first_row_} + row - back) * params_.in_stride + channel_;
    }
    if (index_ + uint64_t{row} < back) return nullptr;
    const uint32_t position = index_ + row - back;
    if (position >= anchor_index_) return ring_row(position);
    if (anchor_ == kNoAnchor || anchor_index_ - position > reach_) return nullptr;
    return anchor_row(anchor_, reach_ + position - anchor_index_);
  }

  /// Writes what precedes next_index into the next anchor. Before remember, which may overwrite
  /// some of it.
  ATLAS_DEVICE void leave_anchor() const {
    if (next_anchor_ == kNoAnchor) return;
    for (uint32_t j = 0; j < reach_; ++j) {
      // Row and distance of position next_index - reach + j, which may lie before the span.
      const int64_t row = int64_t{next_index_} - reach_ + j - index_;
      const float* from =
          row < 0 ? before(0, static_cast<uint32_t>(-row)) : before(static_cast<uint32_t>(row), 0);
      device::store(anchor_row(next_anchor_, j), from != nullptr ? device::load(from) : 0.0f);
    }
  }

  /// Writes the rows' inputs into the ring, as many of the last ones as it holds.
  ATLAS_DEVICE void remember() const {
    uint32_t row = row_count_ - (row_count_ < ring_rows_ ? row_count_ : ring_rows_);
    for (; row < row_count_; ++row) {
      device::store(ring_row(index_ + row), device::load(before(row, 0)));
    }
  }

 private:
  ATLAS_DEVICE float* ring_row(uint32_t position) const {
    return ring_ + uint64_t{position % ring_rows_} * params_.channels + channel_;
  }
  ATLAS_DEVICE float* anchor_row(uint32_t anchor, uint32_t row) const {
    return reinterpret_cast<float*>(params_.anchors + anchor * params_.anchor_stride) +
           uint64_t{row} * params_.channels + channel_;
  }

  const NgramConvParams& params_;
  uint32_t channel_, reach_, ring_rows_;
  uint32_t first_row_, row_count_, index_, anchor_, anchor_index_, next_anchor_, next_index_;
  float* ring_;
};

/// Index of the first span that ends behind row `row`.
ATLAS_DEVICE uint32_t span_at(const RowSpan* spans, uint32_t count, uint32_t row) {
  uint32_t low = 0, high = count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (device::load(&spans[middle].first_row) + device::load(&spans[middle].row_count) > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Grid (blocks of kConvChannels channels, blocks of kConvRows rows). A row's inputs lie in the
/// step, but for those of a sequence's first rows, which lie in the ring that the sequence's last
/// rows overwrite: the block in which a sequence begins does all of that, whichever rows those are.
ATLAS_DEVICE_KERNEL_BLOCKS(ngram_conv, NgramConvParams, kConvThreads, 2) {
  using namespace device;
  static_assert(kConvThreads == kConvChannels);
  const uint32_t taps = params.taps;
  const uint32_t channel = block_index() * kConvChannels + thread_index();
  const uint32_t rows = load(&params.rows->row_count), first = block_index<1>() * kConvRows;
  const uint32_t last = first + kConvRows < rows ? first + kConvRows : rows;
  if (taps == 0 || taps > kMaxConvTaps || channel >= params.channels || first >= rows) return;
  float weights[kMaxConvTaps];
  ATLAS_UNROLL
  for (uint32_t k = 0; k < kMaxConvTaps; ++k) {
    weights[k] = k < taps ? load(params.weight + uint64_t{channel} * taps + k) : 0.0f;
  }
  const RowSpan* spans = load(&params.rows->spans);
  const uint32_t span_count = load(&params.rows->span_count);
  for (uint32_t s = span_at(spans, span_count, first); s < span_count; ++s) {
    const ChannelInputs inputs(params, spans + s, channel);
    if (inputs.first_row() >= last) return;
    if (inputs.row_count() == 0) continue;
    const auto run = [&](uint32_t i) {
      const uint64_t row = uint64_t{inputs.first_row()} + i;
      const float* gated = params.gated + row * params.gated_stride + channel;
      float* x = params.x + row * params.x_stride + channel;
      float sum = 0.0f;
      ATLAS_UNROLL
      for (uint32_t k = 0; k < kMaxConvTaps; ++k) {
        if (k >= taps) break;
        const float* from = inputs.before(i, params.dilation * (taps - 1 - k));
        if (from != nullptr) sum = fma(weights[k], load(from), sum);
      }
      store(x, (load(x) + load(gated)) + silu(sum));
    };
    const bool begins = inputs.first_row() >= first;
    // The span's rows that are this block's, but for those that reach back behind its begin.
    const uint32_t skipped = begins ? 0 : first - inputs.first_row();
    const uint32_t end = last - inputs.first_row() < inputs.row_count() ? last - inputs.first_row()
                                                                        : inputs.row_count();
    for (uint32_t i = skipped > inputs.reach() ? skipped : inputs.reach(); i < end; ++i) run(i);
    if (!begins) continue;
    const uint32_t early =
        inputs.reach() < inputs.row_count() ? inputs.reach() : inputs.row_count();
    for (uint32_t i = 0; i < early; ++i) run(i);
    inputs.leave_anchor();
    inputs.remember();
  }
}

}  // namespace atlas::kernels
