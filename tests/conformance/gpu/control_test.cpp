// The control block's kernels of every GPU pack: after any entry, right or wrong, every array holds
// what the CPU pack leaves.
#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/gpu_control.h"
#include "tests/support/wrong_entries.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

/// Steps of random sequences, and after each kernel the question whether both sides are the same.
class ControlRun {
 public:
  ControlRun(const std::string& platform, const ControlLimits& limits, uint32_t seed)
      : block_(limits), twin_(platform), gpu_(twin_.machine(), block_), random_(seed) {}

  ControlBlock& block() { return block_; }
  GpuControl& gpu() { return gpu_; }
  uint32_t taken() const { return taken_; }
  uint32_t drafted() const { return drafted_; }

  /// Fetches what has been submitted; false if the entry was refused.
  bool fetch(uint32_t max_rows = ~0u, uint32_t max_logit_rows = ~0u) {
    gpu_.push();
    block_.fetch(twin_.pack(), max_rows, max_logit_rows);
    launch<ControlFetchParams>("control_fetch", kControlFetchParamsDigest,
                               {gpu_.control(), max_rows, max_logit_rows});
    const bool wrong = block_.control().error != 0;
    CHECK(gpu_.differences(wrong) == "");
    taken_ += wrong ? 0 : 1;
    gpu_.push();
    return !wrong;
  }
  void draft_begin() {
    gpu_.push();
    twin_.pack().run("draft_begin", DraftBeginParams{&block_.control()}, 1);
    launch<DraftBeginParams>("draft_begin", kDraftBeginParamsDigest, {gpu_.control()});
    CHECK(gpu_.differences() == "");
    drafted_ += block_.control().draft.row_count;
  }
  void commit() {
    gpu_.push();
    block_.commit(twin_.pack());
    launch<ControlCommitParams>("control_commit", kControlCommitParamsDigest, {gpu_.control()});
    CHECK(gpu_.differences() == "");
  }

  /// A step of random shares; some of them are wrong in one thing or another.
  void random_step() {
    const uint64_t step = block_.control().next_step;
    block_.submit(step, random_shares(), random_pages());
    if (fetch(below(10) == 0 ? below(80) : ~0u)) {
      sample();
      draft_begin();
      draft();
    }
    commit();
  }

 private:
  template <typename Params>
  void launch(const std::string& name, uint64_t digest, const Params& params) {
    twin_.run_gpu(name, digest, 1, params, random_() % 4);
  }
  uint32_t below(uint32_t end) { return end == 0 ? 0 : static_cast<uint32_t>(random_() % end); }

  std::vector<PageUpdate> random_pages() {
    const ControlLimits& limits = block_.limits();
    std::vector<PageUpdate> pages(below(4) == 0 ? limits.max_page_updates : below(3));
    // Few places, so that some are updated more than once.
    for (PageUpdate& page : pages)
      page = {below(3), below(limits.max_pages), below(limits.pool_pages), 0};
    return pages;
  }

