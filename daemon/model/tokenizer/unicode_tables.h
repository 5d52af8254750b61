// Where PCRE2 and utf8proc know another Unicode version than the `tokenizers` package, whose ids
// we must give: code points newer than Unicode 14, numeric ones beyond the categories N*, and those
// that the package's normalizer (about Unicode 9) passes through untouched.
#pragma once

#include <cstddef>

namespace atlas::model {

struct CodePointRange {
  char32_t first, last;  // both inside
};

struct CategoryRange {
  char32_t first, last;  // both inside
  char category[2];      // general category, for instance {'L', 'u'}
};

/// Assigned after Unicode 14, with their general category in Unicode 16; grouped by category.
extern const CategoryRange kNewerThanUnicode14[];
extern const size_t kNewerThanUnicode14Count;

/// Numeric for the package's Digits pre-tokenizer (Unicode 17), outside N* of Unicode 16;
/// ascending.
extern const CodePointRange kNumericBeyondCategories[];
extern const size_t kNumericBeyondCategoriesCount;

/// Starters that neither decompose nor compose in the package's normalizer, whatever newer versions
/// of Unicode say; ascending. Only marks and newly assigned code points are listed.
extern const CodePointRange kInertInNormalization[];
extern const size_t kInertInNormalizationCount;

}  // namespace atlas::model
