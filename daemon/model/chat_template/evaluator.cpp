// Statements: output, branches, loops, assignments, macros.
#include "daemon/model/chat_template/evaluator.h"

#include <algorithm>

#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"

namespace atlas::model::jinja {

/// Sends output to a text of its own for as long as it lives.
class Evaluator::Capture {
 public:
  explicit Capture(Evaluator& evaluator)
      : evaluator_(evaluator), before_(std::exchange(evaluator.out_, &text_)) {}
  ~Capture() { evaluator_.out_ = before_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  Text take() { return std::move(text_); }

 private:
  Evaluator& evaluator_;
  Text text_;
  Text* before_;
};

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [key, value] : scope->names) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : names) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

Evaluator::~Evaluator() {
  for (const auto& scope : captured_) scope->names.clear();
}

void Evaluator::fail_depth() {
  --depth_;
  fail_limit("macros call each other too deep: more than {} statements and expressions are open",
             kMaxEvaluationDepth);
}

Text Evaluator::render(const Program& program, Scope& scope) {
  Capture capture(*this);
  run(program.body, scope);
  return capture.take();
}

Evaluator::Flow Evaluator::run(const Block& block, Scope& scope) {
  for (const Statement& statement : block) {
    const Flow flow = run(statement, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run(const Statement& statement, Scope& scope) {
  const Depth depth(*this);
  runtime_.at(statement.line);
  runtime_.budget().step();
  return std::visit([&](const auto& node) { return run_node(node, scope); }, statement.node);
}

void Evaluator::write(const Text& text) {
  runtime_.budget().work(text.size());
  out_->append(text);
  if (out_->size() > kMaxTextBytes) {
    fail_limit("the template writes more than {} MiB", kMaxTextBytes >> 20);
  }
}

Evaluator::Flow Evaluator::run_node(const TextStatement& node, Scope&) {
  write(node.text.text());
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const PrintStatement& node, Scope& scope) {
  const Value value = evaluate(*node.value, scope);
  if (value.is(Kind::kText)) {
    write(value.text());
  } else {
    write(to_text(runtime_, value));
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const IfStatement& node, Scope& scope) {
  for (const auto& [test, block] : node.branches) {
    if (test == nullptr || truthy(evaluate(*test, scope))) return run(block, scope);
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const ForStatement& node, Scope& scope) {
  auto loop = std::make_shared<LoopObject>();
  loop->source = iterate(runtime_, evaluate(*node.iterable, scope));
  runtime_.budget().hold(loop->held, loop->source.size() * sizeof(Value));
  for (const Value& item : loop->source) {
    if (item.object()) loop->depth = std::max(loop->depth, item.object()->depth);
  }
  loop->depth = depth_above(loop->depth);
  if (node.condition) {
    loop->accepts = [this, &node, &scope](const Value& item) {
      const auto inner = std::make_shared<Scope>(scope.shared_from_this());
      assign(node.target, item, *inner);
      return truthy(evaluate(*node.condition, *inner));
    };
  }
  // The loop may outlive the statement in a namespace; what it refers to here does not.
  const auto close = [](LoopObject* ended) { ended->close(); };
  const std::unique_ptr<LoopObject, decltype(close)> guard(loop.get(), close);
  const Value loop_value = Value::object(Kind::kLoop, loop, false);

  bool any_completed = false;
  while (loop->advance()) {
    runtime_.budget().iteration();
    const auto inner = std::make_shared<Scope>(scope.shared_from_this());
    inner->set("loop", loop_value);
    assign(node.target, loop->current(), *inner);
    const Flow flow = run(node.body, *inner);
    if (flow == Flow::kBreak) break;
    // Jinja notes at the end of the body that there was a round: `continue` jumps over that.
    any_completed = any_completed || flow == Flow::kNext;
  }
  if (any_completed || node.otherwise.empty()) return Flow::kNext;
  const auto inner = std::make_shared<Scope>(scope.shared_from_this());
  return run(node.otherwise, *inner);
}

Evaluator::Flow Evaluator::run_node(const SetStatement& node, Scope& scope) {
  assign(node.target, evaluate(*node.value, scope), scope);
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const SetBlockStatement& node, Scope& scope) {
  Capture capture(*this);
  const auto inner = std::make_shared<Scope>(scope.shared_from_this());
  const Flow flow = run(node.body, *inner);
  if (flow != Flow::kNext) return flow;
  Value value = runtime_.text(capture.take());
  if (node.filter) value = filter_chain(*node.filter, value, *inner);
  assign(node.target, value, scope);
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const MacroStatement& node, Scope& scope) {
  auto object = std::make_shared<MacroObject>();
  runtime_.budget().hold(object->held, sizeof(MacroObject));
  object->macro = &node;
  object->scope = scope.shared_from_this();
  if (captured_.empty() || captured_.back() != object->scope) captured_.push_back(object->scope);
  scope.set(node.name, Value::object(Kind::kMacro, std::move(object), false));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const FilterBlockStatement& node, Scope& scope) {
  const auto inner = std::make_shared<Scope>(scope.shared_from_this());
  Text body;
  {
    Capture capture(*this);
    const Flow flow = run(node.body, *inner);
    if (flow != Flow::kNext) return flow;
    body = capture.take();
  }
  write(to_text(runtime_, filter_chain(*node.filter, runtime_.text(std::move(body)), *inner)));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const ScopeStatement& node, Scope& scope) {
  const auto inner = std::make_shared<Scope>(scope.shared_from_this());
  for (const auto& [target, value] : node.assignments) {
    assign(target, evaluate(*value, scope), *inner);
  }
  return run(node.body, *inner);
}

Evaluator::Flow Evaluator::run_node(const BreakStatement&, Scope&) { return Flow::kBreak; }
Evaluator::Flow Evaluator::run_node(const ContinueStatement&, Scope&) { return Flow::kContinue; }

void Evaluator::assign(const Target& target, const Value& value, Scope& scope) {
  if (!target.is_tuple) {
    if (target.attribute.empty()) {
      scope.set(target.name, value);
    } else {
      assign_attribute(target, value, scope);
    }
    return;
  }
  runtime_.at(target.line);
  if (!is_iterable(value)) fail("cannot unpack non-iterable {} object", type_name(value));
  const std::vector<Value> items = iterate(runtime_, value);
  const size_t expected = target.items.size();
  if (items.size() > expected) fail("too many values to unpack (expected {})", expected);
  if (items.size() < expected) {
    fail("not enough values to unpack (expected {}, got {})", expected, items.size());
  }
  for (size_t i = 0; i < expected; ++i) assign(target.items[i], items[i], scope);
}

void Evaluator::assign_attribute(const Target& target, const Value& value, const Scope& scope) {
  runtime_.at(target.line);
  const Value* owner = scope.find(target.name);
  if (owner == nullptr || !owner->is(Kind::kNamespace)) {
    fail("cannot assign attribute on non-namespace object '{}'", target.name);
  }
  if (target.attribute.starts_with('_')) {
    fail("a namespace takes no attribute that begins with an underscore: '{}'", target.attribute);
  }
  auto& attributes = owner->attributes().attributes;
  const auto found =
      std::find_if(attributes.begin(), attributes.end(),
                   [&target](const auto& entry) { return entry.first == target.attribute; });
  if (found != attributes.end()) {
    found->second = value;
  } else {
    attributes.emplace_back(target.attribute, value);
  }
}

void Evaluator::bind_parameters(const MacroStatement& macro, const Arguments& arguments,
                                Scope& scope) {
  const size_t count = macro.parameters.size();
  std::vector<bool> used(arguments.keywords.size(), false);
  std::vector<const Value*> given(count, nullptr);
  for (size_t i = 0; i < count; ++i) {
    if (i < arguments.positional.size()) {
      given[i] = &arguments.positional[i];
      continue;
    }
    for (size_t k = 0; k < arguments.keywords.size(); ++k) {
      if (arguments.keywords[k].first != macro.parameters[i].name) continue;
      given[i] = &arguments.keywords[k].second;
      used[k] = true;
    }
  }
  std::vector<std::pair<Value, Value>> extra;
  for (size_t k = 0; k < arguments.keywords.size(); ++k) {
    if (used[k]) continue;
    const auto& [name, value] = arguments.keywords[k];
    if (!macro.takes_kwargs) {
      fail("macro '{}' takes no keyword argument '{}'", macro.name, name);
    }
    extra.emplace_back(runtime_.text(name, false), value);
  }
  if (arguments.positional.size() > count && !macro.takes_varargs) {
    fail("macro '{}' takes not more than {} argument(s)", macro.name, count);
  }
  if (macro.takes_kwargs) scope.set("kwargs", runtime_.dict(std::move(extra)));
  if (macro.takes_varargs) {
    const auto first = arguments.positional.begin() +
                       static_cast<std::ptrdiff_t>(std::min(count, arguments.positional.size()));
    scope.set("varargs", runtime_.tuple({first, arguments.positional.end()}));
  }
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = macro.parameters[i];
    Value value;
    if (given[i] != nullptr) {
      value = *given[i];
    } else if (parameter.otherwise) {
      value = evaluate(*parameter.otherwise, scope);
    } else {
      value = Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name));
    }
    scope.set(parameter.name, std::move(value));
  }
}

Value Evaluator::call_macro(const MacroObject& macro, const Arguments& arguments) {
  const auto scope = std::make_shared<Scope>(macro.scope);
  bind_parameters(*macro.macro, arguments, *scope);
  Capture capture(*this);
  run(macro.macro->body, *scope);
  return runtime_.text(capture.take());
}

}  // namespace atlas::model::jinja
