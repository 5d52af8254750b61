// Byte by byte: outside of calls the opening tag is looked for, behind it the reader decides.
#include "daemon/serve/call_sorter.h"

#include <algorithm>
#include <utility>

namespace atlas::serve {
namespace {

// Bytes at the end of `text` that the opening tag begins with. Only the tag's first byte is '<'.
size_t opening_bytes(std::string_view text) {
  const size_t at = text.rfind('<');
  if (at == text.npos || at == 0) return 0;
  return kCallOpen.starts_with(text.substr(at)) ? text.size() - at : 0;
}

}  // namespace

void CallSorter::feed(std::string_view content, std::vector<OutputPiece>& out) {
  for (const char byte : content) inside_ ? inside(byte, out) : outside(byte, out);
  push_plain(out);
}

void CallSorter::outside(char byte, std::vector<OutputPiece>& out) {
  if (byte == kCallOpen[tag_]) {
    if (++tag_ < kCallOpen.size()) return;
    tag_ = 0;
    inside_ = true;
    held_ = kCallOpen;
    reader_->begin();
    push_plain(out);
    return;
  }
  if (tag_ > 0) {
    say(kCallOpen.substr(0, tag_));
    tag_ = byte == kCallOpen[0] ? 1 : 0;
    if (tag_ > 0) return;
  }
  if (byte == '\n') {
    newlines_ += byte;
  } else {
    say({&byte, 1});
  }
}

void CallSorter::inside(char byte, std::vector<OutputPiece>& out) {
  held_ += byte;
  ToolCall call;
  const auto state = reader_->advance(std::string_view(held_).substr(kCallOpen.size()), call);
  if (state == CallReader::State::kMore) return;
  inside_ = false;
  if (state == CallReader::State::kDone) {
    any_call_ = call_last_ = true;
    out.push_back({OutputPiece::kCall, std::move(call.arguments), std::move(call.name)});
  } else {
    // What broke the call may begin the next one.
    tag_ = opening_bytes(held_);
    say(std::string_view(held_).substr(0, held_.size() - tag_));
  }
  held_.clear();
}

void CallSorter::say(std::string_view text) {
  if (said_ || !any_call_) plain_ += newlines_;
  newlines_.clear();
  plain_ += text;
  said_ = true;
  call_last_ = false;
}

void CallSorter::push_plain(std::vector<OutputPiece>& out) {
  if (plain_.empty()) return;
  out.push_back({OutputPiece::kContent, std::exchange(plain_, {}), {}});
}

void CallSorter::flush(std::vector<OutputPiece>& out) {
  if (inside_) say(held_);
  if (tag_ > 0) say(kCallOpen.substr(0, tag_));
  if (!newlines_.empty() && !call_last_) say({});
  newlines_.clear();
  held_.clear();
  tag_ = 0;
  inside_ = false;
  push_plain(out);
}

}  // namespace atlas::serve
