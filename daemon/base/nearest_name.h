// The name that was probably meant, for messages about unknown keys, fields, routes and commands.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace atlas {

/// Edits (of one byte each) to get from one text to the other; Levenshtein's distance.
size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name` by edit distance, if it is near enough to be meant: at most a
/// third of the name is other. Else empty; empty too for names of more than 64 bytes.
std::string_view nearest_name(std::string_view name,
                              const std::vector<std::string_view>& candidates);

}  // namespace atlas
