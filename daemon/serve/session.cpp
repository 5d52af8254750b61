// The life of a generating request: read on the worker, submitted, answered update by update.
#include "daemon/serve/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <utility>

#include "daemon/base/log.h"
#include "daemon/serve/routes.h"

namespace atlas::serve {
namespace {

// Prompts whose log-probabilities take longer than about a millisecond to write go to the worker.
constexpr size_t kScoredHere = 256;

using Reader = Refusal (*)(std::string_view, const Control&, const ServeLimits&, GenerateRequest&);

void handle_generate(Services& services, const std::shared_ptr<Exchange>& exchange, Reader read) {
  if (Refusal refusal = draining(services)) return refuse(services, exchange, *refusal);
  const auto received = std::chrono::steady_clock::now();
  on_worker<GenerateRequest>(
      services, exchange,
      [&services, exchange, read](GenerateRequest& request) {
        return read(exchange->body, services.control, services.options.limits, request);
      },
      [&services, exchange, read, received](GenerateRequest request) {
        // A swap may have put another tokenizer in place while the prompt was being read.
        const auto now = request.target.engine->model();
        if (now == nullptr || now->tokenizer != request.target.model->tokenizer) {
          return handle_generate(services, exchange, read);
        }
        exchange->body = {};
        Session::start(services, exchange, std::move(request), received);
      });
}

std::string answer_id(const Exchange& exchange, Endpoint endpoint) {
  return (endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-") + exchange.id;
}

std::unique_ptr<OutputParser> make_parser(const GenerateRequest& request) {
  auto calls = make_call_sorter(request.tool_format, request.tools);
  if (!request.reasoning) return make_plain_parser(std::move(calls));
  return make_reasoning_parser(*request.reasoning, request.reasoning_open, std::move(calls));
}

void append_ids(std::string& list, const std::vector<engine::TokenId>& ids) {
  for (const engine::TokenId id : ids) {
    fmt::format_to(std::back_inserter(list), "{}{}", list.empty() ? "" : ",", id);
  }
}

}  // namespace

void handle_completions(Services& services, const std::shared_ptr<Exchange>& exchange) {
  handle_generate(services, exchange, read_completion_request);
}

void handle_chat(Services& services, const std::shared_ptr<Exchange>& exchange) {
  handle_generate(services, exchange, read_chat_request);
}

Session::Session(Services& services, const std::shared_ptr<Exchange>& exchange,
                 GenerateRequest request, Clock::time_point received)
    : services_(services),
      exchange_(exchange),
      request_(std::move(request)),
      writer_(request_, answer_id(*exchange, request_.endpoint), std::time(nullptr)),
      received_(received) {
  const size_t count = request_.prompts.size() * request_.n;
  choices_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    choices_.push_back({.parser = make_parser(request_),
                        .logprobs = LogprobsWriter(request_.endpoint, request_.target.model,
                                                   request_.spec.skip_special)});
  }
  unfinished_ = count;
}

void Session::start(Services& services, const std::shared_ptr<Exchange>& exchange,
                    GenerateRequest request, Clock::time_point received) {
  const auto session = std::make_shared<Session>(services, exchange, std::move(request), received);
  exchange->on_gone = [session] {
    ++session->services_.metrics.streams_cancelled;
    session->cancel_all();
    session->ended_ = true;
  };
  session->submit_all();
}

bool Session::submit_all() {
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Status status = submit(i);
    if (status.ok()) continue;
    ApiError error = to_api_error(status);
    if (error.status == 429) error.code = "queue_full";
    if (error.status == 503) error.code = "unavailable";
    services_.metrics.count_refused(error.code);
    fail(error);
    return false;
  }
  return true;
}

Status Session::submit(size_t index) {
  engine::RequestSpec spec = request_.spec;
  spec.prompt = prompt_of(index).ids;
  spec.sampling.seed += index % request_.n;
  const auto room = request_.target.model->context_tokens - spec.prompt.size();
  spec.max_tokens = static_cast<uint32_t>(std::min<size_t>(spec.max_tokens, room));
  if (spec.max_tokens == 0 && !spec.prompt_logprobs) {
    // Nothing to compute; answered like the others, after all of them are submitted.
    engine::Update update;
    update.finish = engine::Finish{.reason = engine::FinishReason::kLength};
    update.finish->usage.prompt_tokens = static_cast<uint32_t>(spec.prompt.size());
    services_.loop->post([weak = weak_from_this(), index, update = std::move(update)] {
      if (const auto self = weak.lock()) self->receive(index, update);
    });
    return {};
  }
  auto id = request_.target.engine->submit(
      std::move(spec), [loop = services_.loop, weak = weak_from_this(), index](
                           engine::RequestId, engine::Update update) {
        loop->post([weak, index, update = std::move(update)]() mutable {
          if (const auto self = weak.lock()) self->receive(index, std::move(update));
        });
      });
  if (!id) return id.error();
  choices_[index].id = *id;
  choices_[index].submitted = true;
  return {};
}

