// Global functions, the methods of dict and list, and the look-up of everything by name.
#include <algorithm>
#include <chrono>
#include <ctime>

#include "daemon/model/chat_template/builtins.h"
#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"

namespace atlas::model::jinja {
namespace {

/// Bounds of ranges; their sums and products stay within 64 bits.
constexpr int64_t kMaxRangeBound = int64_t{1} << 53;

Value range(Runtime& runtime, const Value&, const Arguments& arguments) {
  const Bound bound(arguments, "range", {"start", "stop", "step"}, 1);
  const int64_t first = bound.integer(0, 0);
  const bool only_stop = !bound.has(1);
  const int64_t start = only_stop ? 0 : first;
  const int64_t stop = only_stop ? first : bound.integer(1, 0);
  const int64_t step = bound.integer(2, 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  for (const int64_t value : {start, stop, step}) {
    if (value > kMaxRangeBound || value < -kMaxRangeBound) {
      fail_limit("range() with a bound beyond 2**53");
    }
  }
  const Value made = runtime.range(start, stop, step);
  if (made.range().size() > kMaxRange) {
    fail_limit("Range too big: {} items, the limit is {}", made.range().size(), kMaxRange);
  }
  return made.with_plain(std::any_of(arguments.positional.begin(), arguments.positional.end(),
                                     [](const Value& value) { return value.plain(); }));
}

/// Pairs of a dict() or namespace() call: a mapping or pairs, then keywords.
std::vector<std::pair<Value, Value>> pairs_of(Runtime& runtime, const Arguments& arguments,
                                              std::string_view function) {
  if (arguments.positional.size() > 1) fail("{}() takes at most one positional argument", function);
  std::vector<std::pair<Value, Value>> pairs;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is(Kind::kDict)) {
      pairs = source.dict().items;
    } else {
      for (const Value& item : iterate(runtime, source)) {
        std::vector<Value> pair = iterate(runtime, item);
        if (pair.size() != 2) {
          fail("{}() needs pairs, and was given a sequence of {} items", function, pair.size());
        }
        pairs.emplace_back(std::move(pair[0]), std::move(pair[1]));
      }
    }
  }
  for (const auto& [name, value] : arguments.keywords) {
    pairs.emplace_back(runtime.text(name, false), value);
  }
  return pairs;
}

Value dict(Runtime& runtime, const Value&, const Arguments& arguments) {
  return runtime.dict(pairs_of(runtime, arguments, "dict"));
}

Value make_namespace(Runtime& runtime, const Value&, const Arguments& arguments) {
  const Value unique = runtime.dict(pairs_of(runtime, arguments, "namespace"));
  std::vector<std::pair<std::string, Value>> attributes;
  for (const auto& [name, value] : unique.dict().items) {
    if (!name.is(Kind::kText)) fail("the attributes of a namespace need names");
    if (name.text().bytes().starts_with('_')) {
      fail("a namespace takes no attribute that begins with an underscore: '{}'",
           name.text().bytes());
    }
    attributes.emplace_back(name.text().bytes(), value);
  }
  return runtime.make_namespace(std::move(attributes));
}

Value raise_exception(Runtime& runtime, const Value&, const Arguments& arguments) {
  const Bound bound(arguments, "raise_exception", {"message"}, 1);
  throw Failure{Code::kInvalidArgument, to_text(runtime, bound[0]).bytes(), 0, true};
}

Value strftime_now(Runtime& runtime, const Value&, const Arguments& arguments) {
  const Bound bound(arguments, "strftime_now", {"format"}, 1);
  const std::string& asked = bound.text(0).bytes();
  constexpr size_t kMaxFormat = 1024;
  if (asked.size() > kMaxFormat)
    fail_limit("strftime_now() with a format above {} bytes", kMaxFormat);
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  // A local time of Python knows no zone and has microseconds; strftime of C is the other way.
  std::string format;
  for (size_t i = 0; i < asked.size(); ++i) {
    const char next = asked[i] == '%' && i + 1 < asked.size() ? asked[i + 1] : '\0';
    if (next == 'f') {
      const auto within =
          std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()) %
          std::chrono::seconds(1);
      format += fmt::format("{:06}", within.count());
    } else if (next != 'z' && next != 'Z') {
      format.push_back(asked[i]);
      if (next == '\0') continue;
      format.push_back(next);
    }
    i += next != '\0' ? 1 : 0;
  }
  // One byte in front tells an empty result from one that does not fit.
  format.insert(format.begin(), '.');
  std::string text(64 * kMaxFormat, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &local));
  if (text.empty()) fail_limit("strftime_now() with too long a result");
  return runtime.text(text.substr(1), bound[0].plain());
}

constexpr Function kFunctions[] = {
    {"dict", dict},   {"namespace", make_namespace},  {"raise_exception", raise_exception},
    {"range", range}, {"strftime_now", strftime_now},
};

Value dict_get(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "get", {"key", "default"}, 1);
  require_hashable(bound[0]);
  const size_t place = find_key(runtime, self.dict(), bound[0]);
  if (place < self.dict().items.size()) return self.dict().items[place].second;
  return bound.get(1, Value::none());
}

template <ViewKind kind>
Value dict_view(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "items", {}, 0);
  return runtime.view(self, kind);
}

Value copy(Runtime&, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "copy", {}, 0);
  return self;
}

constexpr Function kDictMethods[] = {
    {"copy", copy},
    {"get", dict_get},
    {"items", dict_view<ViewKind::kItems>},
    {"keys", dict_view<ViewKind::kKeys>},
    {"values", dict_view<ViewKind::kValues>},
};

Value list_count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "count", {"value"}, 1);
  const auto& items = self.items();
  return Value::integer(std::count_if(items.begin(), items.end(), [&](const Value& item) {
    return equal(runtime, item, bound[0]);
  }));
}

Value list_index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "index", {"value"}, 1);
  const auto& items = self.items();
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(runtime, items[i], bound[0])) return Value::integer(static_cast<Integer>(i));
  }
  fail("{} is not in list", repr(runtime, bound[0]));
}

constexpr Function kListMethods[] = {{"copy", copy}, {"count", list_count}, {"index", list_index}};
constexpr Function kTupleMethods[] = {{"count", list_count}, {"index", list_index}};

template <size_t size>
const Function* find_in(const Function (&table)[size], std::string_view name) {
  const auto* const found = std::find_if(std::begin(table), std::end(table),
                                         [name](const Function& f) { return f.name == name; });
  return found == std::end(table) ? nullptr : found;
}

template <size_t size>
bool is_one_of(const std::string_view (&names)[size], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

const Filter* find_filter(std::string_view name) {
  const Filter* filter = find_text_filter(name);
  return filter != nullptr ? filter : find_sequence_filter(name);
}

std::string filter_names() { return text_filter_names() + sequence_filter_names(); }

const Function* find_function(std::string_view name) { return find_in(kFunctions, name); }

const Function* find_method(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kText:
      return find_text_method(name);
    case Kind::kDict:
      return find_in(kDictMethods, name);
    case Kind::kList:
      return find_in(kListMethods, name);
    case Kind::kTuple:
      return find_in(kTupleMethods, name);
    default:
      return nullptr;
  }
}

bool is_forbidden_method(const Value& value, std::string_view name) {
  static constexpr std::string_view kOfList[] = {"append", "clear", "pop",    "reverse",
                                                 "insert", "sort",  "extend", "remove"};
  static constexpr std::string_view kOfDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (value.is(Kind::kList)) return is_one_of(kOfList, name);
  if (value.is(Kind::kDict)) return is_one_of(kOfDict, name);
  return false;
}

}  // namespace atlas::model::jinja