  std::vector<Share> random_shares() {
    const ControlLimits& limits = block_.limits();
    std::vector<uint32_t> slots(limits.max_slots);
    for (uint32_t i = 0; i < slots.size(); ++i) slots[i] = i;
    std::shuffle(slots.begin(), slots.end(), random_);
    slots.resize(
        std::min(limits.max_sequences, below(4) == 0 ? limits.max_sequences : 1 + below(6)));
    std::vector<Share> shares;
    uint32_t rows = limits.max_rows, logit_rows = limits.max_logit_rows;
    uint32_t updates = limits.max_count_updates, biases = limits.max_biases;
    const uint32_t spares = limits.anchors / 2;
    for (const uint32_t slot : slots) {
      const SlotState& state = block_.control().slots[slot];
      Share share;
      share.slot = slot;
      if (below(3) != 0) share.flags |= kSequenceSample;
      if (below(3) == 0) share.flags |= kSequenceCount;
      if (below(2) == 0) share.flags |= kSequencePromptRows;
      if (state.length == 0 || below(6) == 0) {
        share.flags |= kSequenceReset;
        share.reset_length = limits.anchor_tokens * below(4);
        // Anchors of the lower half are read, those of the upper half are spare.
        if (share.reset_length != 0) share.anchor = below(spares);
        for (uint32_t i = 0; i < below(4); ++i) share.history.push_back(below(limits.vocab));
      } else if (below(2) == 0) {
        share.flags |= kSequenceFeedBack;
      }
      if (spares != 0) share.spare_anchor = spares + below(spares);
      const bool feed_back = (share.flags & kSequenceFeedBack) != 0;
      const uint32_t count = feed_back       ? 1 + below(kMaxVerifyRows)
                             : below(5) == 0 ? 1 + below(40)
                                             : 1 + below(3);
      if (count > rows || (feed_back && count > logit_rows)) continue;
      for (uint32_t r = 0; r < count; ++r)
        share.ids.push_back(feed_back ? kNoToken : below(limits.vocab));
      share.logit_count = feed_back ? count : std::min({count, logit_rows, below(3) + 1});
      rows -= count;
      logit_rows -= share.logit_count;
      if (below(4) == 0) {
        share.score = 1;
        share.score_top = below(kMaxTopLogprobs + 1);
        share.targets.assign(share.logit_count, below(limits.vocab));
      }
      if ((share.flags & kSequenceCount) != 0 && updates > 4) {
        for (uint32_t i = 0; i < below(5); ++i) share.counts.push_back({below(4), below(9)});
        updates -= static_cast<uint32_t>(share.counts.size());
        share.sampling.presence_penalty = 0.5f;
      }
      if (biases > 2 && below(5) == 0) {
        share.biases.push_back({below(limits.vocab), 1.0f});
        --biases;
      }
      if (below(5) == 0) share.next_token = below(limits.vocab);
      if (below(200) == 0) share.spare_anchor = kNoAnchor;  // wrong if it is needed
      shares.push_back(share);
    }
    return shares;
  }

  /// What `sample` might have left: tokens, accepted drafts, errors of some slots, scores.
  void sample() {
    StepControl& control = block_.control();
    const auto* inputs = entry_array<SequenceInput>(control.entry, control.entry_layout.sequences);
    for (uint32_t s = 0; s < control.sequence_count; ++s) {
      RowSpan& span = control.step.spans[s];
      for (uint32_t i = 0; i < span.logit_count; ++i) {
        control.scores[span.logit_first + i].target = below(1000);
        control.scores[span.logit_first + i].top_logprobs[kMaxTopLogprobs - 1] = 0.25f;
      }
      if ((inputs[s].flags & kSequenceSample) == 0 || span.logit_count == 0) continue;
      if (below(20) == 0) control.slots[span.slot].error |= kErrorNotFinite;
      if (control.slots[span.slot].error != 0) continue;
      const bool feed_back = (inputs[s].flags & kSequenceFeedBack) != 0;
      span.accepted = feed_back ? below(span.logit_count) : 0;
      for (uint32_t i = 0; i < span.logit_count; ++i) {
        if (!feed_back && i + 1 != span.logit_count) continue;
        if (i <= span.accepted || !feed_back) {
          control.sampled[span.logit_first + i] = below(block_.limits().vocab);
        }
      }
    }
  }

  /// What `draft_sample` might have left.
  void draft() {
    StepControl& control = block_.control();
    for (uint32_t r = 0; r < control.draft.row_count; ++r) {
      SlotState& slot = control.slots[control.draft.rows[r].slot];
      slot.draft_count = below(block_.limits().drafts + 1);
      for (uint32_t i = 0; i < slot.draft_count; ++i) slot.drafts[i] = below(block_.limits().vocab);
    }
  }

  ControlBlock block_;
  GpuTwin twin_;
  GpuControl gpu_;
  std::mt19937 random_;
  uint32_t taken_ = 0, drafted_ = 0;
};

ControlLimits anchored_limits() {
  ControlLimits limits = small_limits();
  limits.anchor_tokens = 32;
  limits.anchors = 20;
  limits.drafts = 3;
  limits.max_count_updates = 40;
  return limits;
}

}  // namespace

