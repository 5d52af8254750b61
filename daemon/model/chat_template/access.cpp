// Attributes, items, slices and iteration.
#include <algorithm>
#include <limits>

#include "daemon/model/chat_template/builtins.h"
#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/loop.h"
#include "daemon/model/chat_template/operations.h"
#include "daemon/model/chat_template/unicode.h"

namespace atlas::model::jinja {
namespace {

std::string described(const Value& object) {
  return object.is(Kind::kNone) ? "None" : fmt::format("{} object", type_name(object));
}

/// What the object itself has under that name, items of a dict apart.
std::optional<Value> own_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (name.starts_with("__") || is_forbidden_method(object, name)) {
    return Value::undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)));
  }
  if (object.is(Kind::kNamespace)) {
    for (const auto& [key, value] : object.attributes().attributes) {
      if (key == name) return value;
    }
    return std::nullopt;
  }
  if (object.is(Kind::kLoop)) return loop_of(object).attribute(runtime, name, object);
  if (const Function* method = find_method(object, name)) {
    return runtime.function(method->name, method->call, object);
  }
  return std::nullopt;
}

std::optional<Value> own_item(Runtime& runtime, const Value& object, const Value& key) {
  if (object.is(Kind::kDict)) {
    if (key.is(Kind::kList) || key.is(Kind::kDict)) return std::nullopt;
    require_hashable(key);
    const size_t place = find_key(runtime, object.dict(), key);
    if (place == object.dict().items.size()) return std::nullopt;
    return object.dict().items[place].second;
  }
  if (!key.is_integral()) return std::nullopt;
  const int64_t size = object.is(Kind::kText) || object.is_sequence() || object.is(Kind::kRange)
                           ? static_cast<int64_t>(*length_of(runtime, object))
                           : 0;
  int64_t index = as_index(key, "index");
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  if (object.is(Kind::kRange)) {
    return Value::integer(object.range().start + index * object.range().step);
  }
  if (object.is_sequence()) return object.items()[static_cast<size_t>(index)];
  const Text& text = object.text();
  const size_t begin = code_point_offset(text.bytes(), static_cast<size_t>(index));
  size_t end = begin;
  next_code_point(text.bytes(), end);
  return runtime.text(text.slice(begin, end));
}

struct SliceBounds {
  int64_t start;
  int64_t stop;
  int64_t step;
};

/// The rules of slice.indices: out-of-range bounds are clipped, negative ones count from the end.
SliceBounds slice_bounds(const Value& start, const Value& stop, const Value& step, int64_t size) {
  SliceBounds bounds{};
  bounds.step = step.is(Kind::kNone) ? 1 : as_index(step, "slice step");
  if (bounds.step == 0) fail("slice step cannot be zero");
  // The most negative step has no positive counterpart; any step beyond the size acts the same.
  bounds.step = std::max(bounds.step, -std::numeric_limits<int64_t>::max());
  const bool forward = bounds.step > 0;
  const auto clip = [&](const Value& value, int64_t otherwise) {
    if (value.is(Kind::kNone)) return otherwise;
    int64_t index = as_index(value, "slice bound");
    if (index < 0) index = std::max<int64_t>(index + size, forward ? 0 : -1);
    return std::min(index, forward ? size : size - 1);
  };
  bounds.start = clip(start, forward ? 0 : size - 1);
  bounds.stop = clip(stop, forward ? size : -1);
  return bounds;
}

/// The places that a slice takes, in its order.
std::vector<size_t> slice_places(const SliceBounds& bounds) {
  RangeObject range;
  range.start = bounds.start;
  range.stop = bounds.stop;
  range.step = bounds.step;
  std::vector<size_t> places(static_cast<size_t>(range.size()));
  for (size_t i = 0; i < places.size(); ++i) {
    places[i] = static_cast<size_t>(bounds.start + static_cast<int64_t>(i) * bounds.step);
  }
  return places;
}

Value slice_text(Runtime& runtime, const Text& text, const SliceBounds& bounds) {
  const std::string& bytes = text.bytes();
  if (bounds.step == 1) {
    if (bounds.start >= bounds.stop) return runtime.text("", false);
    const size_t begin = code_point_offset(bytes, static_cast<size_t>(bounds.start));
    const std::string_view rest = std::string_view(bytes).substr(begin);
    const auto count = static_cast<size_t>(bounds.stop - bounds.start);
    return runtime.text(text.slice(begin, begin + code_point_offset(rest, count)));
  }
  std::vector<size_t> offsets;
  for (size_t position = 0; position < bytes.size();) {
    offsets.push_back(position);
    next_code_point(bytes, position);
  }
  Text result;
  for (const size_t place : slice_places(bounds)) {
    size_t end = offsets[place];
    next_code_point(bytes, end);
    result.append(text, offsets[place], end);
  }
  return runtime.text(std::move(result));
}

