// How atlasctl writes: colours on a terminal only, tables, sizes for people, a progress bar.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace atlas::ctl {

enum class Style { kPlain, kBold, kDim, kGood, kBad };

/// `text` in a style if standard output is a terminal.
std::string styled(Style style, std::string_view text);
/// "1.4 GiB".
std::string human_bytes(uint64_t bytes);
/// "1d 2h 3m 4s", without what is 0 in front.
std::string human_seconds(double seconds);
/// Rows under a header, columns as wide as they must be; the last one is not padded.
void print_table(const std::vector<std::string>& header,
                 const std::vector<std::vector<std::string>>& rows);
/// Redraws one line of standard error if that is a terminal; an empty label clears it.
void draw_progress(std::string_view label, double fraction);

}  // namespace atlas::ctl