TEST_SUITE("conformance") {
  TEST_CASE("gpu: the control block goes the CPU's way, step by step") {
    for (const char* platform : kGpuPlatforms) {
      for (const uint32_t seed : {1u, 2u, 3u}) {
        CAPTURE(platform);
        CAPTURE(seed);
        ControlRun run(platform, seed == 3 ? small_limits() : anchored_limits(), seed);
        for (uint32_t step = 0; step < 60; ++step) {
          CAPTURE(step);
          run.random_step();
        }
        CHECK(run.taken() > 40);
        CHECK(run.drafted() > 10);
      }
    }
  }

  TEST_CASE("gpu: the control block holds more sequences than a block has threads") {
    ControlLimits limits = anchored_limits();
    limits.max_sequences = 600;
    limits.max_slots = 700;
    limits.max_rows = 2500;
    limits.max_logit_rows = 1800;
    limits.max_page_updates = 70;
    limits.max_biases = limits.max_count_updates = 300;
    for (const char* platform : kGpuPlatforms) {
      CAPTURE(platform);
      ControlRun run(platform, limits, 5);
      for (uint32_t step = 0; step < 8; ++step) run.random_step();
      CHECK(run.taken() > 4);
    }
  }

  TEST_CASE("gpu: a wrong entry changes nothing, and the next right one runs") {
    for (const char* platform : kGpuPlatforms) {
      for (const auto& [name, spoil] : wrong_entries()) {
        CAPTURE(platform);
        CAPTURE(name);
        ControlRun run(platform, small_limits(), 1);
        ControlBlock& block = run.block();
        const Share one = spoilt_share(1), two = spoilt_share(2);
        Share again = one;
        again.flags &= ~kSequenceReset;
        block.submit(1, {one});
        CHECK(run.fetch());
        run.commit();
        block.submit(2, {again, two}, {{2, 1, 39, 0}});
        spoil(block, *block.ring_array<StepEntry>(2, 0),
              block.ring_array<SequenceInput>(2, block.entry_layout().sequences));
        CHECK(!run.fetch());
        run.commit();
        CHECK(block.result(2).error == kErrorEntry);
        block.submit(3, {again, two}, {{2, 1, 39, 0}});
        CHECK(run.fetch());
        run.commit();
      }
    }
  }

  TEST_CASE("gpu: entries with wrong anchors are refused") {
    for (const char* platform : kGpuPlatforms) {
      for (uint32_t kind = 0; kind < 6; ++kind) {
        CAPTURE(platform);
        CAPTURE(kind);
        ControlRun run(platform, anchored_limits(), 1);
        Share share;
        share.flags = kSequenceReset;
        share.reset_length = 32;
        share.anchor = 3;
        share.spare_anchor = 4;
        share.ids.assign(33, 1);
        if (kind == 1) share.reset_length = 33;
        if (kind == 2) share.anchor = kNoAnchor;
        if (kind == 3) share.spare_anchor = 3;
        if (kind == 4) share.spare_anchor = kNoAnchor;
        if (kind == 5) share.anchor = 20;
        run.block().submit(1, {share});
        CHECK(run.fetch() == (kind == 0));
        run.commit();
      }
    }
  }

  TEST_CASE("gpu: a step that its bucket cannot hold, or that was not submitted, does not run") {
    for (const char* platform : kGpuPlatforms) {
      ControlRun run(platform, small_limits(), 1);
      Share share;
      share.flags = kSequenceReset;
      share.ids = {1, 2, 3};
      share.logit_count = 2;
      run.block().submit(1, {share});
      CHECK(!run.fetch(2, 32));
      run.commit();
      run.block().submit(2, {share});
      CHECK(!run.fetch(3, 1));
      run.commit();
      run.block().submit(3, {share});
      CHECK(run.fetch(3, 2));
      run.commit();
      CHECK(!run.fetch());
      run.commit();
    }
  }
}

}  // namespace atlas::test