Value slice_range(Runtime& runtime, const RangeObject& range, const SliceBounds& bounds) {
  // A step beyond the size takes one item whatever it is; clipped, the products stay small.
  const int64_t most = range.size() + 1;
  const int64_t step = std::clamp(bounds.step, -most, most) * range.step;
  return runtime.range(range.start + bounds.start * range.step,
                       range.start + bounds.stop * range.step, step);
}

std::vector<Value> characters(Runtime& runtime, const Text& text) {
  std::vector<Value> items;
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    next_code_point(text.bytes(), position);
    items.push_back(runtime.text(text.slice(begin, position)));
  }
  return items;
}

std::vector<Value> view_items(Runtime& runtime, const DictObject& dict, ViewKind kind) {
  std::vector<Value> items;
  items.reserve(dict.items.size());
  for (const auto& [key, value] : dict.items) {
    if (kind == ViewKind::kItems) {
      items.push_back(runtime.tuple({key, value}));
    } else {
      items.push_back(kind == ViewKind::kKeys ? key : value);
    }
  }
  return items;
}

}  // namespace

int64_t as_index(const Value& value, std::string_view what) {
  if (!value.is_integral()) {
    require_defined(value);
    fail("{} must be an integer, not {}", what, type_name(value));
  }
  const Integer wide = std::clamp(value.as_integer(), Integer{std::numeric_limits<int64_t>::min()},
                                  Integer{std::numeric_limits<int64_t>::max()});
  return static_cast<int64_t>(wide);
}

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  require_defined(object);
  if (auto own = own_attribute(runtime, object, name)) return *std::move(own);
  if (object.is(Kind::kDict)) {
    const size_t place = find_text_key(runtime, object.dict(), name);
    if (place < object.dict().items.size()) return object.dict().items[place].second;
  }
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", described(object), name));
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  require_defined(object);
  if (auto item = own_item(runtime, object, key)) return *std::move(item);
  if (!key.is(Kind::kText)) {
    return Value::undefined(
        fmt::format("{} has no element {}", described(object), repr(runtime, key)));
  }
  const std::string& name = key.text().bytes();
  if (auto own = own_attribute(runtime, object, name)) return *std::move(own);
  return Value::undefined(
      fmt::format("'{}' has no attribute {}", described(object), repr(runtime, key)));
}

Value get_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
                const Value& step) {
  require_defined(object);
  if (!object.is(Kind::kText) && !object.is_sequence() && !object.is(Kind::kRange)) {
    fail("'{}' object cannot be sliced", type_name(object));
  }
  const auto size = static_cast<int64_t>(*length_of(runtime, object));
  const SliceBounds bounds = slice_bounds(start, stop, step, size);
  if (object.is(Kind::kText)) return slice_text(runtime, object.text(), bounds);
  if (object.is(Kind::kRange)) return slice_range(runtime, object.range(), bounds);
  std::vector<Value> items;
  for (const size_t place : slice_places(bounds)) items.push_back(object.items()[place]);
  return object.is(Kind::kList) ? runtime.list(std::move(items)) : runtime.tuple(std::move(items));
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kText:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kView:
    case Kind::kRange:
    case Kind::kIterator:
      return true;
    default:
      return false;
  }
}

std::vector<Value> iterate(Runtime& runtime, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kText:
      return characters(runtime, value.text());
    case Kind::kList:
    case Kind::kTuple:
      runtime.budget().work(value.items().size() * sizeof(Value));
      return value.items();
    case Kind::kDict:
      return view_items(runtime, value.dict(), ViewKind::kKeys);
    case Kind::kView:
      return view_items(runtime, *value.view().dict, value.view().kind);
    case Kind::kRange: {
      const RangeObject& range = value.range();
      std::vector<Value> items;
      for (int64_t i = 0; i < range.size(); ++i) {
        items.push_back(Value::integer(range.start + i * range.step));
      }
      runtime.budget().work(items.size() * sizeof(Value));
      return items;
    }
    case Kind::kIterator: {
      IteratorObject& iterator = value.iterator();
      std::vector<Value> rest(iterator.items.begin() + static_cast<std::ptrdiff_t>(iterator.next),
                              iterator.items.end());
      iterator.next = iterator.items.size();
      return rest;
    }
    default:
      fail("'{}' object is not iterable", type_name(value));
  }
}

std::optional<size_t> length_of(Runtime& runtime, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kText:
      runtime.budget().work(value.text().size());
      return count_code_points(value.text().bytes());
    case Kind::kList:
    case Kind::kTuple:
      return value.items().size();
    case Kind::kDict:
      return value.dict().items.size();
    case Kind::kView:
      return value.view().dict->items.size();
    case Kind::kRange:
      return static_cast<size_t>(value.range().size());
    case Kind::kLoop:
      return loop_of(value).length();
    default:
      return std::nullopt;
  }
}

}  // namespace atlas::model::jinja
