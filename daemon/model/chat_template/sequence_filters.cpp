// Filters over sequences: choosing, mapping, ordering, joining.
#include <algorithm>
#include <unordered_set>

#include "daemon/model/chat_template/builtins.h"
#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"
#include "daemon/model/chat_template/text_tools.h"

namespace atlas::model::jinja {
namespace {

/// The attribute at the end of a path such as "function.name" or 0.
class AttributePath {
 public:
  AttributePath(Runtime& runtime, const Value& path) : runtime_(runtime) {
    if (path.is(Kind::kNone)) return;
    if (!path.is(Kind::kText)) {
      parts_.push_back(path);
      return;
    }
    std::string_view rest = path.text().bytes();
    for (;;) {
      const size_t dot = std::min(rest.find('.'), rest.size());
      parts_.push_back(part(rest.substr(0, dot)));
      if (dot == rest.size()) return;
      rest.remove_prefix(dot + 1);
    }
  }

  Value of(const Value& item, const Value* otherwise = nullptr) const {
    Value value = item;
    for (const Value& part : parts_) {
      value = get_item(runtime_, value, part);
      if (otherwise != nullptr && value.is(Kind::kUndefined)) value = *otherwise;
    }
    return value;
  }

 private:
  Value part(std::string_view name) const {
    const bool number = !name.empty() && name.size() < 10 &&
                        name.find_first_not_of("0123456789") == std::string_view::npos;
    if (number) return Value::integer(std::stoi(std::string(name)));
    return runtime_.text(name, false);
  }

  Runtime& runtime_;
  std::vector<Value> parts_;
};

/// Text in lower case, everything else as it is: how orders disregard case.
Value without_case(Runtime& runtime, const Value& value) {
  if (!value.is(Kind::kText)) return value;
  return runtime.text(in_case(value.text(), Case::kLower));
}

/// What a filter orders or compares by.
class SortKey {
 public:
  SortKey(Runtime& runtime, bool case_sensitive, const Value& attribute)
      : runtime_(runtime), case_sensitive_(case_sensitive), path_(runtime, attribute) {}
  Value of(const Value& item) const {
    const Value key = path_.of(item);
    return case_sensitive_ ? key : without_case(runtime_, key);
  }

 private:
  Runtime& runtime_;
  bool case_sensitive_;
  AttributePath path_;
};

using Keyed = std::pair<Value, Value>;

Value sorted(Runtime& runtime, std::vector<Keyed> keyed, bool reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& left, const Keyed& right) {
    return reverse ? less(runtime, right.first, left.first)
                   : less(runtime, left.first, right.first);
  });
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (Keyed& one : keyed) items.push_back(std::move(one.second));
  return runtime.list(std::move(items));
}

Value sort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "sort", {"reverse", "case_sensitive", "attribute"}, 0);
  // "a,b" orders by a, then by b.
  const Value attribute = bound.get(2, Value::none());
  std::vector<SortKey> keys;
  if (attribute.is(Kind::kText)) {
    const Text comma(",", false);
    for (const Value& one : split(runtime, attribute.text(), comma, -1, false)) {
      keys.emplace_back(runtime, bound.truth(1), one);
    }
  } else {
    keys.emplace_back(runtime, bound.truth(1), attribute);
  }
  std::vector<Keyed> keyed;
  for (Value& item : iterate(runtime, input)) {
    std::vector<Value> parts;
    for (const SortKey& key : keys) parts.push_back(key.of(item));
    Value key = parts.size() == 1 ? parts[0] : runtime.tuple(std::move(parts));
    keyed.emplace_back(std::move(key), std::move(item));
  }
  return sorted(runtime, std::move(keyed), bound.truth(0));
}