void Session::receive(size_t index, engine::Update update) {
  if (ended_ || choices_[index].finished) return;
  if (scoring_) {
    waiting_.emplace_back(index, std::move(update));
  } else if (update.prompt.size() > kScoredHere) {
    score_on_worker(index, std::move(update));
  } else {
    handle(index, update);
  }
}

// The first token of a prompt has no score.
void Session::add_prompt_scores(size_t index, const std::vector<engine::TokenLogprob>& scores) {
  Choice& choice = choices_[index];
  if (!request_.spec.prompt_logprobs || choice.scored) return;
  choice.scored = true;
  choice.logprobs.add({.token = prompt_of(index).ids.front()}, false);
  for (const engine::TokenLogprob& score : scores) choice.logprobs.add(score);
}

void Session::score_on_worker(size_t index, engine::Update update) {
  scoring_ = true;
  // The choice's writer is the worker's until it answers: `scoring_` keeps every other use away.
  services_.worker.post([self = shared_from_this(), index, update = std::move(update)]() mutable {
    self->add_prompt_scores(index, update.prompt);
    update.prompt.clear();
    const auto loop = self->services_.loop;
    loop->post([self = std::move(self), index, update = std::move(update)]() mutable {
      self->scoring_ = false;
      if (!self->ended_) self->handle(index, update);
      while (!self->scoring_ && !self->waiting_.empty()) {
        auto [next, waited] = std::move(self->waiting_.front());
        self->waiting_.pop_front();
        self->receive(next, std::move(waited));
      }
    });
  });
}

void Session::handle(size_t index, engine::Update& update) {
  Choice& choice = choices_[index];
  if (update.finish && update.finish->reason == engine::FinishReason::kError) {
    return fail(to_api_error(update.finish->error));
  }
  if (update.finish && update.finish->reason == engine::FinishReason::kCancelled) {
    return fail({.status = 503,
                 .message = "the request was cancelled by the daemon",
                 .code = "cancelled",
                 .retry_after_s = 1});
  }
  note_times(choice, update);
  add_prompt_scores(index, update.prompt);
  if (request_.stream && !choice.opened) open_choice(index);
  take_tokens(choice, update);
  std::vector<OutputPiece> pieces;
  choice.parser->feed(update.text, update.tokens, pieces);
  if (update.finish) choice.parser->finish(pieces);
  deliver(index, pieces);
  if (update.finish) finish_choice(index, *update.finish);
}

void Session::note_times(Choice& choice, const engine::Update& update) {
  if (update.tokens.empty()) return;
  const auto now = Clock::now();
  if (choice.last_update == Clock::time_point()) {
    services_.metrics.first_token.add(std::chrono::duration<double>(now - received_).count());
    if (!first_token_) first_token_ = now;
  } else {
    services_.metrics.between_tokens.add(
        std::chrono::duration<double>(now - choice.last_update).count());
  }
  choice.last_update = now;
}

void Session::take_tokens(Choice& choice, const engine::Update& update) {
  for (const engine::TokenLogprob& logprob : update.logprobs) choice.logprobs.add(logprob);
  if (request_.return_token_ids) append_ids(choice.token_ids, update.tokens);
}

// The first chunk: the role of a chat, the prompt of a completion with echo.
void Session::open_choice(size_t index) {
  choices_[index].opened = true;
  if (!streaming_) exchange_->begin_stream();
  streaming_ = true;
  if (request_.endpoint == Endpoint::kChat) {
    event_.clear();
    writer_.role_chunk(event_, static_cast<uint32_t>(index));
    exchange_->send_event(event_);
  } else if (request_.echo) {
    if (request_.return_token_ids) append_ids(choices_[index].token_ids, prompt_of(index).ids);
    send(index, {.content = prompt_of(index).text});
  }
}

/// One chunk, with the log-probabilities and ids that have come since the last one.
void Session::send(size_t index, ChoiceText text) {
  Choice& choice = choices_[index];
  std::string logprobs;
  if (!choice.logprobs.empty()) choice.logprobs.take(logprobs);
  text.logprobs = logprobs;
  text.token_ids = choice.token_ids;
  event_.clear();
  writer_.chunk(event_, static_cast<uint32_t>(index), text);
  choice.token_ids.clear();
  exchange_->send_event(event_);
}

