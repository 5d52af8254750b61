// The engine's thread: its loop, requests in, generations in and out. Steps are in
// engine_steps.cpp.
#include "daemon/engine/engine_core.h"

#include <algorithm>
#include <cmath>

#include "daemon/base/log.h"

namespace atlas::engine {

using namespace std::chrono_literals;

namespace {

/// One step runs while the next is already submitted.
constexpr size_t kStepsInFlight = 2;

Status check_range(const char* name, float value, float low, float high) {
  if (std::isfinite(value) && value >= low && value <= high) return {};
  return invalid_argument("{} is {}: it must be from {} to {}", name, value, low, high);
}

Status check_sampling(const SamplingParams& p, uint32_t vocab) {
  ATLAS_RETURN_IF_ERROR(check_range("temperature", p.temperature, 0, 100));
  ATLAS_RETURN_IF_ERROR(check_range("top_p", p.top_p, 0, 1));
  ATLAS_RETURN_IF_ERROR(check_range("min_p", p.min_p, 0, 1));
  ATLAS_RETURN_IF_ERROR(check_range("repetition_penalty", p.repetition_penalty, 0.01f, 100));
  ATLAS_RETURN_IF_ERROR(check_range("presence_penalty", p.presence_penalty, -100, 100));
  ATLAS_RETURN_IF_ERROR(check_range("frequency_penalty", p.frequency_penalty, -100, 100));
  if (p.logit_bias.size() > plan::kMaxBiasesPerSequence) {
    return invalid_argument("logit_bias has {} entries: at most {} are taken", p.logit_bias.size(),
                            plan::kMaxBiasesPerSequence);
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (token >= vocab) {
      return invalid_argument("logit_bias names token {}, and the vocabulary has {}", token, vocab);
    }
    ATLAS_RETURN_IF_ERROR(check_range("logit_bias", bias, -1000, 1000));
  }
  return {};
}

}  // namespace

SchedulerLimits scheduler_limits(const plan::Plan& plan, double latency_bound_s) {
  SchedulerLimits limits;
  limits.latency_bound_s = latency_bound_s;
  limits.drafts = plan.limits.drafts;
  limits.anchor_tokens = plan.limits.anchor_tokens;
  for (const plan::StepPlan& step : plan.steps) {
    const plan::Bucket& bucket = step.bucket;
    if (bucket.kind == (limits.drafts == 0 ? plan::StepKind::kDecode : plan::StepKind::kVerify)) {
      limits.decode_sequences =
          std::max(limits.decode_sequences, bucket.rows / (1 + limits.drafts));
    } else if (bucket.kind == plan::StepKind::kPrefill) {
      limits.prefill_rows = std::max(limits.prefill_rows, bucket.rows);
      if (bucket.rows == bucket.logit_rows) {
        limits.score_rows = std::max(limits.score_rows, bucket.rows);
      }
    }
  }
  return limits;
}

EngineCore::EngineCore(std::shared_ptr<Device> device, EngineOptions options)
    : device_(std::move(device)), options_(options) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

EngineCore::~EngineCore() {
  thread_.request_stop();
  wake_.notify_all();
}

// ---- Any thread
// ------------------------------------------------------------------------------------

std::shared_ptr<const ModelInfo> EngineCore::model() const {
  const std::scoped_lock lock(mutex_);
  return model_;
}

Status EngineCore::check(const RequestSpec& spec, const ModelInfo& info,
                         const plan::Plan& plan) const {
  if (spec.prompt.empty()) return invalid_argument("the prompt is empty: give at least one token");
  const auto length = spec.prompt.size();
  if (length + (spec.max_tokens > 0 ? 1 : 0) > info.context_tokens) {
    return invalid_argument(
        "the prompt has {} tokens and the context of this model ends at {}: shorten the prompt",
        length, info.context_tokens);
  }
  if (spec.max_tokens == 0 && !spec.prompt_logprobs) {
    return invalid_argument("max_tokens is 0 and no log-probabilities of the prompt are asked for");
  }
  for (const TokenId token : spec.prompt) {
    if (token >= info.vocab) {
      return invalid_argument("the prompt has token {}, and the vocabulary has {}", token,
                              info.vocab);
    }
  }
  if (spec.top_logprobs > kernels::kMaxTopLogprobs) {
    return invalid_argument("top_logprobs is {}: at most {} are given", spec.top_logprobs,
                            kernels::kMaxTopLogprobs);
  }
  if (spec.prompt_logprobs && scheduler_limits(plan, 0).score_rows == 0) {
    return unimplemented("this engine has no step that gives logits for every row of a prompt");
  }
  return check_sampling(spec.sampling, info.vocab);
}

Result<RequestId> EngineCore::submit(RequestSpec spec, UpdateSink sink) {
  const std::scoped_lock lock(mutex_);
  const auto refuse = [this](Status status) {
    ++stats_.requests_refused;
    return status;
  };
  if (stats_.state == EngineState::kFailed) {
    return refuse(unavailable("the engine has failed: {}", stats_.failure));
  }
  if (refuse_new_) return refuse(unavailable("the daemon is draining: it takes no new requests"));
  if (serving_ == nullptr) {
    return refuse(
        unavailable("the model is loading ({}, {:.0f} %)", stats_.phase, 100 * stats_.progress));
  }
  if (Status status = check(spec, *serving_->info(), serving_->plan()); !status.ok()) {
    return refuse(status);
  }
  if (waiting_count_ >= options_.queue_limit) {
    return refuse(
        resource_exhausted("{} requests are waiting already: try again later", waiting_count_));
  }
  auto sequence = std::make_shared<Sequence>();
  sequence->id = next_id_.fetch_add(1);
  sequence->answer = AnswerText(serving_->info()->tokenizer.get(), spec);
  sequence->spec = std::move(spec);
  sequence->spec.max_tokens = std::min(
      sequence->spec.max_tokens, serving_->info()->context_tokens - sequence->prompt_tokens());
  sequence->sink = std::move(sink);
  sequence->info = serving_->info();
  const RequestId id = sequence->id;
  inbox_.emplace_back(NewRequest{std::move(sequence)});
  ++waiting_count_;
  wake_.notify_one();
  return id;
}

void EngineCore::cancel(RequestId id) {
  const std::scoped_lock lock(mutex_);
  inbox_.emplace_back(Cancel{id});
  wake_.notify_one();
}

void EngineCore::cancel_all() { cancel(0); }

std::future<Status> EngineCore::install(std::shared_ptr<Generation> generation) {
  Install command{std::move(generation), {}};
  auto future = command.done.get_future();
  const std::scoped_lock lock(mutex_);
  inbox_.emplace_back(std::move(command));
  wake_.notify_one();
  return future;
}

std::future<Status> EngineCore::release() {
  Release command;
  auto future = command.done.get_future();
  const std::scoped_lock lock(mutex_);
  inbox_.emplace_back(std::move(command));
  wake_.notify_one();
  return future;
}

std::future<Status> EngineCore::drain() {
  Drain command;
  auto future = command.done.get_future();
  const std::scoped_lock lock(mutex_);
  refuse_new_ = true;
  if (stats_.state == EngineState::kServing) stats_.state = EngineState::kDraining;
  inbox_.emplace_back(std::move(command));
  wake_.notify_one();
  return future;
}

void EngineCore::report_loading(const std::string& phase, double progress) {
  const std::scoped_lock lock(mutex_);
  stats_.phase = phase;
  stats_.progress = progress;
}

void EngineCore::report_failure(const Status& status) {
  const std::scoped_lock lock(mutex_);
  stats_.state = EngineState::kFailed;
  stats_.failure = status.message();
}

EngineStats EngineCore::stats() const {
  const std::scoped_lock lock(mutex_);
  EngineStats copy = stats_;
  copy.queued = waiting_count_;
  copy.progress_ticks = ticks_.load(std::memory_order_relaxed);
  return copy;
}

// ---- The engine's thread
// ---------------------------------------------------------------------------

void EngineCore::run(const std::stop_token& stop) {
  if (Status status = prepare(); !status.ok()) fail_everything(status);
  while (!stop.stop_requested()) {
    ticks_.fetch_add(1, std::memory_order_relaxed);
    {
      std::unique_lock lock(mutex_);
      take_commands(lock);
    }
    bool submitted = false;
    if (failed_.ok()) {
      admit();
      Status status;
      if (flights_.size() < kStepsInFlight) status = submit_next(submitted);
      if (status.ok() && !flights_.empty() && (!submitted || flights_.size() >= kStepsInFlight)) {
        status = complete_oldest();
        submitted = true;
      }
      if (!status.ok()) fail_everything(status);
    }
    drop_finished();
    answer_waiting_promises();
    publish_stats();
    if (submitted) continue;
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, 500ms, [&] { return !inbox_.empty() || stop.stop_requested(); });
  }
  // A device that hangs must not keep the daemon: only healthy steps are waited for.
  while (failed_.ok() && !flights_.empty()) {
    if (Status status = complete_oldest(); !status.ok()) failed_ = status;
  }
  fail_everything(cancelled("the daemon is stopping"));
  answer_waiting_promises();
}

