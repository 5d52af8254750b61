// Makers and accessors of values, and the account of what they hold.
#include "daemon/model/chat_template/value.h"

#include <algorithm>

#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"
#include "daemon/model/chat_template/runtime.h"

namespace atlas::model::jinja {
namespace {

/// What one object costs beside its payload: control block, header, allocator, the value itself.
constexpr size_t kObjectBytes = 192;
/// From here on a dict keeps the places of its text keys.
constexpr size_t kIndexedDict = 9;

template <typename T>
T& object_as(const std::shared_ptr<Object>& object) {
  ATLAS_CHECK(object != nullptr, "a value's kind and object differ");
  return static_cast<T&>(*object);
}

uint32_t deepest(const std::vector<Value>& items) {
  uint32_t depth = 0;
  for (const Value& item : items) {
    if (item.object()) depth = std::max(depth, item.object()->depth);
  }
  return depth;
}

bool any_plain(const std::vector<Value>& items) {
  return std::any_of(items.begin(), items.end(), [](const Value& item) { return item.plain(); });
}

}  // namespace

Value Value::boolean(bool value, bool plain) {
  Value result(Kind::kBoolean, plain);
  result.integer_ = value ? 1 : 0;
  return result;
}

Value Value::integer(Integer value, bool plain) {
  Value result(Kind::kInteger, plain);
  result.integer_ = value;
  return result;
}

Value Value::real(double value, bool plain) {
  Value result(Kind::kFloat, plain);
  result.real_ = value;
  return result;
}

Value Value::literal(std::string_view text) {
  auto object = std::make_shared<TextObject>();
  object->text = Text(text, false);
  return Value::object(Kind::kText, std::move(object), false);
}

Value Value::undefined(std::string_view message) {
  Value result = literal(message);
  result.kind_ = Kind::kUndefined;
  return result;
}

Value Value::object(Kind kind, std::shared_ptr<Object> object, bool plain) {
  Value result(kind, plain);
  result.object_ = std::move(object);
  return result;
}

double Value::as_real() const {
  return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_);
}

const Text& Value::text() const { return object_as<TextObject>(object_).text; }
const std::vector<Value>& Value::items() const { return object_as<ListObject>(object_).items; }
const DictObject& Value::dict() const { return object_as<DictObject>(object_); }
std::shared_ptr<DictObject> Value::dict_object() const {
  return std::static_pointer_cast<DictObject>(object_);
}
const RangeObject& Value::range() const { return object_as<RangeObject>(object_); }
const ViewObject& Value::view() const { return object_as<ViewObject>(object_); }
IteratorObject& Value::iterator() const { return object_as<IteratorObject>(object_); }
NamespaceObject& Value::attributes() const { return object_as<NamespaceObject>(object_); }
const FunctionObject& Value::function() const { return object_as<FunctionObject>(object_); }

std::string Value::undefined_message() const {
  return object_ ? text().bytes() : std::string("the value is undefined");
}

Value Value::as_markup() const {
  Value result = *this;
  result.markup_ = true;
  return result;
}

Value Value::with_plain(bool plain) const {
  Value result = *this;
  result.plain_ = plain;
  return result;
}

int64_t RangeObject::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBoolean:
      return "bool";
    case Kind::kInteger:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
      return value.view().kind == ViewKind::kKeys     ? "dict_keys"
             : value.view().kind == ViewKind::kValues ? "dict_values"
                                                      : "dict_items";
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
      return "function";
  }
  return "object";
}

Held::~Held() {
  if (budget_ != nullptr) budget_->held_bytes_ -= bytes_;
}

void Budget::hold(Held& held, size_t bytes) {
  if (bytes > kMaxHeldBytes - held_bytes_) {
    fail_limit("the template holds more than {} MiB of values", kMaxHeldBytes >> 20);
  }
  held.budget_ = this;
  held.bytes_ += bytes;
  held_bytes_ += bytes;
}

void Budget::too_many_steps() {
  fail_limit("the template takes more than {} steps to render", kMaxSteps);
}
void Budget::too_many_iterations() {
  fail_limit("the template loops more than {} times", kMaxIterations);
}
void Budget::too_much_work() {
  fail_limit("the template copies or searches more than {} GiB of text", kMaxWorkBytes >> 30);
}

uint32_t depth_above(uint32_t depth) {
  if (depth >= kMaxValueDepth) {
    fail_limit("lists and dicts are nested more than {} deep", kMaxValueDepth);
  }
  return depth + 1;
}

