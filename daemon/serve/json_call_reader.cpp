// Calls as JSON: one object, then the closing tag. The bytes are scanned as they come, so that
// text which cannot be JSON is given up at once; the whole object is then read strictly.
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "daemon/serve/call_reader.h"

namespace atlas::serve {
namespace {

constexpr size_t kMaxDepth = 64;  // as parse_json has it

bool stands_outside_strings(char byte) {
  return is_call_space(byte) || byte == ',' || byte == ':' || byte == '+' || byte == '-' ||
         byte == '.' || (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
         (byte >= 'A' && byte <= 'Z');
}

// The byte behind the string that begins at `at`.
size_t behind_string(std::string_view json, size_t at) {
  for (++at; at < json.size() && json[at] != '"'; ++at) {
    if (json[at] == '\\') ++at;
  }
  return at + 1;
}

// The byte behind the value that begins at `at`: the comma or brace that follows it, perhaps with
// white space in front.
size_t behind_value(std::string_view json, size_t at) {
  size_t depth = 0;
  while (at < json.size()) {
    const char byte = json[at];
    if (byte == '"') {
      at = behind_string(json, at);
      continue;
    }
    if (depth == 0 && (byte == ',' || byte == '}')) break;
    if (byte == '{' || byte == '[') ++depth;
    if (byte == '}' || byte == ']') --depth;
    ++at;
  }
  return at;
}

// The text of a member of a well-formed object; empty if no key is spelled like this.
std::string_view member_text(std::string_view json, std::string_view key) {
  size_t at = 1;
  while ((at = json.find('"', at)) != json.npos) {
    const size_t key_end = behind_string(json, at);
    size_t value = json.find(':', key_end) + 1;
    while (is_call_space(json[value])) ++value;
    size_t end = behind_value(json, value);
    const size_t next = end;
    while (is_call_space(json[end - 1])) --end;
    if (json.substr(at + 1, key_end - at - 2) == key) return json.substr(value, end - value);
    at = next;
  }
  return {};
}

std::optional<ToolCall> read_call(std::string_view text) {
  Json object;
  if (parse_json(text, object) || !object.is_object()) return std::nullopt;
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string()) return std::nullopt;
  ToolCall call{.name = name->get<std::string>(), .arguments = "{}"};
  if (call.name.empty()) return std::nullopt;
  for (const std::string_view key : {"arguments", "parameters"}) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) continue;
    if (found->is_string()) {
      call.arguments = found->get<std::string>();
      if (!is_json_object(call.arguments)) return std::nullopt;
    } else {
      // Not written anew: a number keeps its digits.
      call.arguments = member_text(text, key);
      if (!found->is_object() || call.arguments.empty()) return std::nullopt;
    }
    return call;
  }
  return call;
}

class JsonCallReader : public CallReader {
 public:
  void begin() override {
    where_ = kBefore;
    closers_.clear();
    in_string_ = escaped_ = false;
  }

  State advance(std::string_view body, ToolCall& call) override {
    const char byte = body.back();
    switch (where_) {
      case kBefore:
        if (is_call_space(byte)) return State::kMore;
        if (byte != '{') return State::kBroken;
        where_ = kObject;
        mark_ = body.size() - 1;
        closers_ = "}";
        return State::kMore;
      case kObject:
        if (!take(byte)) return State::kBroken;
        if (!closers_.empty()) return State::kMore;
        return end_object(body);
      case kBehind:
        break;
    }
    if (mark_ + 1 == body.size() && is_call_space(byte)) {
      ++mark_;
      return State::kMore;
    }
    const std::string_view tail = body.substr(mark_);
    if (!kCallClose.starts_with(tail)) return State::kBroken;
    if (tail.size() < kCallClose.size()) return State::kMore;
    call = std::move(call_);
    return State::kDone;
  }

  bool in_text() const override { return where_ == kObject && in_string_; }

 private:
  // One byte of the object; false: JSON has no such byte here.
  bool take(char byte) {
    if (in_string_) {
      if (static_cast<unsigned char>(byte) < 0x20) return false;
      if (escaped_) {
        escaped_ = false;
      } else if (byte == '\\') {
        escaped_ = true;
      } else if (byte == '"') {
        in_string_ = false;
      }
      return true;
    }
    switch (byte) {
      case '"':
        in_string_ = true;
        return true;
      case '{':
      case '[':
        closers_ += byte == '{' ? '}' : ']';
        return closers_.size() <= kMaxDepth;
      case '}':
      case ']':
        if (closers_.back() != byte) return false;
        closers_.pop_back();
        return true;
      default:
        return stands_outside_strings(byte);
    }
  }

  State end_object(std::string_view body) {
    auto call = read_call(body.substr(mark_));
    if (!call) return State::kBroken;
    call_ = std::move(*call);
    where_ = kBehind;
    mark_ = body.size();
    return State::kMore;
  }

  enum { kBefore, kObject, kBehind } where_ = kBefore;
  size_t mark_ = 0;      // where the object, or the closing tag, begins
  std::string closers_;  // of the open braces and brackets, outermost first
  bool in_string_ = false;
  bool escaped_ = false;
  ToolCall call_;
};

}  // namespace

std::unique_ptr<CallReader> make_json_call_reader() { return std::make_unique<JsonCallReader>(); }

}  // namespace atlas::serve
