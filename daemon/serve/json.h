// Json: the strict reading of what clients send. Only files that look into requests include this.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "daemon/serve/api_error.h"

namespace atlas::serve {

/// Keeps the order of keys, which chat templates print.
using Json = nlohmann::ordered_json;

/// Reads one JSON text. Refused with 400: syntax errors (NaN and Infinity are some), bytes that are
/// no UTF-8, numbers that a double cannot hold, the same key twice in an object, nesting beyond 64,
/// more than a million values.
Refusal parse_json(std::string_view text, Json& out);

/// "a string", "a list", ...: for messages.
std::string_view type_word(const Json& value);

}  // namespace atlas::serve
