// The safetensors header: eight bytes of length, then JSON {name: {dtype, shape, data_offsets}},
// then the data. The JSON is read event by event, so a header of a million tensors builds no tree.
// Format: https://github.com/huggingface/safetensors, section "Format" of its README.
#include "daemon/model/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "daemon/model/checkpoint/dtype.h"
#include "daemon/model/checkpoint/file_kind.h"
#include "daemon/model/checkpoint/json_events.h"

namespace atlas::model {
namespace {

constexpr uint64_t kLengthBytes = 8;

/// Turns JSON events into TensorInfo entries with offsets relative to the start of the file.
class HeaderEvents : public JsonEvents {
 public:
  HeaderEvents(TensorTable* table, uint32_t file, uint64_t data_start, uint64_t data_bytes)
      : table_(table), file_(file), data_start_(data_start), data_bytes_(data_bytes) {}

  std::vector<TensorInfo>& tensors() { return tensors_; }

  bool start_object(std::size_t) override {
    if (depth_ == 2 || in_array_) return unexpected("an object");
    ++depth_;
    if (depth_ == 2 && !in_metadata_) tensor_ = {}, seen_ = 0;
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && !in_metadata_ && !finish_tensor()) return false;
    if (depth_ == 2) in_metadata_ = false;
    --depth_;
    return true;
  }
  bool key(std::string& text) override {
    if (depth_ == 1) {
      in_metadata_ = text == "__metadata__";
      if (!in_metadata_) name_ = text;
      return true;
    }
    if (in_metadata_) return true;
    const int field = text == "dtype"          ? kDType
                      : text == "shape"        ? kShape
                      : text == "data_offsets" ? kOffsets
                                               : 0;
    if (field == 0) {
      return fail("tensor '{}' has an unknown field '{}'", printable(name_), printable(text));
    }
    if ((seen_ & field) != 0) {
      return fail("tensor '{}' has its field '{}' twice", printable(name_), text);
    }
    seen_ |= field;
    field_ = field;
    return true;
  }
  bool string(std::string& text) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || field_ != kDType || in_array_) return unexpected("a string");
    const auto dtype = dtype_from_safetensors(text);
    if (!dtype) {
      return fail_with(unimplemented("tensor '{}' has type '{}'; Atlas reads {}", printable(name_),
                                     printable(text), safetensors_dtype_names()));
    }
    tensor_.dtype = *dtype;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == kDType) return unexpected("a list");
    in_array_ = true;
    count_ = 0;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    if (field_ == kShape) {
      tensor_.rank = count_;
    } else if (count_ != 2) {
      return fail("tensor '{}' has {} data_offsets; expected a begin and an end", printable(name_),
                  count_);
    }
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return unexpected("a number");
    if (field_ == kShape) {
      if (count_ == TensorInfo::kMaxRank) {
        return fail("tensor '{}' has more than {} dimensions", printable(name_),
                    TensorInfo::kMaxRank);
      }
      tensor_.dims[count_++] = value;
    } else {
      if (count_ < 2) offsets_[count_] = value;
      ++count_;
    }
    return true;
  }

 protected:
  bool unexpected(std::string_view what) override {
    if (depth_ == 0) return fail("{} where the header's object should begin", what);
    if (in_metadata_) return fail("{} in __metadata__, which holds strings only", what);
    if (depth_ == 1) return fail("tensor '{}' is {}; expected an object", printable(name_), what);
    const std::string_view field = field_ == kDType   ? "dtype"
                                   : field_ == kShape ? "shape"
                                                      : "data_offsets";
    return fail("tensor '{}' has {} in its {}; expected {}", printable(name_), what, field,
                field_ == kDType ? "a type name" : "a list of whole numbers from 0");
  }

 private:
  enum : int { kDType = 1, kShape = 2, kOffsets = 4 };

  bool finish_tensor() {
    for (const auto& [field, text] : {std::pair{int{kDType}, "dtype"},
                                      {int{kShape}, "shape"},
                                      {int{kOffsets}, "data_offsets"}}) {
      if ((seen_ & field) == 0) return fail("tensor '{}' has no {}", printable(name_), text);
    }
    if (name_.empty() || name_.find('\0') != std::string::npos) {
      return fail("tensor name '{}' is empty or holds a zero byte", printable(name_));
    }
    const auto bytes = tensor_bytes(*dtype_info(tensor_.dtype), tensor_.shape());
    if (!bytes) return fail("tensor '{}': its shape overflows 64 bits", printable(name_));
    const auto [begin, end] = offsets_;
    if (begin > end || end > data_bytes_) {
      return fail("tensor '{}' lies at [{}, {}) of {} bytes of data", printable(name_), begin, end,
                  data_bytes_);
    }
    if (end - begin != *bytes) {
      return fail("tensor '{}' needs {} bytes by its shape and type, but data_offsets span {}",
                  printable(name_), *bytes, end - begin);
    }
    tensor_.name = table_->intern(name_);
    tensor_.file = file_;
    tensor_.offset = data_start_ + begin;
    tensor_.bytes = *bytes;
    tensors_.push_back(tensor_);
    return true;
  }

  TensorTable* table_;
  uint32_t file_;
  uint64_t data_start_, data_bytes_;
  std::vector<TensorInfo> tensors_;
  int depth_ = 0;
  bool in_metadata_ = false, in_array_ = false;
  std::string name_;
  int seen_ = 0, field_ = 0;
  uint32_t count_ = 0;
  std::array<uint64_t, 2> offsets_{};
  TensorInfo tensor_;
};

