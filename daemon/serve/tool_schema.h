// ToolSchema: what the request's tools say about their parameters' types, for call formats that
// write values without JSON's quotes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/serve/json.h"

namespace atlas::serve {

class ToolSchema {
 public:
  /// JSON types, as bits; 0 where nothing is said.
  using Types = uint8_t;
  enum Type : Types {
    kString = 1,
    kNumber = 2,  // integers too
    kBoolean = 4,
    kNull = 8,
    kObject = 16,
    kArray = 32,
  };

  ToolSchema() = default;
  /// `tools` as in a chat request. A parameter's types are those of its `type`, or of `enum`,
  /// `const`, `anyOf`, `oneOf`, `allOf`; what is no schema says nothing.
  explicit ToolSchema(const Json& tools);

  Types types(std::string_view function, std::string_view parameter) const;

  /// Appends the JSON of a value that was written as `raw`. A parameter of type string alone takes
  /// the text as it is. Other types take it as JSON (True, False and None as Python spells them
  /// where the type fits), and as a string if it is none. With strings among several types, JSON of
  /// another of them wins. Where nothing is said, objects and lists are JSON and the rest is text.
  void append_value(std::string& out, std::string_view function, std::string_view parameter,
                    std::string_view raw) const;

 private:
  std::map<std::pair<std::string, std::string>, Types, std::less<>> types_;
};

/// Whether this is one JSON object, as `parse_json` reads it.
bool is_json_object(std::string_view text);

}  // namespace atlas::serve
