// Entries that control_fetch must refuse: each is right but for one thing.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "tests/support/control_block.h"

namespace atlas::test {

/// A sequence of step 2 as the spoilers below expect it: two of these, in slots 1 and 2, and one
/// page update. In step 1 the one in slot 1 began.
inline Share spoilt_share(uint32_t slot) {
  using namespace kernels;
  Share share;
  share.slot = slot;
  share.flags = kSequenceReset | kSequenceSample | kSequenceCount;
  share.ids = {1, 2, 3};
  share.logit_count = 2;
  share.score_top = 3;
  share.biases = {{4, 1.0f}};
  share.counts = {{4, 1}};
  return share;
}

/// Spoils the entry of step 2: its head, its sequences, or what the block's ring holds of it.
using Spoil = std::function<void(ControlBlock&, kernels::StepEntry&, kernels::SequenceInput*)>;
inline std::vector<std::pair<const char*, Spoil>> wrong_entries() {
  using namespace kernels;
  return {
      {"step", [](auto&, auto& head, auto*) { head.step = 3; }},
      {"too many rows", [](auto&, auto& head, auto*) { head.row_count = 65; }},
      {"rows that no sequence has", [](auto&, auto& head, auto*) { ++head.row_count; }},
      {"too many sequences", [](auto&, auto& head, auto*) { head.sequence_count = 9; }},
      {"huge count", [](auto&, auto& head, auto*) { head.sequence_count = ~0u; }},
      {"logit rows", [](auto&, auto& head, auto*) { head.logit_count = 33; }},
      {"page updates", [](auto&, auto& head, auto*) { head.page_update_count = 17; }},
      {"biases", [](auto&, auto& head, auto*) { head.bias_count = 17; }},
      {"count updates", [](auto&, auto& head, auto*) { head.count_update_count = 17; }},
      {"slot", [](auto&, auto&, auto* s) { s[1].slot = 10; }},
      {"slot twice", [](auto&, auto&, auto* s) { s[1].slot = 1; }},
      {"gap between shares", [](auto&, auto&, auto* s) { s[1].first_row = 4; }},
      {"row count beyond", [](auto&, auto&, auto* s) { s[1].row_count = 4; }},
      {"row count that overflows", [](auto&, auto&, auto* s) { s[1].row_count = ~0u - 1; }},
      {"logits beyond rows",
       [](auto&, auto& head, auto* s) {
         s[1].logit_count = 4;
         head.logit_count += 2;
       }},
      {"logit first", [](auto&, auto&, auto* s) { s[1].logit_first = 0; }},
      {"alternatives", [](auto&, auto&, auto* s) { s[0].score_top = 21; }},
      {"bias range", [](auto&, auto&, auto* s) { s[1].sampling.bias_first = 2; }},
      {"bias range that overflows", [](auto&, auto&, auto* s) { s[1].sampling.bias_first = ~0u; }},
      {"count range", [](auto&, auto&, auto* s) { s[1].count_count = 2; }},
      {"penalties without counts",
       [](auto&, auto&, auto* s) {
         s[1].flags &= ~kSequenceCount;
         s[1].sampling.presence_penalty = 1.0f;
       }},
      {"temperature", [](auto&, auto&, auto* s) { s[1].sampling.temperature = 0.0f / 0.0f; }},
      {"sample without logits",
       [](auto&, auto& head, auto* s) {
         s[1].logit_count = 0;
         head.logit_count -= 2;
       }},
      {"feedback of several rows", [](auto&, auto&, auto* s) { s[1].flags |= kSequenceFeedBack; }},
      {"positions", [](auto&, auto&, auto* s) { s[1].reset_length = 254; }},
      {"positions that overflow", [](auto&, auto&, auto* s) { s[1].reset_length = ~0u - 1; }},
      {"id",
       [](auto& block, auto&, auto*) {
         block.template ring_array<uint32_t>(2, block.entry_layout().ids)[5] = 50;
       }},
      {"target",
       [](auto& block, auto&, auto*) {
         block.template ring_array<uint32_t>(2, block.entry_layout().targets)[3] = 50;
       }},
      {"bias id",
       [](auto& block, auto&, auto*) {
         block.template ring_array<LogitBias>(2, block.entry_layout().biases)[1].token = 50;
       }},
      {"count id",
       [](auto& block, auto&, auto*) {
         block.template ring_array<CountUpdate>(2, block.entry_layout().count_updates)[1].token =
             50;
       }},
      {"page",
       [](auto& block, auto&, auto*) {
         block.template ring_array<PageUpdate>(2, block.entry_layout().page_updates)[0].page = 40;
       }},
      {"page index",
       [](auto& block, auto&, auto*) {
         block.template ring_array<PageUpdate>(2, block.entry_layout().page_updates)[0].index = 4;
       }},
      {"page slot",
       [](auto& block, auto&, auto*) {
         block.template ring_array<PageUpdate>(2, block.entry_layout().page_updates)[0].slot = 10;
       }},
  };
}

}  // namespace atlas::test
