// OutputParser: sorts a chat answer's text into content, reasoning and tool calls.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/engine/request.h"
#include "daemon/serve/call_sorter.h"
#include "daemon/serve/model_text.h"

namespace atlas::serve {

/// Fed with what the engine tells, in order; gives pieces in the order in which they are sent.
class OutputParser {
 public:
  virtual ~OutputParser() = default;
  /// `text` may lag behind `tokens`, as in engine::Update.
  virtual void feed(std::string_view text, std::span<const engine::TokenId> tokens,
                    std::vector<OutputPiece>& out) = 0;
  /// Gives what was held back. Call once, at the end.
  virtual void finish(std::vector<OutputPiece>& out) = 0;
  virtual uint32_t reasoning_tokens() const { return 0; }
};

/// Looks for calls in content; null for ToolFormat::kNone.
std::unique_ptr<CallSorter> make_call_sorter(ToolFormat format,
                                             std::shared_ptr<const ToolSchema> schema);

/// All text is content, or calls if there is a sorter.
std::unique_ptr<OutputParser> make_plain_parser(std::unique_ptr<CallSorter> calls = nullptr);
/// Text between the tags is reasoning; the tags and the newlines around them are dropped. A tag
/// counts only if its token was produced: the same letters as ordinary tokens are text. So nothing
/// is held back before a tag's token has come, except newlines at the end of reasoning.
/// `open`: the prompt ended inside of the tags. Reasoning is not searched for calls, and a tag in
/// the text of a call's value is text.
std::unique_ptr<OutputParser> make_reasoning_parser(ReasoningTags tags, bool open,
                                                    std::unique_ptr<CallSorter> calls = nullptr);

}  // namespace atlas::serve
