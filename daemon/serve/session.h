// Session: one completion or chat request on its way through the engine, and its answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "daemon/serve/answer_writer.h"
#include "daemon/serve/exchange.h"
#include "daemon/serve/generate_request.h"
#include "daemon/serve/logprobs_writer.h"
#include "daemon/serve/output_parser.h"
#include "daemon/serve/services.h"

namespace atlas::serve {

/// Loop thread only. Lives as long as its exchange is open: the exchange's `on_gone` holds it, and
/// sinks in the engine know it weakly.
class Session : public std::enable_shared_from_this<Session> {
 public:
  /// Submits all sequences of the request and answers on `exchange` as they progress.
  static void start(Services& services, const std::shared_ptr<Exchange>& exchange,
                    GenerateRequest request, std::chrono::steady_clock::time_point received);
  Session(Services& services, const std::shared_ptr<Exchange>& exchange, GenerateRequest request,
          std::chrono::steady_clock::time_point received);

 private:
  using Clock = std::chrono::steady_clock;

  /// One sequence.
  struct Choice {
    engine::RequestId id = 0;
    bool submitted = false;
    bool opened = false;  // streams: its first chunk is sent
    bool scored = false;  // the prompt's log-probabilities are in `logprobs`
    bool finished = false;
    engine::Usage usage;
    engine::FinishReason reason = engine::FinishReason::kLength;
    std::unique_ptr<OutputParser> parser;
    LogprobsWriter logprobs;
    std::string token_ids;           // JSON without brackets, not yet sent
    std::string content, reasoning;  // whole answers only
    uint32_t calls = 0;
    std::string tool_calls;  // the same as JSON without brackets; whole answers only
    Clock::time_point last_update;
  };

  bool submit_all();
  Status submit(size_t index);
  void receive(size_t index, engine::Update update);
  void score_on_worker(size_t index, engine::Update update);
  void add_prompt_scores(size_t index, const std::vector<engine::TokenLogprob>& scores);
  void handle(size_t index, engine::Update& update);
  void note_times(Choice& choice, const engine::Update& update);
  void take_tokens(Choice& choice, const engine::Update& update);
  void open_choice(size_t index);
  void send(size_t index, ChoiceText text);
  void deliver(size_t index, std::vector<OutputPiece>& pieces);
  void deliver_call(size_t index, const ToolCall& call);
  void finish_choice(size_t index, const engine::Finish& finish);
  void finish_answer();
  TotalUsage total_usage() const;
  std::string whole_answer();
  void fail(const ApiError& error);
  void cancel_all();
  void end();
  const Prompt& prompt_of(size_t index) const { return request_.prompts[index / request_.n]; }

  Services& services_;
  std::shared_ptr<Exchange> exchange_;
  GenerateRequest request_;
  AnswerWriter writer_;
  std::vector<Choice> choices_;  // prompt-major
  size_t unfinished_ = 0;
  bool streaming_ = false;  // the head of the stream is sent
  bool ended_ = false;
  /// Updates that wait while the worker writes a long prompt's log-probabilities.
  bool scoring_ = false;
  std::deque<std::pair<size_t, engine::Update>> waiting_;
  std::string event_;  // the event being written; keeps its capacity
  Clock::time_point received_;
  std::optional<Clock::time_point> first_token_;
};

}  // namespace atlas::serve