void Session::deliver(size_t index, std::vector<OutputPiece>& pieces) {
  Choice& choice = choices_[index];
  for (OutputPiece& piece : pieces) {
    if (piece.kind == OutputPiece::kCall) {
      deliver_call(index, {std::move(piece.name), std::move(piece.text)});
      continue;
    }
    const bool content = piece.kind == OutputPiece::kContent;
    if (request_.stream) {
      send(index,
           content ? ChoiceText{.content = piece.text} : ChoiceText{.reasoning = piece.text});
    } else {
      (content ? choice.content : choice.reasoning) += piece.text;
    }
  }
  // Without a tokenizer there is no text to wait for.
  if (pieces.empty() && request_.stream && !choice.token_ids.empty() &&
      request_.target.model->tokenizer == nullptr) {
    send(index, {});
  }
}

void Session::deliver_call(size_t index, const ToolCall& call) {
  Choice& choice = choices_[index];
  const uint32_t number = choice.calls++;
  const std::string id = fmt::format("call_{}_{}_{}", exchange_->id, index, number);
  if (!request_.stream) return append_call(choice.tool_calls, id, call);
  std::string entry;
  append_call_begin(entry, number, id, call.name);
  send(index, {.tool_calls = entry});
  entry.clear();
  append_call_arguments(entry, number, call.arguments);
  send(index, {.tool_calls = entry});
}

void Session::finish_choice(size_t index, const engine::Finish& finish) {
  Choice& choice = choices_[index];
  choice.finished = true;
  choice.usage = finish.usage;
  choice.reason = finish.reason;
  --unfinished_;
  if (request_.stream) send(index, {.finish = finish_word(finish.reason, choice.calls > 0)});
  if (unfinished_ == 0) finish_answer();
}

void Session::finish_answer() {
  const TotalUsage usage = total_usage();
  const double first_s =
      first_token_ ? std::chrono::duration<double>(*first_token_ - received_).count() : 0;
  exchange_->note = fmt::format("{} prompt ({} cached) + {} tokens, first after {:.3f} s",
                                usage.prompt, usage.cached, usage.completion, first_s);
  if (!request_.stream) {
    exchange_->reply_json(whole_answer());
    return end();
  }
  if (request_.include_usage) {
    event_.clear();
    writer_.usage_chunk(event_, usage);
    exchange_->send_event(event_);
  }
  exchange_->send_event("[DONE]");
  exchange_->end_stream(false);
  end();
}

// A prompt counts once, however many sequences go on from it.
TotalUsage Session::total_usage() const {
  TotalUsage usage;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    if (i % request_.n == 0) {
      usage.prompt += choice.usage.prompt_tokens;
      usage.cached += choice.usage.cached_tokens;
    }
    usage.completion += choice.usage.completion_tokens;
    usage.reasoning += choice.parser->reasoning_tokens();
  }
  return usage;
}

std::string Session::whole_answer() {
  std::string out;
  writer_.begin(out);
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    std::string ids;
    if (request_.echo) {
      choice.content.insert(0, prompt_of(i).text);
      if (request_.return_token_ids) append_ids(ids, prompt_of(i).ids);
    }
    if (!ids.empty() && !choice.token_ids.empty()) ids += ',';
    ids += choice.token_ids;
    std::string logprobs;
    if (request_.spec.logprobs) choice.logprobs.take(logprobs);
    writer_.choice(out, static_cast<uint32_t>(i),
                   {.content = choice.content,
                    .reasoning = choice.reasoning,
                    .tool_calls = choice.tool_calls,
                    .logprobs = logprobs,
                    .token_ids = ids,
                    .finish = finish_word(choice.reason, choice.calls > 0)});
  }
  writer_.end(out, total_usage());
  return out;
}

void Session::fail(const ApiError& error) {
  cancel_all();
  if (error.status >= 500) {
    log_error("request {}: {}", exchange_->id, error.message);
  }
  if (streaming_) {
    exchange_->note = "failed: " + error.message;
    exchange_->send_event(error_json(error));
    exchange_->end_stream(true);
  } else {
    exchange_->reply_error(error);
  }
  end();
}

void Session::cancel_all() {
  for (const Choice& choice : choices_) {
    if (choice.submitted && !choice.finished) request_.target.engine->cancel(choice.id);
  }
}

void Session::end() { ended_ = true; }

}  // namespace atlas::serve
