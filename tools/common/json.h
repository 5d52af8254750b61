// How the tools write JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace atlas::tools {

using Json = nlohmann::ordered_json;

/// Indented, with a newline at the end. Bytes that are no UTF-8 (names of files) become U+FFFD.
inline std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace atlas::tools