Status EngineCore::prepare() {
  ATLAS_ASSIGN_OR_RETURN(Stream stream, device_->create_stream());
  stream_ = std::make_unique<Stream>(std::move(stream));
  for (size_t i = 0; i < kStepsInFlight; ++i) {
    ATLAS_ASSIGN_OR_RETURN(Event event, device_->create_event());
    spare_events_.push_back(std::move(event));
  }
  return {};
}

void EngineCore::take_commands(std::unique_lock<std::mutex>& lock) {
  while (!inbox_.empty()) {
    Command command = std::move(inbox_.front());
    inbox_.pop_front();
    lock.unlock();
    std::visit([this](auto& one) { handle(one); }, command);
    lock.lock();
  }
}

void EngineCore::handle(NewRequest& command) {
  if (!failed_.ok()) {
    queue_.push_back(command.sequence);
    fail_everything(failed_);
    return;
  }
  queue_.push_back(command.sequence);
  fit_to_current(command.sequence);  // a swap may have come between its check and now
}

void EngineCore::handle(Cancel& command) {
  const auto end = [&](const SequencePtr& sequence) {
    if (command.id != 0 && sequence->id != command.id) return;
    if (!sequence->finished) finish(sequence, FinishReason::kCancelled, Status(), {});
  };
  for (const SequencePtr& sequence : std::vector(running_)) end(sequence);
  for (const SequencePtr& sequence : std::vector(queue_.begin(), queue_.end())) end(sequence);
}

