// The control protocol: what fetch and commit do over several steps, and what wrong entries do not
// do.
#include <doctest/doctest.h>

#include <vector>

#include "tests/support/control_block.h"
#include "tests/support/wrong_entries.h"

namespace atlas::test {
namespace {

using namespace atlas::kernels;

/// Commits with what a `sample` would have left that drew these ids, one a sequence.
void commit_with(ControlBlock& block, const CpuPack& pack, const std::vector<uint32_t>& sampled) {
  StepControl& control = block.control();
  const auto* inputs = entry_array<SequenceInput>(control.entry, control.entry_layout.sequences);
  for (size_t s = 0; s < sampled.size(); ++s) {
    const RowSpan& span = control.step.spans[s];
    if (sampled[s] == kNoToken || span.logit_count == 0) continue;
    control.sampled[span.logit_first + span.logit_count - 1] = sampled[s];
    if ((inputs[s].flags & kSequenceCount) != 0) {
      control.counts[span.slot * control.limits.vocab + sampled[s]] += 2;
    }
  }
  block.commit(pack);
}

std::vector<uint32_t> tokens_of_rows(ControlBlock& block) {
  std::vector<uint32_t> tokens;
  for (uint32_t r = 0; r < block.control().step.row_count; ++r) {
    tokens.push_back(block.control().step.rows[r].token);
  }
  return tokens;
}

uint32_t count_of(ControlBlock& block, uint32_t slot, uint32_t token) {
  return block.control().counts[slot * block.limits().vocab + token];
}

}  // namespace

TEST_SUITE("kernels/cpu") {
  TEST_CASE("control: prefill in chunks, then decode by feedback, around the ring") {
    const CpuPack pack;
    CHECK(pack.params_digest("control_fetch") == kControlFetchParamsDigest);
    CHECK(pack.params_digest("control_commit") == kControlCommitParamsDigest);
    ControlBlock block(small_limits());
    const StepControl& control = block.control();

    Share first;
    first.slot = 4;
    first.flags = kSequenceReset;
    first.ids = {10, 11, 12};
    block.submit(1, {first}, {{4, 0, 7, 0}, {4, 1, 9, 0}});
    block.fetch(pack);
    CHECK(control.error == 0);
    CHECK(control.step.row_count == 3);
    CHECK(control.sequence_count == 1);
    CHECK(control.logit_count == 0);
    CHECK(control.block_table[4 * block.limits().max_pages] == 7);
    CHECK(control.block_table[4 * block.limits().max_pages + 1] == 9);
    for (uint32_t r = 0; r < 3; ++r) {
      CHECK(control.step.rows[r].sequence == 0);
      CHECK(control.step.rows[r].slot == 4);
      CHECK(control.step.rows[r].token == 10 + r);
      CHECK(control.step.rows[r].index == r);
      CHECK(control.step.rows[r].position[2] == static_cast<int32_t>(r));
    }
    block.commit(pack);
    CHECK(block.result(1).step == 1);
    CHECK(sampled_token(block.sequence_result(1, 0)) == kNoToken);
    CHECK(block.sequence_result(1, 0).length == 3);

    // The rest of that prompt, sampled, beside another sequence that only gets logits.
    Share rest;
    rest.slot = 4;
    rest.flags = kSequenceSample;
    rest.ids = {13, 14};
    rest.logit_count = 1;
    Share other;
    other.slot = 0;
    other.flags = kSequenceReset;
    other.reset_length = 64;  // a cached prefix
    other.ids = {20, 21, 22, 23};
    other.logit_count = 2;
    block.submit(2, {rest, other});
    block.fetch(pack);
    CHECK(tokens_of_rows(block) == std::vector<uint32_t>{13, 14, 20, 21, 22, 23});
    CHECK(control.step.rows[0].index == 3);
    CHECK(control.step.rows[2].index == 64);
    CHECK(control.step.rows[5].sequence == 1);
    CHECK(control.logit_count == 3);
    CHECK(std::vector<uint32_t>(control.logit_rows, control.logit_rows + 3) ==
          std::vector<uint32_t>{1, 4, 5});
    commit_with(block, pack, {31, kNoToken});
    CHECK(sampled_token(block.sequence_result(2, 0)) == 31);
    CHECK(block.sequence_result(2, 0).length == 5);
    CHECK(block.sequence_result(2, 1).slot == 0);
    CHECK(sampled_token(block.sequence_result(2, 1)) == kNoToken);
    CHECK(block.sequence_result(2, 1).length == 68);

    // Ids come back on the device for as long as the ring goes round.
    for (uint64_t step = 3; step < 10; ++step) {
      Share next;
      next.slot = 4;
      next.flags = kSequenceFeedBack | kSequenceSample;
      next.ids = {kNoToken};
      next.logit_count = 1;
      block.submit(step, {next});
      block.fetch(pack);
      CHECK(control.error == 0);
      CHECK(tokens_of_rows(block) == std::vector<uint32_t>{static_cast<uint32_t>(28 + step)});
      CHECK(control.step.rows[0].index == step + 2);
      commit_with(block, pack, {static_cast<uint32_t>(29 + step)});
      CHECK(block.result(step).step == step);
      CHECK(block.sequence_result(step, 0).length == step + 3);
    }
    CHECK(control.slots[4].generated == 8);
    CHECK(control.slots[0].length == 68);
  }

  TEST_CASE("control: a reset forgets length, token, error and counts") {
    const CpuPack pack;
    ControlBlock block(small_limits());
    Share share;
    share.slot = 2;
    share.flags = kSequenceReset | kSequenceSample | kSequenceCount | kSequencePromptRows;
    share.ids = {5, 6, 5};
    share.logit_count = 1;
    block.submit(1, {share});
    block.fetch(pack);
    commit_with(block, pack, {7});
    block.control().slots[2].error = kErrorNotFinite;
    CHECK(count_of(block, 2, 7) == 2);

    share.ids = {8};
    block.submit(2, {share});
    block.fetch(pack);
    CHECK(block.control().step.rows[0].index == 0);
    CHECK(count_of(block, 2, 5) == 0);
    CHECK(count_of(block, 2, 7) == 0);
    CHECK(count_of(block, 2, 8) == 1);
    commit_with(block, pack, {9});
    CHECK(block.sequence_result(2, 0).error == 0);
    CHECK(block.control().slots[2].generated == 1);
    CHECK(block.control().slots[2].last_token == 9);
  }

  TEST_CASE("control: prompt rows are marked, sampled ids counted, updates added") {
    const CpuPack pack;
    ControlBlock block(small_limits());
    Share share;
    share.slot = 1;
    share.flags = kSequenceReset | kSequenceSample | kSequenceCount | kSequencePromptRows;
    share.ids = {5, 6, 5};
    share.logit_count = 1;
    // Of a cached prefix: 6 is prompt; of output that is run again: 40 twice, 5 once.
    share.counts = {{6, 1}, {40, 4}, {5, 2}};
    block.submit(1, {share});
    block.fetch(pack);
    CHECK(count_of(block, 1, 5) == 3);
    CHECK(count_of(block, 1, 6) == 1);
    CHECK(count_of(block, 1, 40) == 4);
    commit_with(block, pack, {5});
    CHECK(count_of(block, 1, 5) == 5);

    Share next;
    next.slot = 1;
    next.flags = kSequenceFeedBack | kSequenceSample | kSequenceCount;
    next.ids = {kNoToken};
    next.logit_count = 1;
    block.submit(2, {next});
    block.fetch(pack);
    commit_with(block, pack, {5});
    CHECK(count_of(block, 1, 5) == 7);
    next.flags &= ~kSequenceCount;
    block.submit(3, {next});
    block.fetch(pack);
    commit_with(block, pack, {5});
    CHECK(count_of(block, 1, 5) == 7);
    // Another slot's counts are another's business.
    CHECK(count_of(block, 0, 5) == 0);
    CHECK(count_of(block, 2, 5) == 0);
  }

  TEST_CASE("control: feedback without a token runs id 0 and says so until the reset") {
    const CpuPack pack;
    ControlBlock block(small_limits());
    Share share;
    share.slot = 3;
    share.flags = kSequenceReset | kSequenceSample;
    share.ids = {5};
    share.logit_count = 1;
    block.submit(1, {share});
    block.fetch(pack);
    commit_with(block, pack, {kNoToken});  // its logits were not finite
    share.flags = kSequenceFeedBack | kSequenceSample;
    for (uint64_t step = 2; step < 4; ++step) {
      block.submit(step, {share});
      block.fetch(pack);
      CHECK(block.control().step.rows[0].token == 0);
      commit_with(block, pack, {1});
      CHECK(block.sequence_result(step, 0).error == kErrorNoToken);
      CHECK((block.result(step).error & kErrorNoToken) != 0);
    }
  }

  TEST_CASE("control: a wrong entry changes nothing, and the next right one runs") {
    const CpuPack pack;
    const ControlLimits limits = small_limits();
    const Share one = spoilt_share(1), two = spoilt_share(2);
    for (const auto& [name, spoil] : wrong_entries()) {
      CAPTURE(name);
      ControlBlock block(limits);
      block.submit(1, {one});
      block.fetch(pack);
      commit_with(block, pack, {9});
      Share again = one;
      again.flags &= ~kSequenceReset;
      block.submit(2, {again, two}, {{2, 1, 39, 0}});
      spoil(block, *block.ring_array<StepEntry>(2, 0),
            block.ring_array<SequenceInput>(2, block.entry_layout().sequences));
      block.fetch(pack);
      const StepControl& control = block.control();
      CHECK(control.error == kErrorEntry);
      CHECK(control.step.row_count == 0);
      CHECK(control.sequence_count == 0);
      CHECK(control.logit_count == 0);
      block.commit(pack);
      CHECK(block.result(2).step == 2);
      CHECK(block.result(2).error == kErrorEntry);
      CHECK(block.result(2).sequence_count == 0);
      CHECK(control.slots[1].length == 3);
      CHECK(control.slots[1].last_token == 9);
      CHECK(control.slots[2].length == 0);
      CHECK(control.block_table[2 * limits.max_pages + 1] == 0);
      CHECK(count_of(block, 1, 4) == 1);

      block.submit(3, {again, two}, {{2, 1, 39, 0}});
      block.fetch(pack);
      CHECK(control.error == 0);
      CHECK(control.step.rows[0].index == 3);
      CHECK(control.block_table[2 * limits.max_pages + 1] == 39);
    }
  }

  TEST_CASE("control: a step that its bucket cannot hold does not run") {
    const CpuPack pack;
    ControlBlock block(small_limits());
    Share share;
    share.flags = kSequenceReset;
    share.ids = {1, 2, 3};
    share.logit_count = 2;
    block.submit(1, {share});
    block.fetch(pack, 2, 32);
    CHECK(block.control().error == kErrorEntry);
    block.commit(pack);
    block.submit(2, {share});
    block.fetch(pack, 3, 1);
    CHECK(block.control().error == kErrorEntry);
    block.commit(pack);
    block.submit(3, {share});
    block.fetch(pack, 3, 2);
    CHECK(block.control().error == 0);
  }

  TEST_CASE("control: a step that was not submitted does not run an old entry") {
    const CpuPack pack;
    ControlBlock block(small_limits());
    Share share;
    share.flags = kSequenceReset;
    share.ids = {1};
    for (uint64_t step = 1; step <= 3; ++step) {
      block.submit(step, {share});
      block.fetch(pack);
      block.commit(pack);
    }
    block.fetch(pack);  // the ring's next entry is that of step 1
    CHECK(block.control().error == kErrorEntry);
    block.commit(pack);
    CHECK(block.result(4).step == 4);
    CHECK(block.result(4).error == kErrorEntry);
  }
}

}  // namespace atlas::test
