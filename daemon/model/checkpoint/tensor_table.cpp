// Sorted storage: a lookup is a binary search, and the tensors of a module are neighbours.
#include "daemon/model/checkpoint/tensor_table.h"

#include <algorithm>

namespace atlas::model {
namespace {
constexpr size_t kBlockBytes = 256 * 1024;
constexpr size_t kMessageBytes = 120;
}  // namespace

std::string_view TensorTable::intern(std::string_view name) {
  const size_t bytes = name.size() + 1;
  if (bytes > block_left_) {
    block_left_ = std::max(kBlockBytes, bytes);
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(block_left_));
  }
  // Blocks are filled from their end, so that what is left says where.
  block_left_ -= bytes;
  char* place = blocks_.back().get() + block_left_;
  std::copy(name.begin(), name.end(), place);
  place[name.size()] = '\0';
  return {place, name.size()};
}

Status TensorTable::seal(std::span<const std::string> files) {
  const auto by_name = [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; };
  if (!std::is_sorted(tensors_.begin(), tensors_.end(), by_name)) {
    std::sort(tensors_.begin(), tensors_.end(), by_name);
  }
  const auto twice =
      std::adjacent_find(tensors_.begin(), tensors_.end(),
                         [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twice == tensors_.end()) return {};
  return invalid_argument("tensor '{}' is defined twice: in '{}' and in '{}'",
                          printable(twice->name), files[twice->file],
                          files[std::next(twice)->file]);
}

const TensorInfo* TensorTable::find(std::string_view name) const {
  const auto place = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorInfo& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return place != tensors_.end() && place->name == name ? &*place : nullptr;
}

std::span<const TensorInfo> TensorTable::with_prefix(std::string_view module) const {
  // '/' follows '.' in ASCII: the module's tensors are those from "module." up to "module/".
  const auto less = [&](const TensorInfo& tensor, char end) {
    const int order = tensor.name.substr(0, module.size()).compare(module);
    if (order != 0) return order < 0;
    return tensor.name.size() == module.size() ||
           static_cast<unsigned char>(tensor.name[module.size()]) < static_cast<unsigned char>(end);
  };
  const auto first = std::lower_bound(tensors_.begin(), tensors_.end(), '.', less);
  const auto last = std::lower_bound(first, tensors_.end(), '/', less);
  return {first, last};
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMessageBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > kMessageBytes) out += "...";
  return out;
}

}  // namespace atlas::model
