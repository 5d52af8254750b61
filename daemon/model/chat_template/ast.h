// The tree of a parsed template. It never changes once parsed, so that threads share it.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/model/chat_template/builtins.h"
#include "daemon/model/chat_template/operations.h"
#include "daemon/model/chat_template/value.h"

namespace atlas::model::jinja {

/// Beside each kind: what `items` holds. A null item is a part that was left out.
enum class ExpressionKind : uint8_t {
  kConstant,   // -; constant
  kName,       // -; name
  kAttribute,  // object; name
  kItem,       // object, key
  kSlice,      // object, start or null, stop or null, step or null
  kCall,       // callee; arguments
  kFilter,     // input, or null in a filter block; filter, arguments
  kTest,       // value; test, arguments
  kNot,        // operand
  kNegate,     // operand
  kPlus,       // operand
  kBinary,     // left, right; op
  kConcat,     // parts
  kCompare,    // n + 1 operands; comparisons
  kAnd,        // left, right
  kOr,         // left, right
  kCondition,  // test, then, else or null
  kList,       // items
  kTuple,      // items
  kDict,       // key, value, key, value, ...
};

enum class Comparison : uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// Arguments as written; `*list` and `**dict` are null where there are none.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  ExpressionPtr spread;
  ExpressionPtr spread_keywords;
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  uint32_t line = 0;
  /// Height of the tree from here down; bounded, so that recursion over it is.
  uint32_t height = 1;
  std::string name;
  Value constant;
  Operator op = Operator::kAdd;
  const Filter* filter = nullptr;
  const Test* test = nullptr;
  std::vector<Comparison> comparisons;
  std::vector<ExpressionPtr> items;
  CallArguments arguments;
};

/// What an assignment writes to: a name, an attribute of a namespace, or several of them.
struct Target {
  uint32_t line = 0;
  std::string name;
  /// Empty for a plain name.
  std::string attribute;
  /// Not empty for a tuple; name and attribute are unused then.
  std::vector<Target> items;
  bool is_tuple = false;
};

struct Statement;
using Block = std::vector<Statement>;

struct TextStatement {
  Value text;
};
struct PrintStatement {
  ExpressionPtr value;
};
/// Conditions in order; a null condition is the else branch.
struct IfStatement {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
};
struct ForStatement {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr condition;
  Block body;
  Block otherwise;
};
struct SetStatement {
  Target target;
  ExpressionPtr value;
};
/// `{% set target | filter %}...{% endset %}`; the filter may be null.
struct SetBlockStatement {
  Target target;
  ExpressionPtr filter;
  Block body;
};
struct Parameter {
  std::string name;
  ExpressionPtr otherwise;
};
struct MacroStatement {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  /// Whether the body reads `varargs` or `kwargs`, and so takes arguments beyond its parameters.
  bool takes_varargs = false;
  bool takes_kwargs = false;
};
struct FilterBlockStatement {
  ExpressionPtr filter;
  Block body;
};
/// A block with its own scope: `generation`, and `with` and its names.
struct ScopeStatement {
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  Block body;
};
struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  uint32_t line = 0;
  std::variant<TextStatement, PrintStatement, IfStatement, ForStatement, SetStatement,
               SetBlockStatement, MacroStatement, FilterBlockStatement, ScopeStatement,
               BreakStatement, ContinueStatement>
      node;
};

/// A parsed template.
struct Program {
  Block body;
  /// Every variable, attribute, key and attribute name that the template reads.
  std::set<std::string, std::less<>> mentions;
};

/// Parses a template. Fails with the line for whatever Jinja or this interpreter does not have.
Program parse_program(std::string_view source);

}  // namespace atlas::model::jinja
