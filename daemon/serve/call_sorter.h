// CallSorter: takes tool calls out of an answer's content. What is not a whole call is content.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/serve/call_reader.h"

namespace atlas::serve {

/// A part of an answer, in the order in which it is sent.
struct OutputPiece {
  enum Kind { kContent, kReasoning, kCall } kind;
  std::string text;  // of a call: its arguments, one whole JSON object
  std::string name;  // of a call: the function's
};

/// Everything depends on the text alone, not on how it is cut. Held back are: text that
/// `<tool_call>` may begin with, newlines in front of such text, and everything behind the tag
/// until the call is whole or cannot become one. Then it is a call, or it is content as it stands,
/// up to where it broke. Newlines next to a call are dropped where no text is on the other side of
/// them.
class CallSorter {
 public:
  explicit CallSorter(std::unique_ptr<CallReader> reader) : reader_(std::move(reader)) {}

  void feed(std::string_view content, std::vector<OutputPiece>& out);
  /// Gives what is held back, as content: the answer ends here, or something else comes between.
  void flush(std::vector<OutputPiece>& out);
  /// Whether the next byte belongs to the text of a call's value.
  bool in_text() const { return inside_ && reader_->in_text(); }

 private:
  void outside(char byte, std::vector<OutputPiece>& out);
  void inside(char byte, std::vector<OutputPiece>& out);
  void say(std::string_view text);
  void push_plain(std::vector<OutputPiece>& out);

  std::unique_ptr<CallReader> reader_;
  size_t tag_ = 0;        // bytes of the opening tag that have come
  bool inside_ = false;   // behind it
  std::string held_;      // from the opening tag on
  std::string newlines_;  // not yet said
  std::string plain_;     // content to give
  bool said_ = false;     // some content was given
  bool any_call_ = false;
  bool call_last_ = false;  // nothing but newlines came behind the last call
};

}  // namespace atlas::serve
