// The bookkeeping of plain ranges.
#include "daemon/model/chat_template/text.h"

#include <algorithm>

namespace atlas::model::jinja {
namespace {

/// The first range that ends behind `offset`.
std::vector<ByteRange>::const_iterator first_behind(const std::vector<ByteRange>& ranges,
                                                    size_t offset) {
  return std::upper_bound(ranges.begin(), ranges.end(), offset,
                          [](size_t value, const ByteRange& range) { return value < range.end; });
}

}  // namespace

bool Text::plain_at(size_t offset) const {
  const auto range = first_behind(plain_, offset);
  return range != plain_.end() && range->begin <= offset;
}

void Text::mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!plain_.empty() && plain_.back().end == begin) {
    plain_.back().end = end;
  } else {
    plain_.push_back({begin, end});
  }
}

void Text::append(std::string_view bytes, bool plain) {
  const size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (plain) mark(begin, bytes_.size());
}

void Text::append(const Text& other) { append(other, 0, other.size()); }

void Text::append(const Text& other, size_t begin, size_t end) {
  if (&other == this) {
    const Text copy = other;
    append(copy, begin, end);
    return;
  }
  const size_t base = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  for (auto range = first_behind(other.plain_, begin);
       range != other.plain_.end() && range->begin < end; ++range) {
    mark(base + std::max(range->begin, begin) - begin, base + std::min(range->end, end) - begin);
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text part;
  part.append(*this, begin, end);
  return part;
}

}  // namespace atlas::model::jinja
