// AnswerWriter: the JSON of completions and chat completions, whole or as chunks of a stream.
// What stays the same in all chunks of an answer is written once; a chunk appends to a text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/serve/call_reader.h"
#include "daemon/serve/generate_request.h"

namespace atlas::serve {

/// What one choice has when it is complete, and what a chunk may carry of it.
struct ChoiceText {
  std::string_view content;
  std::string_view reasoning;
  std::string_view tool_calls;  // JSON without brackets, of append_call and its kin
  std::string_view logprobs;    // JSON; empty: null
  std::string_view token_ids;   // JSON without brackets; only if asked for
  std::string_view finish;      // "stop"; empty: null
};

struct TotalUsage {
  uint64_t prompt = 0, cached = 0, completion = 0, reasoning = 0;
};

class AnswerWriter {
 public:
  AnswerWriter(const GenerateRequest& request, std::string_view id, int64_t created_unix_s);

  // Streams: each appends one event's data.
  void role_chunk(std::string& out, uint32_t index) const;
  void chunk(std::string& out, uint32_t index, const ChoiceText& text) const;
  void usage_chunk(std::string& out, const TotalUsage& usage) const;

  // Whole answers: begin, every choice in order, end.
  void begin(std::string& out) const { out += head_; }
  void choice(std::string& out, uint32_t index, const ChoiceText& text) const;
  void end(std::string& out, const TotalUsage& usage) const;

 private:
  void choice_end(std::string& out, const ChoiceText& text) const;

  bool chat_;
  bool usage_in_chunks_;
  bool token_ids_;
  std::string head_;  // up to and with "choices":[
};

/// One entry of `tool_calls`, with a comma in front unless `list` is empty. In a stream a call is
/// two entries in chunks of their own: its beginning, which has no arguments yet, and those.
void append_call(std::string& list, std::string_view id, const ToolCall& call);
void append_call_begin(std::string& list, uint32_t index, std::string_view id,
                       std::string_view name);
void append_call_arguments(std::string& list, uint32_t index, std::string_view arguments);

/// "stop", "length", or "tool_calls" for an answer that ended by itself and has calls.
std::string_view finish_word(engine::FinishReason reason, bool has_calls);

}  // namespace atlas::serve