void EngineCore::handle(Install& command) {
  if (!failed_.ok()) {
    command.done.set_value(failed_);
    return;
  }
  Generation& generation = *command.generation;
  // One graph of each kind now, the others before their first use. Steps in flight may share the
  // state, so they are read back first.
  while (!flights_.empty()) {
    if (Status status = complete_oldest(); !status.ok()) {
      fail_everything(status);
      command.done.set_value(status);
      return;
    }
  }
  for (const plan::StepKind kind :
       {plan::StepKind::kPrefill, plan::StepKind::kDecode, plan::StepKind::kVerify}) {
    const plan::Bucket* bucket = generation.steps().bucket(kind, 1, 1);
    if (bucket == nullptr) continue;
    if (Status status = generation.steps().verify(*bucket, *stream_, generation.scratch_page());
        !status.ok()) {
      if (status.code() == Code::kUnavailable) fail_everything(status);
      command.done.set_value(status.with_context("start-up self-test"));
      return;
    }
  }
  // What the old generation has cached is of its own arithmetic; its pages are free for all.
  if (current_ != nullptr && current_ != command.generation) current_->prefixes().close();
  current_ = std::move(command.generation);
  scheduler_ =
      std::make_unique<Scheduler>([bound = options_.latency_bound_s](const Generation* of) {
        return scheduler_limits(of->plan(), bound);
      });
  releasing_ = false;
  {
    const std::scoped_lock lock(mutex_);
    model_ = current_->info();
    serving_ = current_;
    stats_.state = refuse_new_ ? EngineState::kDraining : EngineState::kServing;
    stats_.phase.clear();
    stats_.progress = 1;
    stats_.failure.clear();
    stats_.generation = current_->id();
    stats_.ledger.clear();
    for (const auto& [line, bytes] : current_->plan().ledger.bytes) {
      stats_.ledger.emplace_back(plan::ledger_line_name(line), bytes);
    }
  }
  for (const SequencePtr& sequence : std::vector(queue_.begin(), queue_.end())) {
    fit_to_current(sequence);
  }
  command.done.set_value(Status());
}

void EngineCore::fit_to_current(const SequencePtr& sequence) {
  if (sequence->finished || sequence->generation != nullptr || current_ == nullptr ||
      sequence->info == current_->info()) {
    return;
  }
  const ModelInfo& info = *current_->info();
  Status status;
  if (sequence->info->id != info.id || sequence->info->source != info.source) {
    status = unavailable("another model is served now: send the request again");
  } else {
    status = check(sequence->spec, info, current_->plan());
  }
  if (!status.ok()) return finish(sequence, FinishReason::kError, status, {});
  sequence->info = current_->info();
  sequence->spec.max_tokens =
      std::min(sequence->spec.max_tokens, info.context_tokens - sequence->prompt_tokens());
}

void EngineCore::handle(Release& command) {
  releasing_ = true;
  release_waiters_.push_back(std::move(command.done));
}

void EngineCore::handle(Drain& command) { drain_waiters_.push_back(std::move(command.done)); }

void EngineCore::answer_waiting_promises() {
  const bool idle = running_.empty() && flights_.empty();
  // Nothing holds a generation: queued requests get theirs when admitted.
  const bool resting = idle && uses_.empty();
  if (!release_waiters_.empty() && resting) {
    current_ = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      serving_ = nullptr;
      stats_.state = failed_.ok() ? EngineState::kLoading : EngineState::kFailed;
    }
    for (auto& waiter : release_waiters_) waiter.set_value(failed_);
    release_waiters_.clear();
  }
  if (!drain_waiters_.empty() && idle && queue_.empty()) {
    for (auto& waiter : drain_waiters_) waiter.set_value(failed_);
    drain_waiters_.clear();
  }
}

