// loop.index and its kin.
#include "daemon/model/chat_template/loop.h"

#include "daemon/model/chat_template/arguments.h"
#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"

namespace atlas::model::jinja {
namespace {

Value cycle(Runtime&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) fail("loop.cycle needs at least one value");
  const auto round = static_cast<size_t>(loop_of(self).index0);
  return arguments.positional[round % arguments.positional.size()];
}

Value changed(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LoopObject& loop = loop_of(self);
  bool differs = !loop.last_changed || loop.last_changed->size() != arguments.positional.size();
  for (size_t i = 0; !differs && i < arguments.positional.size(); ++i) {
    differs = !equal(runtime, (*loop.last_changed)[i], arguments.positional[i]);
  }
  if (differs) loop.last_changed = arguments.positional;
  return Value::boolean(differs);
}

}  // namespace

LoopObject& loop_of(const Value& value) { return static_cast<LoopObject&>(*value.object()); }

bool LoopObject::fetch() {
  while (cursor_ < source.size()) {
    const Value& item = source[cursor_++];
    if (accepts && !accepts(item)) continue;
    ahead_.push_back(item);
    return true;
  }
  return false;
}

bool LoopObject::advance() {
  if (ahead_.empty() && !fetch()) return false;
  previous_ = std::move(current_);
  current_ = std::move(ahead_.front());
  ahead_.pop_front();
  ++index0;
  return true;
}

void LoopObject::close() {
  accepts = nullptr;
  cursor_ = source.size();
}

size_t LoopObject::length() {
  while (fetch()) {
  }
  return static_cast<size_t>(index0 + 1) + ahead_.size();
}

std::optional<Value> LoopObject::attribute(Runtime& runtime, std::string_view name,
                                           const Value& self) {
  if (name == "index0") return Value::integer(index0);
  if (name == "index") return Value::integer(index0 + 1);
  if (name == "first") return Value::boolean(index0 == 0);
  if (name == "last") return Value::boolean(ahead_.empty() && !fetch());
  if (name == "length") return Value::integer(static_cast<Integer>(length()));
  if (name == "revindex") return Value::integer(static_cast<Integer>(length()) - index0);
  if (name == "revindex0") return Value::integer(static_cast<Integer>(length()) - index0 - 1);
  if (name == "depth") return Value::integer(depth0 + 1);
  if (name == "depth0") return Value::integer(depth0);
  if (name == "previtem") {
    return index0 == 0 ? Value::undefined("there is no previous item") : previous_;
  }
  if (name == "nextitem") {
    if (ahead_.empty() && !fetch()) return Value::undefined("there is no next item");
    return ahead_.front();
  }
  if (name == "cycle") return runtime.function("cycle", cycle, self);
  if (name == "changed") return runtime.function("changed", changed, self);
  return std::nullopt;
}

}  // namespace atlas::model::jinja
