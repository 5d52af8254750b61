#include "tools/atlas-eval/pairs.h"

#include <cstddef>
#include <set>
#include <tuple>

namespace atlas::eval {

using std::size_t;

namespace {

using Pair = std::tuple<size_t, uint32_t, size_t, uint32_t>;

std::vector<Pair> pairs_of(const Choice& choice) {
  std::vector<Pair> pairs;
  for (size_t a = 0; a < choice.size(); ++a) {
    for (size_t b = a + 1; b < choice.size(); ++b) pairs.emplace_back(a, choice[a], b, choice[b]);
  }
  return pairs;
}

/// The next choice in counting order; false after the last.
bool advance(Choice& choice, const std::vector<uint32_t>& counts) {
  for (size_t f = 0; f < counts.size(); ++f) {
    if (++choice[f] < counts[f]) return true;
    choice[f] = 0;
  }
  return false;
}

}  // namespace

std::vector<Choice> cover_pairs(const std::vector<uint32_t>& counts) {
  std::vector<Choice> chosen{Choice(counts.size(), 0)};
  std::set<Pair> covered;
  for (const Pair& pair : pairs_of(chosen.front())) covered.insert(pair);
  const uint64_t total = pairs_total(counts);
  while (covered.size() < total) {
    // The factors have few values, so every choice is looked at.
    Choice candidate(counts.size(), 0), best;
    size_t best_gain = 0;
    do {
      size_t gain = 0;
      for (const Pair& pair : pairs_of(candidate)) gain += covered.contains(pair) ? 0 : 1;
      if (gain > best_gain) {
        best_gain = gain;
        best = candidate;
      }
    } while (advance(candidate, counts));
    for (const Pair& pair : pairs_of(best)) covered.insert(pair);
    chosen.push_back(best);
  }
  return chosen;
}

uint64_t pairs_covered(const std::vector<Choice>& choices) {
  std::set<Pair> covered;
  for (const Choice& choice : choices) {
    for (const Pair& pair : pairs_of(choice)) covered.insert(pair);
  }
  return covered.size();
}

uint64_t pairs_total(const std::vector<uint32_t>& counts) {
  uint64_t total = 0;
  for (size_t a = 0; a < counts.size(); ++a) {
    for (size_t b = a + 1; b < counts.size(); ++b) total += uint64_t{counts[a]} * counts[b];
  }
  return total;
}

}  // namespace atlas::eval
