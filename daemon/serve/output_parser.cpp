// Reasoning between tags. Tokens announce a tag, then its text is looked for: the text may come
// later, in pieces, or never (a stop string may have taken it).
#include "daemon/serve/output_parser.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace atlas::serve {
namespace {

class PlainParser : public OutputParser {
 public:
  void feed(std::string_view text, std::span<const engine::TokenId>,
            std::vector<OutputPiece>& out) override {
    if (!text.empty()) out.push_back({OutputPiece::kContent, std::string(text)});
  }
  void finish(std::vector<OutputPiece>&) override {}
};

// Bytes at the end of `text` that `tag` may begin with.
size_t partial_tag_bytes(std::string_view text, std::string_view tag) {
  for (size_t bytes = std::min(text.size(), tag.size() - 1); bytes > 0; --bytes) {
    if (text.ends_with(tag.substr(0, bytes))) return bytes;
  }
  return 0;
}

class ReasoningParser : public OutputParser {
 public:
  ReasoningParser(ReasoningTags tags, bool open)
      : tags_(std::move(tags)), inside_(open), tokens_inside_(open), trim_(open) {}

  void feed(std::string_view text, std::span<const engine::TokenId> tokens,
            std::vector<OutputPiece>& out) override {
    for (const engine::TokenId token : tokens) note(token);
    held_ += text;
    while (!due_.empty()) {
      const std::string& tag = due_.front() ? tags_.open_text : tags_.close_text;
      const size_t at = held_.find(tag);
      if (at == held_.npos) {
        const size_t kept = partial_tag_bytes(held_, tag);
        emit(std::string_view(held_).substr(0, held_.size() - kept), out);
        held_.erase(0, held_.size() - kept);
        return;
      }
      emit(std::string_view(held_).substr(0, at), out);
      held_.erase(0, at + tag.size());
      turn(due_.front());
      due_.pop_front();
    }
    emit(held_, out);
    held_.clear();
  }

  void finish(std::vector<OutputPiece>& out) override {
    emit(held_, out);
    held_.clear();
    push(newlines_, out);
    newlines_.clear();
  }

  uint32_t reasoning_tokens() const override { return reasoning_tokens_; }

 private:
  void note(engine::TokenId token) {
    const bool tag = token == tags_.open || token == tags_.close;
    if (tag) {
      due_.push_back(token == tags_.open);
      tokens_inside_ = token == tags_.open;
    } else if (tokens_inside_) {
      ++reasoning_tokens_;
    }
  }

  void turn(bool inside) {
    inside_ = inside;
    newlines_.clear();
    trim_ = true;
  }

  void emit(std::string_view text, std::vector<OutputPiece>& out) {
    if (trim_) {
      const size_t first = text.find_first_not_of('\n');
      if (first == text.npos) return;
      text.remove_prefix(first);
      trim_ = false;
    }
    if (text.empty()) return;
    if (!inside_) return push(text, out);
    // The newlines before a closing tag belong to the tag.
    const size_t last = text.find_last_not_of('\n');
    if (last == text.npos) {
      newlines_ += text;
      return;
    }
    push(newlines_ + std::string(text.substr(0, last + 1)), out);
    newlines_ = text.substr(last + 1);
  }

  void push(std::string_view text, std::vector<OutputPiece>& out) {
    if (text.empty()) return;
    out.push_back({inside_ ? OutputPiece::kReasoning : OutputPiece::kContent, std::string(text)});
  }

  ReasoningTags tags_;
  bool inside_;           // of the tags, by text
  bool tokens_inside_;    // the same by tokens, which run ahead
  bool trim_;             // newlines at the beginning are not wanted
  std::deque<bool> due_;  // tags whose tokens came and whose text did not: true opens
  std::string held_;      // text that may turn out to be a tag
  std::string newlines_;  // at the end of reasoning, perhaps in front of the closing tag
  uint32_t reasoning_tokens_ = 0;
};

}  // namespace

std::unique_ptr<OutputParser> make_plain_parser() { return std::make_unique<PlainParser>(); }

std::unique_ptr<OutputParser> make_reasoning_parser(ReasoningTags tags, bool open) {
  return std::make_unique<ReasoningParser>(std::move(tags), open);
}

}  // namespace atlas::serve
