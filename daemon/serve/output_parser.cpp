// Reasoning between tags, and what is left to the sorter of calls. Tokens announce a tag, then its
// text is looked for: the text may come later, in pieces, or never (a stop string may have taken
// it).
#include "daemon/serve/output_parser.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace atlas::serve {
namespace {

void give_content(CallSorter* calls, std::string_view text, std::vector<OutputPiece>& out) {
  if (calls != nullptr) {
    calls->feed(text, out);
  } else if (!text.empty()) {
    out.push_back({OutputPiece::kContent, std::string(text), {}});
  }
}

class PlainParser : public OutputParser {
 public:
  explicit PlainParser(std::unique_ptr<CallSorter> calls) : calls_(std::move(calls)) {}
  void feed(std::string_view text, std::span<const engine::TokenId>,
            std::vector<OutputPiece>& out) override {
    give_content(calls_.get(), text, out);
  }
  void finish(std::vector<OutputPiece>& out) override {
    if (calls_ != nullptr) calls_->flush(out);
  }

 private:
  std::unique_ptr<CallSorter> calls_;
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
  ReasoningParser(ReasoningTags tags, bool open, std::unique_ptr<CallSorter> calls)
      : tags_(std::move(tags)), calls_(std::move(calls)), inside_(open), trim_(open) {}

  void feed(std::string_view text, std::span<const engine::TokenId> tokens,
            std::vector<OutputPiece>& out) override {
    for (const engine::TokenId token : tokens) note(token);
    held_ += text;
    while (!due_.empty()) {
      const std::string& tag = due_.front().opens ? tags_.open_text : tags_.close_text;
      const size_t at = held_.find(tag);
      if (at == held_.npos) {
        const size_t kept = partial_tag_bytes(held_, tag);
        emit(std::string_view(held_).substr(0, held_.size() - kept), out);
        held_.erase(0, held_.size() - kept);
        return;
      }
      emit(std::string_view(held_).substr(0, at), out);
      if (!inside_ && calls_ != nullptr && calls_->in_text()) {
        emit(tag, out);
      } else {
        turn(due_.front().opens, out);
      }
      held_.erase(0, at + tag.size());
      settle();
    }
    emit(held_, out);
    held_.clear();
  }

  void finish(std::vector<OutputPiece>& out) override {
    emit(held_, out);
    held_.clear();
    push(newlines_, out);
    newlines_.clear();
    if (calls_ != nullptr) calls_->flush(out);
    while (!due_.empty()) {
      inside_ = due_.front().opens;
      settle();
    }
  }

  uint32_t reasoning_tokens() const override { return reasoning_tokens_; }

 private:
  /// A tag whose token came and whose text did not.
  struct Due {
    bool opens;
    uint32_t tokens;  // behind it, up to the next tag
  };

  void note(engine::TokenId token) {
    if (token == tags_.open || token == tags_.close) {
      due_.push_back({token == tags_.open, 0});
    } else if (!due_.empty()) {
      ++due_.back().tokens;
    } else if (inside_) {
      ++reasoning_tokens_;
    }
  }

  // The first tag that was due has been dealt with.
  void settle() {
    if (inside_) reasoning_tokens_ += due_.front().tokens;
    due_.pop_front();
  }

  void turn(bool inside, std::vector<OutputPiece>& out) {
    if (inside && calls_ != nullptr) calls_->flush(out);
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
    if (!inside_) return give_content(calls_.get(), text, out);
    out.push_back({OutputPiece::kReasoning, std::string(text), {}});
  }

  ReasoningTags tags_;
  std::unique_ptr<CallSorter> calls_;
  bool inside_;           // of the tags
  bool trim_;             // newlines at the beginning are not wanted
  std::deque<Due> due_;   // oldest first
  std::string held_;      // text that may turn out to be a tag
  std::string newlines_;  // at the end of reasoning, perhaps in front of the closing tag
  uint32_t reasoning_tokens_ = 0;
};

}  // namespace

std::unique_ptr<CallSorter> make_call_sorter(ToolFormat format,
                                             std::shared_ptr<const ToolSchema> schema) {
  switch (format) {
    case ToolFormat::kNone:
      return nullptr;
    case ToolFormat::kJson:
      return std::make_unique<CallSorter>(make_json_call_reader());
    case ToolFormat::kXml:
      break;
  }
  if (schema == nullptr) schema = std::make_shared<const ToolSchema>();
  return std::make_unique<CallSorter>(make_xml_call_reader(std::move(schema)));
}

std::unique_ptr<OutputParser> make_plain_parser(std::unique_ptr<CallSorter> calls) {
  return std::make_unique<PlainParser>(std::move(calls));
}

std::unique_ptr<OutputParser> make_reasoning_parser(ReasoningTags tags, bool open,
                                                    std::unique_ptr<CallSorter> calls) {
  return std::make_unique<ReasoningParser>(std::move(tags), open, std::move(calls));
}

}  // namespace atlas::serve
