// Files that the tools read: token ids as JSON, texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/engine/request.h"

namespace atlas::tools {

/// A whole file. Errors: kNotFound; kInvalidArgument for a folder or more than 1 GiB.
Result<std::string> read_text(const std::string& path);

/// A JSON list of token ids below `vocab`. Errors name the file and the place in the list.
Result<std::vector<engine::TokenId>> read_ids(const std::string& path, uint32_t vocab);
/// The same, from text; `name` stands for the file.
Result<std::vector<engine::TokenId>> parse_ids(const std::string& json, const std::string& name,
                                               uint32_t vocab);

/// "[1,2,3]".
std::string ids_json(const std::vector<engine::TokenId>& ids);

}  // namespace atlas::tools
