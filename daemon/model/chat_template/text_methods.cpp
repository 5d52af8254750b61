// The methods of Python's str.
#include <algorithm>
#include <limits>

#include "daemon/model/chat_template/builtins.h"
#include "daemon/model/chat_template/failure.h"
#include "daemon/model/chat_template/operations.h"
#include "daemon/model/chat_template/text_tools.h"

namespace atlas::model::jinja {
namespace {

constexpr int64_t kNoLimit = -1;

template <Side side>
Value strip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "strip", {"chars"}, 0);
  const bool given = bound.has(0) && !bound[0].is(Kind::kNone);
  runtime.budget().work(self.text().size());
  return runtime.text(stripped(self.text(), side, given ? &bound.text(0) : nullptr));
}

template <bool from_right>
Value split_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "split", {"sep", "maxsplit"}, 0);
  const int64_t limit = bound.integer(1, kNoLimit);
  if (!bound.has(0) || bound[0].is(Kind::kNone)) {
    return runtime.list(split_words(runtime, self.text(), limit, from_right));
  }
  return runtime.list(split(runtime, self.text(), bound.text(0), limit, from_right));
}

Value splitlines(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "splitlines", {"keepends"}, 0);
  return runtime.list(split_lines(runtime, self.text(), bound.truth(0)));
}

template <bool from_right>
Value partition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "partition", {"sep"}, 1);
  const Text& separator = bound.text(0);
  std::vector<Value> pieces = split(runtime, self.text(), separator, 1, from_right);
  const Value empty = runtime.text("", false);
  if (pieces.size() == 2) return runtime.tuple({pieces[0], bound[0], pieces[1]});
  if (from_right) return runtime.tuple({empty, empty, self});
  return runtime.tuple({self, empty, empty});
}

template <Case wanted>
Value change_case(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "upper", {}, 0);
  return runtime.text(in_case(self.text(), wanted));
}

Value capitalize(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "capitalize", {}, 0);
  return runtime.text(capitalized(self.text()));
}

Value title(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "title", {}, 0);
  bool in_word = false;
  return runtime.text(rewritten(self.text(), [&in_word](char32_t c, std::string& out) {
    append_in_case(c, in_word ? Case::kLower : Case::kTitle, out);
    in_word = is_cased(c);
  }));
}

/// The part of the text that `start` and `end` of find, count and startswith leave.
struct Window {
  size_t begin;
  size_t end;
  /// Code points before `begin`.
  int64_t first;
  bool valid;
};

Window window(const Bound& bound, const Text& text) {
  const auto size = static_cast<int64_t>(count_code_points(text.bytes()));
  const auto place = [&](size_t index, int64_t otherwise) {
    if (!bound.has(index) || bound[index].is(Kind::kNone)) return otherwise;
    const int64_t given = bound.integer(index, otherwise);
    return given < 0 ? std::max<int64_t>(given + size, 0) : given;
  };
  const int64_t first = place(1, 0);
  const int64_t last = std::min(place(2, size), size);
  if (first > last) return {0, 0, 0, false};
  return {code_point_offset(text.bytes(), static_cast<size_t>(first)),
          code_point_offset(text.bytes(), static_cast<size_t>(last)), first, true};
}

template <bool last>
Value find(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "find", {"sub", "start", "end"}, 1);
  const std::string& bytes = self.text().bytes();
  runtime.budget().work(2 * bytes.size());
  const Window part = window(bound, self.text());
  if (!part.valid) return Value::integer(-1);
  const std::string_view inside = std::string_view(bytes).substr(part.begin, part.end - part.begin);
  const std::string& wanted = bound.text(0).bytes();
  const size_t found =
      last ? find_last_text(inside, wanted, inside.size()) : find_text(inside, wanted);
  if (found == std::string_view::npos) return Value::integer(-1);
  const auto before = static_cast<int64_t>(count_code_points(inside.substr(0, found)));
  return Value::integer(part.first + before, self.plain());
}

Value index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Value found = find<false>(runtime, self, arguments);
  if (found.as_integer() < 0) fail("substring not found");
  return found;
}

Value count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "count", {"sub", "start", "end"}, 1);
  const std::string& bytes = self.text().bytes();
  runtime.budget().work(2 * bytes.size());
  const Window part = window(bound, self.text());
  if (!part.valid) return Value::integer(0);
  const std::string_view inside = std::string_view(bytes).substr(part.begin, part.end - part.begin);
  const std::string& wanted = bound.text(0).bytes();
  if (wanted.empty()) {
    return Value::integer(static_cast<Integer>(count_code_points(inside)) + 1, self.plain());
  }
  Integer occurrences = 0;
  for (size_t at = find_text(inside, wanted); at != std::string_view::npos;
       at = find_text(inside, wanted, at + wanted.size())) {
    ++occurrences;
  }
  return Value::integer(occurrences, self.plain());
}

template <bool at_end>
Value starts_or_ends(Runtime& runtime, const Value& self, const Arguments& arguments) {
  constexpr std::string_view kName = at_end ? "endswith" : "startswith";
  const Bound bound(arguments, kName, {"prefix", "start", "end"}, 1);
  const std::string& bytes = self.text().bytes();
  if (bound.has(1) || bound.has(2)) runtime.budget().work(bytes.size());
  const Window part =
      bound.has(1) || bound.has(2) ? window(bound, self.text()) : Window{0, bytes.size(), 0, true};
  const std::string_view inside = std::string_view(bytes).substr(part.begin, part.end - part.begin);
  const auto matches = [&](const Value& candidate) {
    if (!candidate.is(Kind::kText)) {
      require_defined(candidate);
      fail("{} first arg must be str or a tuple of str, not {}", kName, type_name(candidate));
    }
    const std::string& wanted = candidate.text().bytes();
    return part.valid && (at_end ? inside.ends_with(wanted) : inside.starts_with(wanted));
  };
  if (!bound[0].is(Kind::kTuple)) return Value::boolean(matches(bound[0]));
  const std::vector<Value>& candidates = bound[0].items();
  return Value::boolean(std::any_of(candidates.begin(), candidates.end(), matches));
}