Value dictsort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "dictsort", {"case_sensitive", "by", "reverse"}, 0);
  if (!input.is(Kind::kDict)) {
    require_defined(input);
    fail("dictsort needs dict, not {}", type_name(input));
  }
  const std::string by = bound.has(1) ? bound.text(1).bytes() : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  const SortKey key(runtime, bound.truth(0), Value::integer(by == "key" ? 0 : 1));
  std::vector<Keyed> keyed;
  for (const auto& [name, value] : input.dict().items) {
    Value pair = runtime.tuple({name, value});
    Value order = key.of(pair);
    keyed.emplace_back(std::move(order), std::move(pair));
  }
  return sorted(runtime, std::move(keyed), bound.truth(2));
}

Value unique(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "unique", {"case_sensitive", "attribute"}, 0);
  const SortKey key_of(runtime, bound.truth(0), bound.get(1, Value::none()));
  std::unordered_set<std::string> texts;
  std::vector<Value> others;
  std::vector<Value> items;
  for (Value& item : iterate(runtime, input)) {
    const Value key = key_of.of(item);
    require_hashable(key);
    bool fresh = false;
    if (key.is(Kind::kText)) {
      fresh = texts.insert(key.text().bytes()).second;
    } else {
      fresh = std::none_of(others.begin(), others.end(),
                           [&](const Value& seen) { return equal(runtime, seen, key); });
      if (fresh) others.push_back(key);
    }
    if (fresh) items.push_back(std::move(item));
  }
  return runtime.iterator(std::move(items));
}

template <bool largest>
Value extreme(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, largest ? "max" : "min", {"case_sensitive", "attribute"}, 0);
  const SortKey key_of(runtime, bound.truth(0), bound.get(1, Value::none()));
  const std::vector<Value> items = iterate(runtime, input);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  Value best = items[0];
  Value best_key = key_of.of(best);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = key_of.of(items[i]);
    const bool better = largest ? less(runtime, best_key, key, ">") : less(runtime, key, best_key);
    if (!better) continue;
    best = items[i];
    best_key = std::move(key);
  }
  return best;
}

Value sum(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "sum", {"attribute", "start"}, 0);
  const AttributePath path(runtime, bound.get(0, Value::none()));
  Value total = bound.get(1, Value::integer(0));
  if (total.is(Kind::kText)) fail("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : iterate(runtime, input)) {
    total = arithmetic(runtime, Operator::kAdd, total, path.of(item));
  }
  return total;
}

Value join(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "join", {"d", "attribute"}, 0);
  const Text separator = bound.has(0) ? to_text(runtime, bound[0]) : Text();
  const AttributePath path(runtime, bound.get(1, Value::none()));
  Text result;
  bool first = true;
  for (const Value& item : iterate(runtime, input)) {
    if (!first) result.append(separator);
    first = false;
    result.append(to_text(runtime, path.of(item)));
    if (result.size() > kMaxTextBytes) break;
  }
  return runtime.text(std::move(result));
}

Value length(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "length", {}, 0);
  const auto size = length_of(runtime, input);
  if (!size) fail("object of type '{}' has no len()", type_name(input));
  return Value::integer(static_cast<Integer>(*size), input.plain());
}

Value first(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "first", {}, 0);
  const Value undefined = Value::undefined("No first item, sequence was empty.");
  if (input.is(Kind::kText)) {
    return input.text().empty() ? undefined : get_item(runtime, input, Value::integer(0));
  }
  if (input.is(Kind::kIterator)) {
    IteratorObject& iterator = input.iterator();
    return iterator.next < iterator.items.size() ? iterator.items[iterator.next++] : undefined;
  }
  const std::vector<Value> items = iterate(runtime, input);
  return items.empty() ? undefined : items.front();
}

Value last(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "last", {}, 0);
  const Value undefined = Value::undefined("No last item, sequence was empty.");
  if (input.is(Kind::kText)) {
    return input.text().empty() ? undefined : get_item(runtime, input, Value::integer(-1));
  }
  if (input.is(Kind::kIterator)) fail("'generator' object is not reversible");
  const std::vector<Value> items = iterate(runtime, input);
  return items.empty() ? undefined : items.back();
}

Value list(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "list", {}, 0);
  return runtime.list(iterate(runtime, input));
}

