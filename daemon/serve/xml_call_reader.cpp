// Calls as tags around raw values. A value may hold anything, its own closing tag included: what
// follows a closing tag decides whether it was one.
#include <utility>

#include "daemon/serve/call_reader.h"
#include "daemon/serve/json_text.h"

namespace atlas::serve {
namespace {

constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr size_t kMaxNameBytes = 256;

bool name_byte(char byte) {
  return static_cast<unsigned char>(byte) >= 0x20 && byte != '<' && byte != '>';
}

/// The value between its tags without the newlines that the form puts around it.
std::string_view without_frame(std::string_view value) {
  if (value.starts_with("\r\n")) {
    value.remove_prefix(2);
  } else if (value.starts_with('\n')) {
    value.remove_prefix(1);
  }
  if (value.ends_with("\r\n")) {
    value.remove_suffix(2);
  } else if (value.ends_with('\n')) {
    value.remove_suffix(1);
  }
  return value;
}

class XmlCallReader : public CallReader {
 public:
  explicit XmlCallReader(std::shared_ptr<const ToolSchema> schema) : schema_(std::move(schema)) {}

  void begin() override {
    where_ = kBeforeFunction;
    mark_ = 0;
    arguments_ = "{";
  }

  State advance(std::string_view body, ToolCall& call) override {
    switch (where_) {
      case kBeforeFunction:
        if (expect(body, kFunction)) return turn(kFunctionName, body);
        return undecided_ ? State::kMore : State::kBroken;
      case kFunctionName:
        return take_name(body, name_) ? turn(kInFunction, body) : named(State::kBroken);
      case kInFunction:
      case kBehindValue:
        return take_tag(body);
      case kFirstName:
        return take_name(body, parameter_) ? turn(kValue, body) : named(State::kBroken);
      case kNextName:
        return take_next_name(body);
      case kValue:
        if (body.back() == '>' && body.substr(mark_).ends_with(kParameterEnd)) {
          value_begin_ = mark_;
          value_bytes_ = body.size() - mark_ - kParameterEnd.size();
          return turn(kBehindValue, body);
        }
        return State::kMore;
      case kBehindFunction:
        break;
    }
    if (!expect(body, kCallClose)) return undecided_ ? State::kMore : State::kBroken;
    call = {std::move(name_), std::move(arguments_)};
    return State::kDone;
  }

  bool in_text() const override {
    return where_ == kValue || where_ == kBehindValue || where_ == kNextName;
  }

 private:
  enum Where {
    kBeforeFunction,  // white space, then the tag
    kFunctionName,
    kInFunction,  // before the first argument
    kFirstName,
    kValue,
    kBehindValue,  // behind what may be the end of a value
    kNextName,     // the same, in what may be the name of the next argument
    kBehindFunction,
  };

  State turn(Where where, std::string_view body) {
    where_ = where;
    mark_ = body.size();
    return State::kMore;
  }

  // Whether `tag` stands at the mark; white space in front moves the mark. `undecided_`: it may
  // yet.
  bool expect(std::string_view body, std::string_view tag) {
    if (mark_ + 1 == body.size() && is_call_space(body.back())) ++mark_;
    const std::string_view tail = body.substr(mark_);
    undecided_ = tag.starts_with(tail);
    return tail == tag;
  }

  // Whether the last byte completed the name that begins at the mark. `undecided_`: it goes on.
  bool take_name(std::string_view body, std::string& name) {
    const size_t bytes = body.size() - 1 - mark_;
    undecided_ = name_byte(body.back()) && bytes < kMaxNameBytes;
    if (body.back() != '>' || bytes == 0) return false;
    name = body.substr(mark_, bytes);
    return true;
  }

  State named(State otherwise) const { return undecided_ ? State::kMore : otherwise; }

  // Text goes on in the value: what looked like its end was not.
  State back_to_value() {
    where_ = kValue;
    mark_ = value_begin_;
    return State::kMore;
  }

  // An argument or the end of the function, behind the function's name or a value.
  State take_tag(std::string_view body) {
    const bool behind_value = where_ == kBehindValue;
    if (expect(body, kParameter)) return turn(behind_value ? kNextName : kFirstName, body);
    const bool may_be_parameter = undecided_;
    if (expect(body, kFunctionEnd)) {
      if (behind_value) add_argument(body);
      arguments_ += '}';
      // The same argument twice is no call.
      return is_json_object(arguments_) ? turn(kBehindFunction, body) : State::kBroken;
    }
    if (undecided_ || may_be_parameter) return State::kMore;
    return behind_value ? back_to_value() : State::kBroken;
  }

  State take_next_name(std::string_view body) {
    std::string next;
    if (take_name(body, next)) {
      add_argument(body);
      parameter_ = std::move(next);
      return turn(kValue, body);
    }
    return undecided_ ? State::kMore : back_to_value();
  }

  void add_argument(std::string_view body) {
    if (arguments_.size() > 1) arguments_ += ", ";
    append_json_string(arguments_, parameter_);
    arguments_ += ": ";
    schema_->append_value(arguments_, name_, parameter_,
                          without_frame(body.substr(value_begin_, value_bytes_)));
  }

  std::shared_ptr<const ToolSchema> schema_;
  Where where_ = kBeforeFunction;
  size_t mark_ = 0;         // where the tag, name or value at hand begins
  size_t value_begin_ = 0;  // the last value that may be complete, and its bytes
  size_t value_bytes_ = 0;
  bool undecided_ = false;
  std::string name_, parameter_;
  std::string arguments_;  // without the closing brace
};

}  // namespace

std::unique_ptr<CallReader> make_xml_call_reader(std::shared_ptr<const ToolSchema> schema) {
  return std::make_unique<XmlCallReader>(std::move(schema));
}

}  // namespace atlas::serve
