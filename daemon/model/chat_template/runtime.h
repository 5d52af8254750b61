// The state of one rendering: the budget, the current line, and the makers of values.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/model/chat_template/limits.h"
#include "daemon/model/chat_template/value.h"

namespace atlas::model::jinja {

/// Makes values on one rendering's budget. Outlives every value it made.
class Runtime {
 public:
  Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  /// Empties what may form cycles, so that every value goes.
  ~Runtime();

  Value text(Text text);
  Value text(std::string_view bytes, bool plain) { return text_of(bytes, plain); }
  Value list(std::vector<Value> items, bool plain = false);
  Value tuple(std::vector<Value> items, bool plain = false);
  /// Later pairs win over earlier ones with an equal key; unhashable keys are an error.
  Value dict(std::vector<std::pair<Value, Value>> items, bool plain = false);
  Value iterator(std::vector<Value> items);
  Value view(const Value& dict, ViewKind kind);
  Value range(int64_t start, int64_t stop, int64_t step);
  Value make_namespace(std::vector<std::pair<std::string, Value>> attributes);
  Value function(std::string_view name, Callee callee, const Value& self);

  Budget& budget() { return budget_; }
  /// Notes the line that an error would be at.
  void at(uint32_t line) { line_ = line; }
  uint32_t line() const { return line_; }

 private:
  Value text_of(std::string_view bytes, bool plain);
  Value sequence(Kind kind, std::vector<Value> items, bool plain);

  Budget budget_;
  uint32_t line_ = 0;
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;
};

/// `value` nested one deeper than its deepest item; an error beyond the limit.
uint32_t depth_above(uint32_t depth);

}  // namespace atlas::model::jinja
