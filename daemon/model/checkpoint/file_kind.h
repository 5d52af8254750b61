// Guesses what a file is from its first bytes, so that an error can say more than "bad magic".
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace atlas::model {

/// "a git-lfs pointer: fetch the real file", "a zip archive ..."; empty if nothing is recognised.
std::string_view guess_file_kind(std::span<const std::byte> bytes);

}  // namespace atlas::model
