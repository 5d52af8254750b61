// Text that knows which of its bytes came from the request: the string of the interpreter.
// The knowledge is a sorted list of byte ranges that every cut and join carries along.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace atlas::model::jinja {

/// Bytes begin..end of a text, `end` not included.
struct ByteRange {
  size_t begin;
  size_t end;
};

/// UTF-8 text with its plain ranges: sorted, disjoint, adjacent ones merged.
class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, bool plain) { append(bytes, plain); }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<ByteRange>& plain_ranges() const { return plain_; }
  bool any_plain() const { return !plain_.empty(); }
  /// Whether the byte at `offset` came from the request.
  bool plain_at(size_t offset) const;

  void append(std::string_view bytes, bool plain);
  void append(const Text& other);
  /// Appends bytes begin..end of `other`, which may be this text.
  void append(const Text& other, size_t begin, size_t end);
  Text slice(size_t begin, size_t end) const;

 private:
  void mark(size_t begin, size_t end);

  std::string bytes_;
  std::vector<ByteRange> plain_;
};

}  // namespace atlas::model::jinja
