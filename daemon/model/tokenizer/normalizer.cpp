// NFC over utf8proc's character data. The library's own utf8proc_map sorts marks by neighbour
// swaps, which a megabyte of marks turns into hours; here text is cut into short clusters that
// cannot influence each other, and each is decomposed, sorted stably and composed.
#include "daemon/model/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "daemon/model/tokenizer/unicode_tables.h"

namespace atlas::model {

namespace {

constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

// Code points that keep their form alone and never join what stands before them. Not all such, only
// the big blocks: text between them is normalized in one piece with the last of them before it.
bool is_plain_starter(char32_t c) {
  if (c < 0x300) return true;
  return (c >= 0x400 && c <= 0x482) || (c >= 0x2010 && c <= 0x2027) ||
         (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) ||
         (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3) ||
         (c >= 0x1F300 && c <= 0x1F6D7);
}

bool is_inert(char32_t c) {
  const CodePointRange* end = kInertInNormalization + kInertInNormalizationCount;
  const CodePointRange* found = std::lower_bound(
      kInertInNormalization, end, c,
      [](const CodePointRange& range, char32_t value) { return range.last < value; });
  return found != end && found->first <= c;
}

class Cluster {
 public:
  void append(char32_t c, std::string& out) {
    if (is_inert(c)) {
      flush(out);
      append_utf8(out, c);
      return;
    }
    utf8proc_int32_t parts[16];
    int boundary = 0;
    // No code point has a longer canonical decomposition than four.
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 16, kCompose, &boundary);
    buffer_.insert(buffer_.end(), parts, parts + std::clamp<utf8proc_ssize_t>(count, 0, 16));
  }

  void flush(std::string& out) {
    sort_marks();
    const auto size = utf8proc_normalize_utf32(
        buffer_.data(), static_cast<utf8proc_ssize_t>(buffer_.size()), kCompose);
    for (utf8proc_ssize_t i = 0; i < size; ++i) {
      append_utf8(out, static_cast<char32_t>(buffer_[static_cast<size_t>(i)]));
    }
    buffer_.clear();
  }

 private:
  static int class_of(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

  void sort_marks() {
    auto at = buffer_.begin();
    while (at != buffer_.end()) {
      const auto is_starter = [](utf8proc_int32_t c) { return class_of(c) == 0; };
      const auto begin = std::find_if_not(at, buffer_.end(), is_starter);
      const auto end = std::find_if(begin, buffer_.end(), is_starter);
      std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
        return class_of(a) < class_of(b);
      });
      at = end;
    }
  }

  std::vector<utf8proc_int32_t> buffer_;
};

}  // namespace

bool may_need_nfc(std::string_view utf8) {
  // Lead bytes from 0xCC on begin code points from U+0300 on.
  return std::any_of(utf8.begin(), utf8.end(),
                     [](char c) { return static_cast<uint8_t>(c) >= 0xCC; });
}

std::string to_nfc(std::string_view utf8, std::vector<TextEdit>* edits) {
  std::string out;
  out.reserve(utf8.size() + 16);
  Cluster cluster;
  size_t copied = 0;  // everything before is in `out`
  size_t starter = 0, at = 0;
  while (at < utf8.size()) {
    const CodePoint c = decode_utf8(utf8, at);
    if (is_plain_starter(c.value)) {
      starter = at;
      at += c.size;
      continue;
    }
    out.append(utf8.substr(copied, starter - copied));
    size_t end = starter;
    const size_t to_begin = out.size();
    while (end < utf8.size()) {
      const CodePoint next = decode_utf8(utf8, end);
      if (end > at && is_plain_starter(next.value)) break;
      cluster.append(next.value, out);
      end += next.size;
    }
    cluster.flush(out);
    const std::string_view from = utf8.substr(starter, end - starter);
    if (edits != nullptr && from != std::string_view(out).substr(to_begin)) {
      edits->push_back({{starter, end}, {to_begin, out.size()}});
    }
    copied = starter = at = end;
  }
  out.append(utf8.substr(copied));
  return out;
}

}  // namespace atlas::model