/// The format wants every byte of the data to belong to exactly one tensor.
Status check_coverage(std::vector<TensorInfo>& tensors, uint64_t data_start, uint64_t file_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  uint64_t position = data_start;
  std::string_view before = "the header";
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset < position) {
      return invalid_argument("tensor '{}' overlaps '{}' by {} bytes", printable(tensor.name),
                              printable(before), position - tensor.offset);
    }
    if (tensor.offset > position) {
      return invalid_argument("{} bytes between '{}' and '{}' belong to no tensor",
                              tensor.offset - position, printable(before), printable(tensor.name));
    }
    position += tensor.bytes;
    before = tensor.name;
  }
  if (position == file_bytes) return {};
  return invalid_argument("{} bytes after the last tensor belong to no tensor",
                          file_bytes - position);
}

/// What a file must begin with for its kind to be seen.
constexpr uint64_t kStartBytes = 64;

/// The length of the header by the first bytes of a file, at least kStartBytes if it has them.
Result<uint64_t> header_bytes(std::span<const std::byte> start, uint64_t file_bytes) {
  const std::string_view kind = guess_file_kind(start);
  const std::string_view looks = kind.empty() ? "something else" : kind;
  if (start.size() <= kLengthBytes || static_cast<char>(start[kLengthBytes]) != '{') {
    return invalid_argument("not a safetensors file: it looks like {}", looks);
  }
  uint64_t length = 0;
  for (uint64_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<uint8_t>(start[i]);
  if (length > file_bytes - kLengthBytes) {
    return invalid_argument("its header says {} bytes, but only {} follow: the file is cut short",
                            length, file_bytes - kLengthBytes);
  }
  if (length > kMaxSafetensorsHeader) {
    return invalid_argument("its header has {} bytes; the limit is {}", length,
                            kMaxSafetensorsHeader);
  }
  if (length < 2) return invalid_argument("its header has {} bytes; the least is 2", length);
  return length;
}

Result<SafetensorsSummary> read_header(std::string_view header, uint64_t file_bytes,
                                       uint32_t number, TensorTable* table) {
  const uint64_t data_start = kLengthBytes + header.size();
  HeaderEvents events(table, number, data_start, file_bytes - data_start);
  ATLAS_RETURN_IF_ERROR(parse_json_events(header, &events).with_context("header"));
  ATLAS_RETURN_IF_ERROR(check_coverage(events.tensors(), data_start, file_bytes));
  SafetensorsSummary summary;
  for (const TensorInfo& tensor : events.tensors()) {
    table->add(tensor);
    ++summary.tensors;
    if (tensor.offset % dtype_info(tensor.dtype)->block_bytes != 0) ++summary.misaligned;
  }
  return summary;
}

/// A shard is named by a relative path that stays inside the checkpoint's folder.
bool stays_inside(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\0') != std::string_view::npos)
    return false;
  while (true) {
    const size_t slash = name.find('/');
    if (name.substr(0, slash) == "..") return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

class IndexEvents : public JsonEvents {
 public:
  explicit IndexEvents(SafetensorsIndex* index) : index_(index) {}
  bool found() const { return found_; }

  bool start_object(std::size_t) override {
    return in_map_ && depth_ == 2 ? unexpected("an object") : ++depth_ > 0;
  }
  bool end_object() override {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  bool start_array(std::size_t) override { return in_map_ ? unexpected("a list") : ++depth_ > 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool key(std::string& text) override {
    if (depth_ == 1) {
      in_map_ = text == "weight_map";
      if (in_map_ && found_) return fail("'weight_map' is there twice");
      found_ = found_ || in_map_;
    } else if (in_map_ && depth_ == 2) {
      name_ = index_->names.intern(text);
    }
    return true;
  }
  bool string(std::string& text) override {
    if (!in_map_) return true;
    if (depth_ != 2) return unexpected("a string");
    if (!stays_inside(text)) {
      return fail("tensor '{}' is in shard '{}', which is not inside the folder", printable(name_),
                  printable(text));
    }
    const auto [place, fresh] =
        numbers_.try_emplace(text, static_cast<uint32_t>(index_->shards.size()));
    if (fresh) index_->shards.push_back(text);
    index_->tensors.emplace_back(name_, place->second);
    return true;
  }
  bool number_unsigned(number_unsigned_t) override { return !in_map_ || unexpected("a number"); }
  bool number_integer(number_integer_t) override { return !in_map_ || unexpected("a number"); }
  bool number_float(number_float_t, const std::string&) override {
    return !in_map_ || unexpected("a number");
  }
  bool boolean(bool) override { return !in_map_ || unexpected("true or false"); }
  bool null() override { return !in_map_ || unexpected("null"); }

 protected:
  bool unexpected(std::string_view what) override {
    return fail("'weight_map' holds {}; expected tensor names with their shards' names", what);
  }

 private:
  SafetensorsIndex* index_;
  int depth_ = 0;
  bool in_map_ = false, found_ = false;
  std::string_view name_;
  std::unordered_map<std::string, uint32_t> numbers_;
};

}  // namespace

Result<SafetensorsSummary> read_safetensors(const InputFile& file, uint32_t number,
                                            TensorTable* table) {
  std::array<std::byte, kStartBytes> buffer;
  const auto start = std::span(buffer).first(std::min(kStartBytes, file.size()));
  ATLAS_RETURN_IF_ERROR(file.read_at(0, start));
  const auto length = header_bytes(start, file.size());
  if (!length) return length.error().with_context(file.path());
  std::string header(*length, '\0');
  ATLAS_RETURN_IF_ERROR(file.read_at(kLengthBytes, std::as_writable_bytes(std::span(header))));
  auto summary = read_header(header, file.size(), number, table);
  if (!summary) return summary.error().with_context(file.path());
  return summary;
}

Result<SafetensorsSummary> read_safetensors(std::span<const std::byte> bytes,
                                            const std::string& path, uint32_t number,
                                            TensorTable* table) {
  const auto length = header_bytes(bytes, bytes.size());
  if (!length) return length.error().with_context(path);
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  auto summary = read_header({text, *length}, bytes.size(), number, table);
  if (!summary) return summary.error().with_context(path);
  return summary;
}

Result<SafetensorsIndex> read_safetensors_index(std::string_view json, const std::string& path) {
  SafetensorsIndex index;
  IndexEvents events(&index);
  ATLAS_RETURN_IF_ERROR(parse_json_events(json, &events).with_context(path));
  if (!events.found()) return invalid_argument("{}: there is no 'weight_map'", path);
  std::sort(index.tensors.begin(), index.tensors.end());
  for (size_t i = 1; i < index.tensors.size(); ++i) {
    if (index.tensors[i].first == index.tensors[i - 1].first) {
      return invalid_argument("{}: tensor '{}' is listed twice", path,
                              printable(index.tensors[i].first));
    }
  }
  return index;
}

}  // namespace atlas::model
