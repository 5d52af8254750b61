// Python's operators on values: truth, equality, order, membership, arithmetic, access, iteration.
// Errors are Failures that say what Python would say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/model/chat_template/runtime.h"
#include "daemon/model/chat_template/value.h"

namespace atlas::model::jinja {

// operators.cpp

/// bool(value)
bool truthy(const Value& value);
bool equal(Runtime& runtime, const Value& left, const Value& right);
/// left < right; `symbol` is the operator for the message that some types have no order.
bool less(Runtime& runtime, const Value& left, const Value& right, std::string_view symbol = "<");
/// item in container
bool contains(Runtime& runtime, const Value& item, const Value& container);
/// Fails for what Python cannot hash: lists, dicts and tuples with one of them inside.
void require_hashable(const Value& key);
/// Place of the key in the dict; the number of items if it is not there.
size_t find_key(Runtime& runtime, const DictObject& dict, const Value& key);
size_t find_text_key(Runtime& runtime, const DictObject& dict, std::string_view key);

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
};
std::string_view symbol_of(Operator op);
Value arithmetic(Runtime& runtime, Operator op, const Value& left, const Value& right);
Value negate(const Value& operand);
/// Fails if the value is undefined, with the reason.
void require_defined(const Value& value);

// access.cpp

/// object.name: a method or attribute first, then an item, else undefined.
Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
/// object[key]: an item first, then an attribute, else undefined.
Value get_item(Runtime& runtime, const Value& object, const Value& key);
/// object[start:stop:step]; none stands for a part left out.
Value get_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
                const Value& step);
/// All items of an iterable, in order; an iterator is used up by it.
std::vector<Value> iterate(Runtime& runtime, const Value& value);
bool is_iterable(const Value& value);
/// len(value), or nothing where the type has no length.
std::optional<size_t> length_of(Runtime& runtime, const Value& value);
/// The integer as an index: clamped to what fits 64 bits. Fails for other types.
int64_t as_index(const Value& value, std::string_view what);

// printing.cpp

/// str(value), with the provenance of its parts.
Text to_text(Runtime& runtime, const Value& value);
/// repr(value)
std::string repr(Runtime& runtime, const Value& value);
/// A float as Python prints it: the shortest digits that read back the same.
std::string float_text(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  /// Text of one indentation step; no value: everything on one line.
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
/// json.dumps(value)
std::string to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

// text_format.cpp

/// format % arguments
Value percent_format(Runtime& runtime, const Value& format, const Value& arguments);
/// format.format(...)
Value brace_format(Runtime& runtime, const Value& format, const Arguments& arguments);

}  // namespace atlas::model::jinja
