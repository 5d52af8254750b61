#include "tools/common/files.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace atlas::tools {

using engine::TokenId;
using Json = nlohmann::json;

namespace {

constexpr uint64_t kMaxFileBytes = 1ull << 30;

}  // namespace

Result<std::string> read_text(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return invalid_argument("'{}' is a folder, not a file", path);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("cannot read '{}': {}", path, std::strerror(errno));
  std::string text;
  std::vector<char> part(1u << 20);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())), file.gcount() > 0) {
    text.append(part.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > kMaxFileBytes) {
      return invalid_argument("'{}' has more than {} bytes: give a smaller file", path,
                              kMaxFileBytes);
    }
  }
  if (file.bad()) return data_loss("reading '{}' failed: {}", path, std::strerror(errno));
  return text;
}

Result<std::vector<TokenId>> parse_ids(const std::string& json, const std::string& name,
                                       uint32_t vocab) {
  const Json list = Json::parse(json, nullptr, false);
  if (!list.is_array()) {
    return invalid_argument("'{}' is not a JSON list of token ids, for instance [1, 2, 3]", name);
  }
  if (list.empty()) return invalid_argument("'{}' is an empty list: give at least one id", name);
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_unsigned()) {
      return invalid_argument("'{}': element {} is {}: a token id is a whole number from 0", name,
                              ids.size(), id.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    const auto value = id.get<uint64_t>();
    if (value >= vocab) {
      return invalid_argument("'{}': element {} is {}, and the vocabulary has {} tokens", name,
                              ids.size(), value, vocab);
    }
    ids.push_back(static_cast<TokenId>(value));
  }
  return ids;
}

Result<std::vector<TokenId>> read_ids(const std::string& path, uint32_t vocab) {
  ATLAS_ASSIGN_OR_RETURN(const std::string text, read_text(path));
  return parse_ids(text, path, vocab);
}

std::string ids_json(const std::vector<TokenId>& ids) { return Json(ids).dump(); }

}  // namespace atlas::tools