template <bool at_end>
Value remove_affix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, at_end ? "removesuffix" : "removeprefix", {"affix"}, 1);
  const Text& text = self.text();
  const std::string& affix = bound.text(0).bytes();
  const bool matches = at_end ? text.bytes().ends_with(affix) : text.bytes().starts_with(affix);
  if (!matches) return self;
  return runtime.text(at_end ? text.slice(0, text.size() - affix.size())
                             : text.slice(affix.size(), text.size()));
}

Value replace(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "replace", {"old", "new", "count"}, 2);
  return runtime.text(
      replaced(runtime, self.text(), bound.text(0), bound.text(1), bound.integer(2, kNoLimit)));
}

Value join(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "join", {"iterable"}, 1);
  if (!is_iterable(bound[0])) fail("can only join an iterable");
  Text result;
  size_t place = 0;
  for (const Value& item : iterate(runtime, bound[0])) {
    if (!item.is(Kind::kText)) {
      fail("sequence item {}: expected str instance, {} found", place, type_name(item));
    }
    if (place++ > 0) result.append(self.text());
    result.append(item.text());
    if (result.size() > kMaxTextBytes) break;
  }
  return runtime.text(std::move(result));
}

template <Side text_side>
Value justify(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "center", {"width", "fillchar"}, 1);
  static const Text kSpace(" ", false);
  return runtime.text(
      padded(self.text(), bound.integer(0, 0), bound.has(1) ? bound.text(1) : kSpace, text_side));
}

Value zfill(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "zfill", {"width"}, 1);
  const Text& text = self.text();
  const size_t sign = text.bytes().starts_with('+') || text.bytes().starts_with('-') ? 1 : 0;
  const int64_t width = std::max<int64_t>(bound.integer(0, 0), 0) - static_cast<int64_t>(sign);
  Text result = text.slice(0, sign);
  result.append(padded(text.slice(sign, text.size()), width, Text("0", false), Side::kRight));
  return runtime.text(std::move(result));
}

/// Whether the text has code points and all of them answer yes.
template <bool (*question)(char32_t)>
Value all_are(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, "isdigit", {}, 0);
  const std::string& bytes = self.text().bytes();
  runtime.budget().work(bytes.size());
  for (size_t position = 0; position < bytes.size();) {
    if (!question(next_code_point(bytes, position))) return Value::boolean(false);
  }
  return Value::boolean(!bytes.empty());
}

bool is_alphanumeric(char32_t c) { return is_alpha(c) || is_digit(c); }

/// Whether the text has cased code points and all of them are of that case.
template <bool upper>
Value all_in_case(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Bound bound(arguments, upper ? "isupper" : "islower", {}, 0);
  const std::string& bytes = self.text().bytes();
  runtime.budget().work(bytes.size());
  bool any = false;
  for (size_t position = 0; position < bytes.size();) {
    const char32_t c = next_code_point(bytes, position);
    if (upper ? is_lower(c) : is_upper(c)) return Value::boolean(false);
    any = any || is_cased(c);
  }
  return Value::boolean(any);
}

constexpr Function kMethods[] = {
    {"capitalize", capitalize},
    {"center", justify<Side::kBoth>},
    {"count", count},
    {"endswith", starts_or_ends<true>},
    {"find", find<false>},
    {"format", brace_format},
    {"index", index},
    {"isalnum", all_are<is_alphanumeric>},
    {"isalpha", all_are<is_alpha>},
    {"isdigit", all_are<is_digit>},
    {"islower", all_in_case<false>},
    {"isspace", all_are<is_space>},
    {"isupper", all_in_case<true>},
    {"join", join},
    {"ljust", justify<Side::kLeft>},
    {"lower", change_case<Case::kLower>},
    {"lstrip", strip<Side::kLeft>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"replace", replace},
    {"rfind", find<true>},
    {"rjust", justify<Side::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip<Side::kRight>},
    {"split", split_method<false>},
    {"splitlines", splitlines},
    {"startswith", starts_or_ends<false>},
    {"strip", strip<Side::kBoth>},
    {"title", title},
    {"upper", change_case<Case::kUpper>},
    {"zfill", zfill},
};

/// Methods that Python has beside them: templates that use one should hear so.
constexpr std::string_view kUnsupported[] = {
    "casefold",  "encode",      "expandtabs", "format_map", "isascii", "isdecimal", "isidentifier",
    "isnumeric", "isprintable", "istitle",    "maketrans",  "rindex",  "swapcase",  "translate"};

}  // namespace

const Function* find_text_method(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kMethods), std::end(kMethods),
                                         [name](const Function& f) { return f.name == name; });
  if (found != std::end(kMethods)) return found;
  if (std::find(std::begin(kUnsupported), std::end(kUnsupported), name) != std::end(kUnsupported)) {
    fail_unsupported(0, "the method '{}' of str is not supported", name);
  }
  return nullptr;
}

}  // namespace atlas::model::jinja