Value items(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "items", {}, 0);
  if (input.is(Kind::kUndefined)) return runtime.iterator({});
  if (!input.is(Kind::kDict)) fail("Can only get item pairs from a mapping.");
  return runtime.iterator(iterate(runtime, runtime.view(input, ViewKind::kItems)));
}

Value reverse(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Bound bound(arguments, "reverse", {}, 0);
  if (input.is(Kind::kText)) {
    return get_slice(runtime, input, Value::none(), Value::none(), Value::integer(-1));
  }
  if (!is_iterable(input)) fail("argument must be iterable");
  std::vector<Value> items = iterate(runtime, input);
  std::reverse(items.begin(), items.end());
  return runtime.iterator(std::move(items));
}

/// The arguments behind the first `count` positional ones.
Arguments without_first(const Arguments& arguments, size_t count) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(count),
                         arguments.positional.end());
  rest.keywords = arguments.keywords;
  return rest;
}

std::string name_argument(const Value& value, std::string_view what) {
  if (!value.is(Kind::kText)) fail("the name of a {} must be str, not {}", what, type_name(value));
  return value.text().bytes();
}

Value map_attribute(Runtime& runtime, const std::vector<Value>& items, const Arguments& arguments) {
  const Bound bound(arguments, "map", {"attribute", "default"}, 1);
  const AttributePath path(runtime, bound[0]);
  const bool has_default = bound.has(1) && !bound[1].is(Kind::kNone);
  std::vector<Value> mapped;
  for (const Value& item : items) {
    runtime.budget().step();
    mapped.push_back(path.of(item, has_default ? &bound[1] : nullptr));
  }
  return runtime.iterator(std::move(mapped));
}

Value map(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!truthy(input)) return runtime.iterator({});
  const std::vector<Value> items = iterate(runtime, input);
  if (arguments.positional.empty()) {
    if (arguments.keywords.empty()) fail("map requires a filter argument");
    return map_attribute(runtime, items, arguments);
  }
  const std::string name = name_argument(arguments.positional[0], "filter");
  const Filter* filter = find_filter(name);
  if (filter == nullptr) fail("No filter named '{}'.", name);
  const Arguments rest = without_first(arguments, 1);
  std::vector<Value> mapped;
  for (const Value& item : items) {
    runtime.budget().step();
    mapped.push_back(filter->apply(runtime, item, rest));
  }
  return runtime.iterator(std::move(mapped));
}

/// select, reject, selectattr and rejectattr.
template <bool keeps, bool by_attribute>
Value choose(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!truthy(input)) return runtime.iterator({});
  constexpr size_t kBefore = by_attribute ? 1 : 0;
  if (arguments.positional.size() < kBefore) fail("Missing parameter for attribute name");
  const AttributePath path(runtime, by_attribute ? arguments.positional[0] : Value::none());
  const Test* test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > kBefore) {
    const std::string name = name_argument(arguments.positional[kBefore], "test");
    test = find_test(name);
    if (test == nullptr) fail("No test named '{}'.", name);
    rest = without_first(arguments, kBefore + 1);
  }
  std::vector<Value> kept;
  for (Value& item : iterate(runtime, input)) {
    runtime.budget().step();
    const Value value = path.of(item);
    const bool holds = test != nullptr ? test->holds(runtime, value, rest) : truthy(value);
    if (holds == keeps) kept.push_back(std::move(item));
  }
  return runtime.iterator(std::move(kept));
}

constexpr Filter kFilters[] = {
    {"count", length},
    {"dictsort", dictsort},
    {"first", first},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"map", map},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", choose<false, false>},
    {"rejectattr", choose<false, true>},
    {"reverse", reverse},
    {"select", choose<true, false>},
    {"selectattr", choose<true, true>},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

const Filter* find_sequence_filter(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                         [name](const Filter& f) { return f.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

std::string sequence_filter_names() {
  std::string names;
  for (const Filter& filter : kFilters) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", filter.name);
  }
  return names;
}

}  // namespace atlas::model::jinja
