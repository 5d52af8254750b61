// A small set of settings in which every two values of different factors meet at least once.
#pragma once

#include <cstdint>
#include <vector>

namespace atlas::eval {

/// Values of the factors, by number: choice[f] < counts[f].
using Choice = std::vector<uint32_t>;

/// Greedy covering of all pairs; `counts[f]` values of factor f. The first choice is all zeros.
std::vector<Choice> cover_pairs(const std::vector<uint32_t>& counts);

/// How many pairs of values of different factors the choices cover.
uint64_t pairs_covered(const std::vector<Choice>& choices);
/// How many there are.
uint64_t pairs_total(const std::vector<uint32_t>& counts);

}  // namespace atlas::eval
