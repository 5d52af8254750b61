// sample and draft_sample for every GPU pack, each after a scan: sample_scan and draft_scan find
// the largest logit of each part of the vocabulary, which everything else needs. Their contracts
// are core.h's.
//
// Blocks are (part, draw). A draw's parts meet in its last one to arrive, and so do a sequence's
// draws. Arrivals are counted where the results will stand: in `sampled`, which control_fetch sets
// to kNoToken, and in a span's `accepted`, which begins as 0.
#pragma once

#include "kernels/common/gpu/control_entry.h"
#include "kernels/common/gpu/sample_cut.h"

namespace atlas::kernels {

/// What a scan leaves of a part.
struct alignas(16) ScanPart {
  uint32_t order, id;  // of its largest logit, the lowest id of equal ones
  uint32_t bad;        // NaN or +infinity among them
  uint32_t reserved;
};

/// Brings a draw of a sequence to shared memory; all threads come. `place` is that of its scratch.
ATLAS_DEVICE Draw* shared_draw(const StepControl* control, const SequenceInput* input,
                               const float* logits, float* scratch, uint64_t place,
                               uint32_t position, const RowInput* counted_rows, uint32_t counted) {
  using namespace device;
  Draw* shared = shared_memory<Draw>(SampleShared::kDraw);
  if (thread_index() == 0) {
    Draw draw{};
    draw.vocab = load(&control->limits.vocab);
    draw.logits = logits;
    draw.sampling = load_struct(&input->sampling);
    const auto* biases = reinterpret_cast<const LogitBias*>(load(&control->entry) +
                                                            load(&control->entry_layout.biases));
    draw.biases = biases + draw.sampling.bias_first;
    if (has_penalties(draw.sampling)) {
      draw.counts = load(&control->counts) + uint64_t{load(&input->slot)} * draw.vocab;
    }
    draw.counted_rows = counted_rows;
    draw.counted = counted;
    draw.position = position;
    draw.scratch =
        reinterpret_cast<unsigned char*>(scratch) + place * sample_draw_bytes(draw.vocab);
    store_struct(shared, draw);
  }
  block_barrier();  // the draw is there for all
  return shared;
}

/// The largest logit of this block's part.
ATLAS_DEVICE void scan_part(const Draw* draw, uint32_t part) {
  using namespace device;
  const DrawLogits logits(draw, shared_memory<uint32_t>(SampleShared::kSpecial));
  const uint32_t vocab = load(&draw->vocab), begin = part * sample_part_tokens(vocab);
  const uint32_t end = smaller(begin + sample_part_tokens(vocab), vocab);
  OrderedId best = {0, kNoToken};
  bool bad = false;
  for (uint32_t token = begin + thread_index(); token < end; token += kSampleThreads) {
    const float x = logits(token);
    bad = bad || !(x < bits_as<float>(0x7f800000u));
    const uint32_t order = order_of(x);
    if (order > best.order) best = {order, token};
  }
  uint32_t* reduce = shared_memory<uint32_t>(SampleShared::kReduce);
  bad = block_any<kSampleThreads>(bad, reduce);
  best = block_first<kSampleThreads>(best, reduce);
  if (thread_index() != 0) return;
  store(scratch_of<ScanPart>(draw, SampleScratch::kScans) + part,
        ScanPart{best.order, best.id, bad ? 1u : 0u, 0});
}

/// The largest logit of a draw, and whether it may be sampled at all. Every warp finds it.
struct Scanned {
  uint32_t order, id;
  bool finite;
};
ATLAS_DEVICE Scanned scanned(const Draw* draw) {
  using namespace device;
  ScanPart part = {0, kNoToken, 0, 0};
  if (lane_index() < sample_parts(load(&draw->vocab))) {
    part = load(scratch_of<const ScanPart>(draw, SampleScratch::kScans) + lane_index());
  }
  const OrderedId first = warp_first({part.order, part.id});
  return {first.order, first.id, !any(part.bad != 0) && first.order > kLowestOrder};
}

/// Counts this block's arrival; the last of `count` blocks, of which each adds 1 to `counter`,
/// knows what the others wrote. All threads come.
ATLAS_DEVICE bool arrives_last(uint32_t* counter, uint32_t begin, uint32_t count) {
  using namespace device;
  uint32_t* shared = shared_memory<uint32_t>(SampleShared::kReduce);
  block_barrier();  // what the block wrote comes before its arrival; and `shared` is free
  if (thread_index() == 0) {
    const uint32_t before = atomic_add<Order::kAcqRel>(counter, 1u);
    store(shared, before == begin + count - 1 ? 1u : 0u);
  }
  block_barrier();  // what the last block has acquired is known to all its threads
  const bool last = load(shared) != 0;
  block_barrier();  // read by all before `shared` is used again
  return last;
}

/// Without top_k and top_p: the token of this part with the largest z + noise. A thread does four
/// tokens that share a Philox block.
ATLAS_DEVICE OrderedId noisy_part(const Draw* draw, const DrawLogits& logits, float max,
                                  uint32_t part) {
  using namespace device;
  const float temperature = load(&draw->sampling.temperature);
  const uint32_t vocab = load(&draw->vocab), begin = part * sample_part_tokens(vocab);
  const uint32_t end = smaller(begin + sample_part_tokens(vocab), vocab);
  NoisyBest best(draw);
  ATLAS_ROLLED
  for (uint32_t group = begin + thread_index() / 16 * 64; group < end;
       group += kSampleThreads * 4) {
    uint32_t token = group + thread_index() % 16;
    float x[4];  // under way together
    ATLAS_UNROLL
    for (uint32_t w = 0; w < 4; ++w)
      x[w] = token + 16 * w < end ? logits.raw(token + 16 * w) : 0.0f;
    PhiloxWords words{};
    bool made = false;
    ATLAS_ROLLED
    for (uint32_t w = 0; w < 4; ++w, token += 16) {
      if (token >= end) break;
      const float z = divide(logits.adjusted(x[0], token) - max, temperature);
      x[0] = x[1];
      x[1] = x[2];
      x[2] = x[3];
      if (!best.hopes(z) || !best.keeps(z)) continue;
      if (!made) words = best.words(group / 64 * 16 + thread_index() % 16);
      made = true;
      best.take(z, token, word_of(words, token));
    }
  }
  return block_first<kSampleThreads>(best.first(), shared_memory<uint32_t>(SampleShared::kReduce));
}

/// With them: sums of this part's intervals, and the lowest key of each chunk.
ATLAS_DEVICE void sum_part(const Draw* draw, const DrawLogits& logits, float max, uint32_t part) {
  using namespace device;
  const bool weights = !keeps_top_k(draw);  // of the first filter
  const float temperature = load(&draw->sampling.temperature);
  auto* lowest = scratch_of<uint32_t>(draw, SampleScratch::kChunkKeys);
  const uint32_t vocab = load(&draw->vocab);
  const uint32_t of_part = sample_part_tokens(vocab) / kSampleChunk;
  const uint32_t end = smaller((part + 1) * of_part, sample_chunks(vocab));
  IntervalSums sums;
  ATLAS_ROLLED
  for (uint32_t chunk = part * of_part + warp_index(); chunk < end;
       chunk += kSampleThreads / kWarpLanes) {
    uint32_t low = kDroppedKey;
    ATLAS_ROLLED
    for (uint32_t i = lane_index(); i < kSampleChunk; i += kWarpLanes) {
      const uint32_t token = chunk * kSampleChunk + i;
      if (token >= vocab) continue;
      const uint32_t key = key_of(divide(logits(token) - max, temperature));
      low = smaller(low, key);
      if (key >= kDroppedKey) continue;
      sums.add(interval_of(key), mass_of(key, weights));
    }
    low = warp_min(low);
    if (lane_index() == 0) store(lowest + chunk, low);
  }
  uint64_t* masses = shared_memory<uint64_t>(SampleShared::kMasses);
  uint32_t* counts = shared_memory<uint32_t>(SampleShared::kCounts);
  block_sums(sums, masses, counts);
  if (thread_index() >= kSampleIntervals) return;
  const uint32_t at = part * kSampleIntervals + thread_index();
  store(scratch_of<uint64_t>(draw, SampleScratch::kMasses) + at, load(masses + thread_index()));
  store(scratch_of<uint32_t>(draw, SampleScratch::kCounts) + at, load(counts + thread_index()));
}

/// What a block may do for a draw with a temperature. Gives whether it was the last of the draw,
/// and then `token` is it, or kNoToken.
ATLAS_DEVICE bool draw_token(const Draw* draw, const Scanned& found, uint32_t part,
                             uint32_t* arrivals, uint32_t arrivals_begin, uint32_t& token) {
  using namespace device;
  const uint32_t parts = sample_parts(load(&draw->vocab));
  const DrawLogits logits(draw, shared_memory<uint32_t>(SampleShared::kSpecial));
  const float max = value_of(found.order);
  const bool filters = keeps_top_k(draw) || keeps_top_p(draw);
  auto* bests = scratch_of<OrderedId>(draw, SampleScratch::kBests);
  if (found.finite && filters) {
    sum_part(draw, logits, max, part);
  } else if (found.finite) {
    const OrderedId best = noisy_part(draw, logits, max, part);
    if (thread_index() == 0) store_struct(bests + part, best);
  }
  if (!arrives_last(arrivals, arrivals_begin, parts)) return false;
  token = kNoToken;
  if (found.finite && filters) {
    token = Chooser(draw, logits, max).choose();
  } else if (found.finite) {
    OrderedId best = {0, kNoToken};
    if (lane_index() < parts) best = load_struct(bests + lane_index());
    token = warp_first(best).id;
  }
  return true;
}

// ---- The step's rows ----

/// Where a logit row's draw stands in its sequence.
struct RowDraw {
  const SequenceInput* input;
  const RowSpan* span;
  uint32_t row;     // of the step
  uint32_t first;   // of the span's logit rows that are drawn
  uint32_t number;  // of the draw in the sequence
  bool drawn;
};
ATLAS_DEVICE RowDraw row_draw(const StepControl* control, uint32_t logit_row) {
  using device::load;
  RowDraw found{};
  if (logit_row >= load(&control->logit_count)) return found;
  found.row = load(load(&control->logit_rows) + logit_row);
  const uint32_t s = load(&load(&control->step.rows)[found.row].sequence);
  found.span = load(&control->step.spans) + s;
  found.input = reinterpret_cast<const SequenceInput*>(load(&control->entry) +
                                                       load(&control->entry_layout.sequences)) +
                s;
  const uint32_t flags = load(&found.input->flags);
  if ((flags & kSequenceSample) == 0) return found;
  found.first = (flags & kSequenceFeedBack) != 0 ? 0 : load(&found.span->logit_count) - 1;
  found.number = logit_row - load(&found.span->logit_first) - found.first;
  found.drawn = found.number < kSampleDraws;
  return found;
}

/// The draw of a logit row. Tokens that count before it do so if all drafts so far are accepted; if
/// not, its token is not looked at.
ATLAS_DEVICE const Draw* draw_of_row(const SampleParams& params, const RowDraw& at,
                                     uint32_t logit_row) {
  using device::load;
  const StepControl* control = params.control;
  const RowInput* row = load(&control->step.rows) + at.row;
  const uint32_t counted = (load(&at.input->flags) & kSequenceCount) != 0 ? at.number : 0;
  return shared_draw(control, at.input,
                     params.logits + uint64_t{logit_row} * load(&control->limits.vocab),
                     params.scratch, uint64_t{load(&row->sequence)} * kSampleDraws + at.number,
                     load(&row->index), row + 1 - counted, counted);
}

ATLAS_DEVICE_KERNEL(sample_scan, SampleParams, kSampleThreads) {
  using namespace device;
  const StepControl* control = params.control;
  const uint32_t part = block_index(), logit_row = block_index<1>();
  const RowDraw at = row_draw(control, logit_row);
  // A slot with an error gives no token until its reset.
  if (!at.drawn || part >= sample_parts(load(&control->limits.vocab)) ||
      load(&load(&control->slots)[load(&at.span->slot)].error) != 0) {
    return;
  }
  scan_part(draw_of_row(params, at, logit_row), part);
}

/// Gives out a sequence's tokens as long as drafts are accepted. One thread, after all its draws.
ATLAS_DEVICE void accept_tokens(const SampleParams& params, const RowDraw& at) {
  using namespace device;
  StepControl* control = params.control;
  const uint32_t vocab = load(&control->limits.vocab), slot = load(&at.span->slot);
  const uint32_t logit_first = load(&at.span->logit_first) + at.first;
  const uint32_t draws = load(&at.span->logit_count) - at.first;
  const uint32_t first_row = load(&at.span->first_row);
  const uint32_t last_row = first_row + load(&at.span->row_count) - 1;
  const bool counts = (load(&at.input->flags) & kSequenceCount) != 0;
  const RowInput* rows = load(&control->step.rows);
  const uint32_t row_of_first = last_row + 1 - draws;
  uint32_t* sampled = load(&control->sampled) + logit_first;
  const unsigned char* scratch =
      reinterpret_cast<const unsigned char*>(params.scratch) +
      uint64_t{load(&rows[at.row].sequence)} * kSampleDraws * sample_draw_bytes(vocab);
  uint32_t accepted = 0;
  bool going = true;
  for (uint32_t i = 0; i < draws; ++i) {
    uint32_t token = kNoToken;
    if (going) {
      token = load(reinterpret_cast<const uint32_t*>(scratch + i * sample_draw_bytes(vocab) +
                                                     SampleScratch::kToken));
      if (token == kNoToken) {
        uint32_t* error = &load(&control->slots)[slot].error;
        store(error, load(error) | uint32_t{kErrorNotFinite});
      } else {
        accepted = i;
        if (counts) {
          uint32_t* count = load(&control->counts) + uint64_t{slot} * vocab + token;
          store(count, load(count) + 2);
        }
      }
      const uint32_t row = row_of_first + i;
      going = token != kNoToken && row != last_row && load(&rows[row + 1].token) == token;
    }
    store(sampled + i, token);
  }
  store(&const_cast<RowSpan*>(at.span)->accepted, accepted);
}

ATLAS_DEVICE_KERNEL(sample, SampleParams, kSampleThreads) {
  using namespace device;
  StepControl* control = params.control;
  const uint32_t part = block_index(), logit_row = block_index<1>();
  const RowDraw at = row_draw(control, logit_row);
  if (!at.drawn || part >= sample_parts(load(&control->limits.vocab))) return;
  // A greedy draw is its first part's. Others leave before they read what that one may change.
  const bool greedy = is_greedy(&at.input->sampling);
  if (greedy && part != 0) return;
  if (load(&load(&control->slots)[load(&at.span->slot)].error) != 0) return;
  const Draw* draw = draw_of_row(params, at, logit_row);
  const Scanned found = scanned(draw);
  uint32_t token = found.finite ? found.id : kNoToken;
  if (!greedy) {
    uint32_t* arrivals = load(&control->sampled) + logit_row;
    if (!draw_token(draw, found, part, arrivals, kNoToken, token)) return;
  }
  if (thread_index() == 0) store(scratch_of<uint32_t>(draw, SampleScratch::kToken), token);
  const uint32_t draws = load(&at.span->logit_count) - at.first;
  if (!arrives_last(&const_cast<RowSpan*>(at.span)->accepted, 0, draws)) return;
  if (thread_index() == 0) accept_tokens(params, at);
}

// ---- The draft head's rows ----

ATLAS_DEVICE const SequenceInput* input_of_draft(const StepControl* control, uint32_t r) {
  using device::load;
  const auto* inputs = reinterpret_cast<const SequenceInput*>(
      load(&control->entry) + load(&control->entry_layout.sequences));
  return inputs + load(&load(&control->draft.rows)[r].sequence);
}
ATLAS_DEVICE const Draw* draw_of_draft(const DraftSampleParams& params, const SequenceInput* input,
                                       uint32_t r) {
  using device::load;
  const StepControl* control = params.control;
  return shared_draw(control, input, params.logits + uint64_t{r} * load(&control->limits.vocab),
                     params.scratch, uint64_t{r} * kSampleDraws,
                     load(&load(&control->draft.rows)[r].index) + 1, nullptr, 0);
}

ATLAS_DEVICE_KERNEL(draft_scan, DraftSampleParams, kSampleThreads) {
  using namespace device;
  const uint32_t part = block_index(), r = block_index<1>();
  if (r >= load(&params.control->draft.row_count) ||
      part >= sample_parts(load(&params.control->limits.vocab))) {
    return;
  }
  scan_part(draw_of_draft(params, input_of_draft(params.control, r), r), part);
}

ATLAS_DEVICE_KERNEL(draft_sample, DraftSampleParams, kSampleThreads) {
  using namespace device;
  StepControl* control = params.control;
  const uint32_t part = block_index(), r = block_index<1>();
  if (r >= load(&control->draft.row_count) || part >= sample_parts(load(&control->limits.vocab))) {
    return;
  }
  const SequenceInput* input = input_of_draft(control, r);
  const bool greedy = is_greedy(&input->sampling);
  if (greedy && part != 0) return;  // before what the first part changes is read
  const Draw* draw = draw_of_draft(params, input, r);
  const Scanned found = scanned(draw);
  uint32_t token = found.finite ? found.id : kNoToken;
  RowInput* row = load(&control->draft.rows) + r;
  RowSpan* span = load(&control->draft.spans) + r;
  if (!greedy && !draw_token(draw, found, part, &span->accepted, 0, token)) return;
  if (thread_index() != 0) return;
  store(&span->accepted, 0u);  // the next draft's arrivals begin anew
  SlotState* slot = load(&control->slots) + load(&row->slot);
  const uint32_t drafts = load(&slot->draft_count);
  if (token != kNoToken && drafts == params.number) {
    store(&slot->drafts[drafts], token);
    store(&slot->draft_count, drafts + 1);
  }
  store(&row->token, token == kNoToken ? 0 : token);
  store(&row->index, load(&row->index) + 1);
  ATLAS_UNROLL
  for (uint32_t p = 0; p < 3; ++p) store(&row->position[p], load(&row->position[p]) + 1);
  store(&span->index, load(&span->index) + 1);
}

}  // namespace atlas::kernels
