// Walks the tree of a template and writes its output. One evaluator renders once.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/model/chat_template/arguments.h"
#include "daemon/model/chat_template/ast.h"
#include "daemon/model/chat_template/loop.h"
#include "daemon/model/chat_template/runtime.h"

namespace atlas::model::jinja {

/// The names of one block. A name is written here and looked up here, then outwards.
struct Scope : std::enable_shared_from_this<Scope> {
  explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}

  /// Null where no scope has it.
  const Value* find(std::string_view name) const;
  /// `name` has to outlive the scope: it is one of the template or of the request.
  void set(std::string_view name, Value value);

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> names;
};

/// A macro and the scope it was defined in.
struct MacroObject : Object {
  const MacroStatement* macro = nullptr;
  std::shared_ptr<Scope> scope;
};

class Evaluator {
 public:
  explicit Evaluator(Runtime& runtime) : runtime_(runtime) {}
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Runs the template with the variables of `scope`. Fails with what the template fails with.
  Text render(const Program& program, Scope& scope);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Capture;
  /// Counts what is open, so that no template can exhaust the stack.
  class Depth {
   public:
    explicit Depth(Evaluator& evaluator) : evaluator_(evaluator) {
      if (++evaluator_.depth_ > kMaxEvaluationDepth) evaluator_.fail_depth();
    }
    ~Depth() { --evaluator_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    Evaluator& evaluator_;
  };
  [[noreturn]] void fail_depth();

  // Statements, in evaluator.cpp.
  Flow run(const Block& block, Scope& scope);
  Flow run(const Statement& statement, Scope& scope);
  Flow run_node(const TextStatement& node, Scope& scope);
  Flow run_node(const PrintStatement& node, Scope& scope);
  Flow run_node(const IfStatement& node, Scope& scope);
  Flow run_node(const ForStatement& node, Scope& scope);
  Flow run_node(const SetStatement& node, Scope& scope);
  Flow run_node(const SetBlockStatement& node, Scope& scope);
  Flow run_node(const MacroStatement& node, Scope& scope);
  Flow run_node(const FilterBlockStatement& node, Scope& scope);
  Flow run_node(const ScopeStatement& node, Scope& scope);
  Flow run_node(const BreakStatement& node, Scope& scope);
  Flow run_node(const ContinueStatement& node, Scope& scope);
  void write(const Text& text);
  void assign(const Target& target, const Value& value, Scope& scope);
  void assign_attribute(const Target& target, const Value& value, const Scope& scope);
  Value call_macro(const MacroObject& macro, const Arguments& arguments);
  void bind_parameters(const MacroStatement& macro, const Arguments& arguments, Scope& scope);

  // Expressions, in expression_evaluator.cpp.
  Value evaluate(const Expression& expression, Scope& scope);
  Value name(const Expression& expression, const Scope& scope);
  Value slice(const Expression& expression, Scope& scope);
  Value call(const Expression& expression, Scope& scope);
  Value filter(const Expression& expression, const Value& input, Scope& scope);
  /// Filters of a block, innermost first.
  Value filter_chain(const Expression& expression, const Value& input, Scope& scope);
  Value test(const Expression& expression, Scope& scope);
  Value binary(const Expression& expression, Scope& scope);
  Value concat(const Expression& expression, Scope& scope);
  Value compare(const Expression& expression, Scope& scope);
  bool holds(Comparison comparison, const Value& left, const Value& right);
  Value condition(const Expression& expression, Scope& scope);
  Value collection(const Expression& expression, Scope& scope);
  Value dict(const Expression& expression, Scope& scope);
  Arguments arguments(const CallArguments& written, Scope& scope);

  Runtime& runtime_;
  Text* out_ = nullptr;
  uint32_t depth_ = 0;
  /// Scopes that macros hold on to; emptied at the end, for they hold the macros in turn.
  std::vector<std::shared_ptr<Scope>> captured_;
};

}  // namespace atlas::model::jinja