Runtime::~Runtime() {
  for (const auto& one : namespaces_) one->attributes.clear();
}

Value Runtime::text(Text text) {
  if (text.size() > kMaxTextBytes) {
    fail_limit("the template makes a text of more than {} MiB", kMaxTextBytes >> 20);
  }
  auto object = std::make_shared<TextObject>();
  budget_.work(text.size());
  budget_.hold(object->held,
               kObjectBytes + text.size() + text.plain_ranges().size() * sizeof(ByteRange));
  const bool plain = text.any_plain();
  object->text = std::move(text);
  return Value::object(Kind::kText, std::move(object), plain);
}

Value Runtime::text_of(std::string_view bytes, bool plain) { return text(Text(bytes, plain)); }

Value Runtime::sequence(Kind kind, std::vector<Value> items, bool plain) {
  auto object = std::make_shared<ListObject>();
  budget_.work(items.size() * sizeof(Value));
  budget_.hold(object->held, kObjectBytes + items.size() * sizeof(Value));
  object->depth = depth_above(deepest(items));
  const bool holds_plain = plain || any_plain(items);
  object->items = std::move(items);
  return Value::object(kind, std::move(object), holds_plain);
}

Value Runtime::list(std::vector<Value> items, bool plain) {
  return sequence(Kind::kList, std::move(items), plain);
}

Value Runtime::tuple(std::vector<Value> items, bool plain) {
  return sequence(Kind::kTuple, std::move(items), plain);
}

Value Runtime::dict(std::vector<std::pair<Value, Value>> items, bool plain) {
  auto object = std::make_shared<DictObject>();
  budget_.work(items.size() * 2 * sizeof(Value));
  budget_.hold(object->held, kObjectBytes + items.size() * 3 * sizeof(Value));
  const bool indexed = items.size() >= kIndexedDict;
  object->items.reserve(items.size());
  uint32_t depth = 0;
  for (auto& [key, value] : items) {
    require_hashable(key);
    plain = plain || key.plain() || value.plain();
    if (key.object()) depth = std::max(depth, key.object()->depth);
    if (value.object()) depth = std::max(depth, value.object()->depth);
    if (const size_t place = find_key(*this, *object, key); place < object->items.size()) {
      object->items[place].second = std::move(value);
      continue;
    }
    object->items.emplace_back(std::move(key), std::move(value));
    const Value& kept = object->items.back().first;
    if (indexed && kept.is(Kind::kText)) {
      object->text_places.emplace(kept.text().bytes(), object->items.size() - 1);
    }
  }
  object->depth = depth_above(depth);
  return Value::object(Kind::kDict, std::move(object), plain);
}

Value Runtime::iterator(std::vector<Value> items) {
  auto object = std::make_shared<IteratorObject>();
  budget_.hold(object->held, kObjectBytes + items.size() * sizeof(Value));
  object->depth = depth_above(deepest(items));
  const bool plain = any_plain(items);
  object->items = std::move(items);
  return Value::object(Kind::kIterator, std::move(object), plain);
}

Value Runtime::view(const Value& dict, ViewKind kind) {
  auto object = std::make_shared<ViewObject>();
  budget_.hold(object->held, kObjectBytes);
  object->dict = dict.dict_object();
  object->kind = kind;
  object->depth = depth_above(object->dict->depth);
  return Value::object(Kind::kView, std::move(object), dict.plain());
}

Value Runtime::range(int64_t start, int64_t stop, int64_t step) {
  auto object = std::make_shared<RangeObject>();
  budget_.hold(object->held, kObjectBytes);
  object->start = start;
  object->stop = stop;
  object->step = step;
  return Value::object(Kind::kRange, std::move(object), false);
}

Value Runtime::make_namespace(std::vector<std::pair<std::string, Value>> attributes) {
  auto object = std::make_shared<NamespaceObject>();
  budget_.hold(object->held, 2 * kObjectBytes);
  object->attributes = std::move(attributes);
  namespaces_.push_back(object);
  return Value::object(Kind::kNamespace, std::move(object), false);
}

Value Runtime::function(std::string_view name, Callee callee, const Value& self) {
  auto object = std::make_shared<FunctionObject>();
  budget_.hold(object->held, 2 * kObjectBytes);
  object->name = name;
  object->callee = callee;
  object->self = self;
  object->depth = depth_above(self.object() ? self.object()->depth : 0);
  return Value::object(Kind::kFunction, std::move(object), false);
}

}  // namespace atlas::model::jinja