void EngineCore::finish(const SequencePtr& sequence, FinishReason reason, Status error,
                        Update update) {
  sequence->finished = true;
  if (sequence->admitted != 0) count_request(*sequence->generation, -1);
  if (reason != FinishReason::kError) keep_prefix(*sequence);
  release_resources(*sequence);
  if (reason != FinishReason::kError) sequence->answer.finish(update);
  Finish end{reason, std::move(error), sequence->answer.stop_string().value_or(""), {}};
  end.usage.prompt_tokens = sequence->prompt_tokens();
  end.usage.cached_tokens = sequence->cached_tokens;
  end.usage.completion_tokens = static_cast<uint32_t>(sequence->generated.size());
  update.finish = std::move(end);
  switch (reason) {
    case FinishReason::kCancelled:
      ++counters_.requests_cancelled;
      break;
    case FinishReason::kError:
      ++counters_.requests_failed;
      break;
    default:
      ++counters_.requests_finished;
  }
  if (sequence->admitted == 0 || sequence->waiting) {
    const std::scoped_lock lock(mutex_);
    --waiting_count_;
  }
  sequence->sink(sequence->id, std::move(update));
}

void EngineCore::release_resources(Sequence& sequence) {
  if (sequence.generation == nullptr) return;
  CacheShare share{std::move(sequence.pages), sequence.slot, {}};
  if (sequence.anchor) share.anchors.push_back(*sequence.anchor);
  sequence.generation->pool().give_back(std::move(share), sequence.last_step);
  sequence.pages.clear();
  sequence.slot.reset();
  sequence.anchor.reset();
  sequence.anchor_index = sequence.snapshot_at = 0;
}

void EngineCore::fail_everything(const Status& status) {
  if (status.code() != Code::kCancelled) {
    failed_ = status;
    log_critical("engine stopped: {}", status.message());
    report_failure(status);
  }
  flights_.clear();
  const bool stopping = status.code() == Code::kCancelled;
  std::vector<SequencePtr> all(running_);
  all.insert(all.end(), queue_.begin(), queue_.end());
  for (const SequencePtr& sequence : all) {
    if (sequence->finished) continue;
    finish(sequence, stopping ? FinishReason::kCancelled : FinishReason::kError,
           stopping ? Status() : status, {});
  }
  drop_finished();
}

void EngineCore::drop_finished() {
  const auto finished = [](const SequencePtr& sequence) { return sequence->finished; };
  std::erase_if(running_, finished);
  std::erase_if(queue_, finished);
}

void EngineCore::count_request(const Generation& of, int32_t change) {
  auto use = std::find_if(uses_.begin(), uses_.end(),
                          [&](const GenerationUse& one) { return one.generation == &of; });
  if (use == uses_.end()) use = uses_.insert(uses_.end(), {&of, 0});
  use->requests += change;
  if (use->requests == 0) uses_.erase(use);
}

std::vector<OldGeneration> EngineCore::old_generations() const {
  std::vector<OldGeneration> old;
  for (const auto& [generation, requests] : uses_) {
    if (generation == current_.get()) continue;
    old.push_back({generation->id(), requests,
                   current_ == nullptr ? 0 : generation->bytes_not_in(*current_)});
  }
  return old;
}

void EngineCore::publish_stats() {
  const std::scoped_lock lock(mutex_);
  stats_.running = static_cast<uint32_t>(running_.size());
  stats_.requests_finished = counters_.requests_finished;
  stats_.requests_failed = counters_.requests_failed;
  stats_.requests_cancelled = counters_.requests_cancelled;
  stats_.prompt_tokens = counters_.prompt_tokens;
  stats_.generated_tokens = counters_.generated_tokens;
  stats_.cached_tokens = counters_.cached_tokens;
  stats_.drafted_tokens = counters_.drafted_tokens;
  stats_.accepted_tokens = counters_.accepted_tokens;
  stats_.steps_prefill = counters_.steps_prefill;
  stats_.steps_decode = counters_.steps_decode;
  stats_.step_seconds_prefill = counters_.step_seconds_prefill;
  stats_.step_seconds_decode = counters_.step_seconds_decode;
  stats_.prefix = counters_.prefix;
  stats_.old_generations = old_generations();
  if (current_ == nullptr) return;
  const CachePool& pool = current_->pool();
  stats_.pages_total = pool.pages_total();
  stats_.pages_used = pool.pages_total() - pool.pages_free();
  stats_.anchors_total = pool.anchors_total();
  stats_.anchors_used = pool.anchors_total() - pool.anchors_free();
  stats_.prefix_pages = current_->prefixes().pages();
  stats_.slots_total = pool.slots_total();
  stats_.slots_used = pool.slots_total() - pool.slots_free();
  stats_.graphs = current_->steps().graph_report();
}

}  // namespace atlas::engine
