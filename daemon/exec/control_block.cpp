#include "daemon/exec/control_block.h"

#include <atomic>
#include <cstring>

namespace atlas::exec {

namespace {

template <typename T>
T* device_pointer(const BufferTable& buffers, plan::BufferId id) {
  return reinterpret_cast<T*>(buffers.at(id).address());
}

template <typename T>
std::span<T> array(unsigned char* base, uint64_t offset, uint32_t count) {
  return {reinterpret_cast<T*>(base + offset), count};
}

}  // namespace

Result<std::shared_ptr<ControlBlock>> ControlBlock::create(const plan::Plan& plan,
                                                           const BufferTable& buffers,
                                                           Stream& stream) {
  std::shared_ptr<ControlBlock> block(new ControlBlock);
  block->limits_ = plan.limits;
  block->entry_layout_ = kernels::entry_layout(plan.limits);
  block->result_layout_ = kernels::result_layout(plan.limits);
  block->ring_ = reinterpret_cast<unsigned char*>(buffers.at(plan.ring).host().data());
  block->results_ = reinterpret_cast<unsigned char*>(buffers.at(plan.results).host().data());
  std::memset(block->ring_, 0, buffers.at(plan.ring).bytes());
  std::memset(block->results_, 0, buffers.at(plan.results).bytes());

  kernels::StepControl control{};
  control.limits = plan.limits;
  control.entry_layout = block->entry_layout_;
  control.result_layout = block->result_layout_;
  control.ring = device_pointer<unsigned char>(buffers, plan.ring);
  control.results = device_pointer<unsigned char>(buffers, plan.results);
  control.entry = device_pointer<unsigned char>(buffers, plan.entry);
  control.slots = device_pointer<kernels::SlotState>(buffers, plan.slots);
  control.block_table = device_pointer<uint32_t>(buffers, plan.block_table);
  control.counts = device_pointer<uint32_t>(buffers, plan.counts);
  control.step.rows = device_pointer<kernels::RowInput>(buffers, plan.rows);
  control.step.spans = device_pointer<kernels::RowSpan>(buffers, plan.spans);
  control.draft.rows = device_pointer<kernels::RowInput>(buffers, plan.draft_rows);
  control.draft.spans = device_pointer<kernels::RowSpan>(buffers, plan.draft_spans);
  control.draft_sources = device_pointer<uint32_t>(buffers, plan.draft_sources);
  control.next_ids = device_pointer<uint32_t>(buffers, plan.next_ids);
  control.logit_rows = device_pointer<uint32_t>(buffers, plan.logit_rows);
  control.sampled = device_pointer<uint32_t>(buffers, plan.sampled);
  control.scores = device_pointer<kernels::RowScore>(buffers, plan.scores);
  control.next_step = 1;
  ATLAS_RETURN_IF_ERROR(
      stream.copy_to_device(buffers.at(plan.control).address(), &control, sizeof(control)));
  // All arrays of the control block but its constant head, and what sequences keep in their slots.
  for (plan::BufferId id = 0; id < plan.buffers.size(); ++id) {
    const bool array = plan.buffers[id].line == plan::LedgerLine::kControl && id != plan.control;
    if (!array && !(plan.slot_bytes != 0 && id == plan.slot_state)) continue;
    ATLAS_RETURN_IF_ERROR(stream.fill(buffers.at(id).address(), 0, buffers.at(id).bytes()));
  }
  if (plan.feed) {
    for (const plan::BufferId id : {plan.feed->requests, plan.feed->answers}) {
      std::memset(buffers.at(id).host().data(), 0, buffers.at(id).bytes());
    }
  }
  ATLAS_RETURN_IF_ERROR(stream.synchronize());
  return block;
}

unsigned char* ControlBlock::entry(uint64_t step) const {
  return ring_ + (step - 1) % limits_.ring_entries * entry_layout_.bytes;
}

EntryView ControlBlock::begin() {
  unsigned char* base = entry(next_step_);
  EntryView view;
  view.head = reinterpret_cast<kernels::StepEntry*>(base);
  *view.head = {};
  view.sequences =
      array<kernels::SequenceInput>(base, entry_layout_.sequences, limits_.max_sequences);
  view.page_updates =
      array<kernels::PageUpdate>(base, entry_layout_.page_updates, limits_.max_page_updates);
  view.biases = array<kernels::LogitBias>(base, entry_layout_.biases, limits_.max_biases);
  view.count_updates =
      array<kernels::CountUpdate>(base, entry_layout_.count_updates, limits_.max_count_updates);
  view.ids = array<uint32_t>(base, entry_layout_.ids, limits_.max_rows);
  view.targets = array<uint32_t>(base, entry_layout_.targets, limits_.max_logit_rows);
  return view;
}

uint64_t ControlBlock::finish() {
  auto* head = reinterpret_cast<kernels::StepEntry*>(entry(next_step_));
  // The entry's content must be visible before its number is: a device that polls relies on it.
  std::atomic_ref<uint64_t>(head->step).store(next_step_, std::memory_order_release);
  if (feed_ != nullptr) feed_->expect(next_step_);
  return next_step_++;
}

Result<ResultView> ControlBlock::result(uint64_t step) const {
  unsigned char* base = results_ + (step - 1) % limits_.ring_entries * result_layout_.bytes;
  auto* head = reinterpret_cast<kernels::StepResult*>(base);
  const uint64_t written = std::atomic_ref<uint64_t>(head->step).load(std::memory_order_acquire);
  if (written != step) {
    return internal_error("step {} finished without a result (found that of step {})", step,
                          written);
  }
  if ((head->error & kernels::kErrorEntry) != 0) {
    return internal_error("step {} found its entry to be wrong and did nothing", step);
  }
  ResultView view;
  view.head = head;
  view.sequences =
      array<kernels::SequenceResult>(base, result_layout_.sequences, head->sequence_count);
  view.scores = array<kernels::RowScore>(base, result_layout_.scores, head->logit_count);
  return view;
}

}  // namespace atlas::exec
