// The state of one for loop, and what templates read of it as `loop`.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "daemon/model/chat_template/runtime.h"
#include "daemon/model/chat_template/value.h"

namespace atlas::model::jinja {

/// Hands out the items of a loop. Items are tested only when they are needed, so that a test sees
/// what earlier rounds left in a namespace, as it does in Jinja.
struct LoopObject : Object {
  std::vector<Value> source;
  /// Whether the loop's `if` takes an item; empty where the loop has none.
  std::function<bool(const Value&)> accepts;
  int64_t depth0 = 0;

  /// Moves on to the next item; false when there is none.
  bool advance();
  const Value& current() const { return current_; }
  /// Ends the loop: what was not fetched yet is gone, and so is `accepts`.
  void close();
  /// `loop.name`, or nothing where the loop has no such attribute.
  std::optional<Value> attribute(Runtime& runtime, std::string_view name, const Value& self);
  size_t length();
  int64_t index0 = -1;
  std::optional<std::vector<Value>> last_changed;

 private:
  bool fetch();

  size_t cursor_ = 0;
  std::deque<Value> ahead_;
  Value current_;
  Value previous_;
};

LoopObject& loop_of(const Value& value);

}  // namespace atlas::model::jinja
