// CallReader: reads one tool call behind its opening tag, byte by byte, in the form that a chat
// template teaches. Nothing here depends on how the text is cut into tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "daemon/serve/tool_schema.h"

namespace atlas::serve {

inline constexpr std::string_view kCallOpen = "<tool_call>";
inline constexpr std::string_view kCallClose = "</tool_call>";

struct ToolCall {
  std::string name;
  std::string arguments;  // one JSON object, as text
};

class CallReader {
 public:
  enum class State {
    kMore,    // nothing decided yet
    kDone,    // the last byte completed the closing tag
    kBroken,  // with the last byte, or because of what it completed, this is no call
  };

  virtual ~CallReader() = default;
  /// Forgets the last call.
  virtual void begin() = 0;
  /// `body`: all text behind the opening tag; it has grown by one byte since the last time.
  /// kDone fills `call`. After kDone and kBroken comes begin().
  virtual State advance(std::string_view body, ToolCall& call) = 0;
  /// Whether the next byte belongs to the text of a value, so that tags in it are letters.
  virtual bool in_text() const = 0;
};

/// `{"name": "f", "arguments": {...}}` in the form of the Hermes models. Strict JSON, so the call
/// ends at the closing tag behind the object and a closing tag in a string is text. `parameters` is
/// taken for `arguments`, arguments may be absent or a string that holds the object; they are
/// passed on as they were written. Other keys say nothing.
std::unique_ptr<CallReader> make_json_call_reader();

/// `<function=NAME>`, then `<parameter=ARG>`, VALUE, `</parameter>` for each argument, then
/// `</function>`, in the form of the Qwen3-Coder and Qwen3.5 families, with white space between
/// tags. One newline behind `<parameter=ARG>` and one before `</parameter>` are the form's. A value
/// ends at the first `</parameter>` that is followed by `<parameter=ARG>` or `</function>`; others
/// are text. `schema` decides what is JSON.
std::unique_ptr<CallReader> make_xml_call_reader(std::shared_ptr<const ToolSchema> schema);

/// ' ', '\t', '\r' or '\n'.
inline bool is_call_space(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

}  // namespace atlas::serve
