// What templates can call by name: filters, tests, functions and methods.
#pragma once

#include <optional>
#include <string_view>

#include "daemon/model/chat_template/arguments.h"
#include "daemon/model/chat_template/runtime.h"
#include "daemon/model/chat_template/value.h"

namespace atlas::model::jinja {

/// A filter gets the value on the left of `|` as its input.
struct Filter {
  std::string_view name;
  Callee apply;
};
/// A test gets the value on the left of `is`.
struct Test {
  std::string_view name;
  bool (*holds)(Runtime&, const Value& value, const Arguments&);
};
struct Function {
  std::string_view name;
  Callee call;
};

/// Null where there is none of that name.
const Filter* find_filter(std::string_view name);
const Test* find_test(std::string_view name);
/// The global functions: range, dict, namespace, raise_exception, strftime_now.
const Function* find_function(std::string_view name);
/// The method of the value's type; null where it has none of that name. Fails for methods of
/// Python that the interpreter does not have.
const Function* find_method(const Value& value, std::string_view name);
/// Whether Python's type has that method and the sandbox of Jinja forbids it (list.append).
bool is_forbidden_method(const Value& value, std::string_view name);

/// Names listed for messages: "a, b, c".
std::string filter_names();
std::string test_names();

// The tables behind them, one a file.
const Filter* find_text_filter(std::string_view name);
const Filter* find_sequence_filter(std::string_view name);
std::string text_filter_names();
std::string sequence_filter_names();
const Function* find_text_method(std::string_view name);

}  // namespace atlas::model::jinja
