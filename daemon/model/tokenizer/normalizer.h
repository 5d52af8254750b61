// Normalization form C as the `tokenizers` package computes it, in linear time for any input.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/model/tokenizer/utf8.h"

namespace atlas::model {

/// True if the text may change under NFC: it has a code point from U+0300 on.
bool may_need_nfc(std::string_view utf8);

/// Valid UTF-8 in form C. Each changed stretch is noted in `edits` if given.
/// Code points that the package's normalizer does not know pass through as unassigned ones do.
std::string to_nfc(std::string_view utf8, std::vector<TextEdit>* edits = nullptr);

}  // namespace atlas::model
