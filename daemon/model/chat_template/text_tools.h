// The work of Python's str methods on text with provenance; filters and methods share it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "daemon/model/chat_template/runtime.h"
#include "daemon/model/chat_template/text.h"
#include "daemon/model/chat_template/unicode.h"

namespace atlas::model::jinja {

enum class Side : uint8_t { kLeft, kRight, kBoth };

/// Every code point through `rewrite`, which appends what it becomes.
Text rewritten(const Text& text, const std::function<void(char32_t, std::string&)>& rewrite);
Text in_case(const Text& text, Case wanted);
/// First code point in title case, the others in lower case.
Text capitalized(const Text& text);
/// Without the code points of `characters` at the ends; a null set stands for white space.
Text stripped(const Text& text, Side side, const Text* characters);
/// The first `count` occurrences of `old` replaced; all of them if count is negative.
Text replaced(Runtime& runtime, const Text& text, const Text& old, const Text& replacement,
              int64_t count);
/// Pieces between occurrences of `separator`; at most `limit` cuts if that is not negative, taken
/// from the right if `from_right`.
std::vector<Value> split(Runtime& runtime, const Text& text, const Text& separator, int64_t limit,
                         bool from_right);
/// Pieces between runs of white space.
std::vector<Value> split_words(Runtime& runtime, const Text& text, int64_t limit, bool from_right);
std::vector<Value> split_lines(Runtime& runtime, const Text& text, bool keep_ends);
/// Repeated `fill` to the left and right of the text, up to `width` code points.
Text padded(const Text& text, int64_t width, const Text& fill, Side text_side);
/// Escaped for HTML.
Text escaped(const Text& text);

}  // namespace atlas::model::jinja
