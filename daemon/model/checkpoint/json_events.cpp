// nlohmann's reader walks nested values without recursion, so depth cannot exhaust the stack.
#include "daemon/model/checkpoint/json_events.h"

#include "daemon/model/checkpoint/tensor_table.h"

namespace atlas::model {

bool JsonEvents::parse_error(std::size_t position, const std::string& last_token,
                             const nlohmann::detail::exception&) {
  return fail("not valid JSON at byte {}, near '{}'", position, printable(last_token));
}

Status parse_json_events(std::string_view text, JsonEvents* events) {
  try {
    const bool ok = nlohmann::json::sax_parse(text.begin(), text.end(), events);
    if (!ok && events->status().ok()) return invalid_argument("not valid JSON");
    return events->status();
  } catch (const std::exception& error) {
    return invalid_argument("not valid JSON: {}", printable(error.what()));
  }
}

Result<nlohmann::json> parse_json_tree(std::string_view text) {
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    return invalid_argument("not valid JSON at byte {}", error.byte);
  } catch (const std::exception& error) {
    return invalid_argument("not valid JSON: {}", printable(error.what()));
  }
}

}  // namespace atlas::model
