// The values of the interpreter: Python's, as far as chat templates use them.
// Containers never change once made, so only namespaces and scopes can form cycles.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/model/chat_template/limits.h"
#include "daemon/model/chat_template/text.h"

namespace atlas::model::jinja {

/// Wide enough for every integer of a JSON document; what overflows it is an error.
using Integer = __int128;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBoolean,
  kInteger,
  kFloat,
  kText,
  kList,
  kTuple,
  kDict,
  kView,
  kRange,
  kIterator,
  kNamespace,
  kLoop,
  kMacro,
  kFunction,
};

class Value;
struct DictObject;
struct RangeObject;
struct ViewObject;
struct IteratorObject;
struct NamespaceObject;
struct FunctionObject;

/// What a value points to; `held` gives its bytes back to the budget when it goes.
struct Object {
  virtual ~Object() = default;
  Held held;
  /// Containers inside containers; bounded, so that recursion over values is.
  uint32_t depth = 0;
};

/// One value. `plain` says that it is, holds, or was computed from request data.
class Value {
 public:
  Value() = default;
  static Value none(bool plain = false) { return Value(Kind::kNone, plain); }
  static Value boolean(bool value, bool plain = false);
  static Value integer(Integer value, bool plain = false);
  static Value real(double value, bool plain = false);
  /// Text outside every budget: the literals of a template.
  static Value literal(std::string_view text);
  /// A value whose use is an error with this message, but which prints as nothing.
  static Value undefined(std::string_view message);
  static Value object(Kind kind, std::shared_ptr<Object> object, bool plain);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool plain() const { return plain_; }
  bool is_number() const {
    return kind_ == Kind::kBoolean || kind_ == Kind::kInteger || kind_ == Kind::kFloat;
  }
  /// Booleans count as integers, as they do in Python.
  bool is_integral() const { return kind_ == Kind::kBoolean || kind_ == Kind::kInteger; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  bool as_boolean() const { return integer_ != 0; }
  Integer as_integer() const { return integer_; }
  /// Of any number.
  double as_real() const;
  const Text& text() const;
  const std::vector<Value>& items() const;
  const DictObject& dict() const;
  std::shared_ptr<DictObject> dict_object() const;
  const RangeObject& range() const;
  const ViewObject& view() const;
  IteratorObject& iterator() const;
  NamespaceObject& attributes() const;
  const FunctionObject& function() const;
  const std::shared_ptr<Object>& object() const { return object_; }
  /// Why the undefined value is undefined.
  std::string undefined_message() const;

  /// HTML-safe text, as the filters safe and escape make it: `+` escapes the other side.
  bool markup() const { return markup_; }
  Value as_markup() const;
  Value with_plain(bool plain) const;

 private:
  Value(Kind kind, bool plain) : kind_(kind), plain_(plain) {}

  Kind kind_ = Kind::kUndefined;
  bool plain_ = false;
  bool markup_ = false;
  union {
    Integer integer_ = 0;
    double real_;
  };
  std::shared_ptr<Object> object_;
};

struct TextObject : Object {
  Text text;
};

struct ListObject : Object {
  std::vector<Value> items;
};

/// An ordered dict; keys are unique under Python's equality.
struct DictObject : Object {
  std::vector<std::pair<Value, Value>> items;
  /// Places of the text keys, once there are enough of them to be worth it.
  std::unordered_map<std::string_view, size_t> text_places;
};

enum class ViewKind : uint8_t { kKeys, kValues, kItems };
struct ViewObject : Object {
  std::shared_ptr<DictObject> dict;
  ViewKind kind = ViewKind::kItems;
};

struct RangeObject : Object {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  int64_t size() const;
};

/// What Python's generators are: each item is handed out once.
struct IteratorObject : Object {
  std::vector<Value> items;
  size_t next = 0;
};

struct NamespaceObject : Object {
  std::vector<std::pair<std::string, Value>> attributes;
};

class Runtime;
struct Arguments;
/// A function or bound method; `self` is undefined for functions.
using Callee = Value (*)(Runtime&, const Value& self, const Arguments&);
struct FunctionObject : Object {
  std::string name;
  Callee callee = nullptr;
  Value self;
};

/// Python's name of the type, for messages.
std::string_view type_name(const Value& value);

}  // namespace atlas::model::jinja
