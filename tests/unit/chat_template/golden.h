// Golden data of jinja2 and what the tests say when an outcome differs from it.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/model/chat_template/chat_template.h"

namespace atlas::model::test {

using Json = nlohmann::ordered_json;

inline std::string golden_file(const std::string& name) {
  const std::filesystem::path path =
      std::filesystem::path(ATLAS_SOURCE_DIR) / "tests/golden/chat_template" / name;
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Parses and renders; an error of either.
inline Result<RenderedPrompt> rendered(const std::string& source, const Json& variables,
                                       const std::vector<std::string>& trusted = {}) {
  ATLAS_ASSIGN_OR_RETURN(const ChatTemplate parsed, ChatTemplate::parse(source, "test"));
  return parsed.render(variables, trusted);
}

/// The text, or the error in brackets.
inline std::string outcome(const std::string& source, const Json& variables = Json::object()) {
  const auto result = rendered(source, variables);
  return result ? result->text : "[" + result.error().to_string() + "]";
}

}  // namespace atlas::model::test
