// GGUF, front to back: magic, counts, key-value pairs, tensor records, then aligned data.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#include "daemon/model/checkpoint/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "daemon/model/checkpoint/dtype.h"
#include "daemon/model/checkpoint/file_kind.h"

namespace atlas::model {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kMaxArrayDepth = 4;
constexpr uint32_t kMaxRank = 4;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr uint64_t kDefaultAlignment = 32;
// The least that a pair (key length, type, one byte) and a tensor record (name length, rank, type,
// offset) take: a count beyond what the file could hold is refused before anything is allocated.
constexpr uint64_t kLeastPairBytes = 8 + 4 + 1;
constexpr uint64_t kLeastTensorBytes = 8 + 4 + 4 + 8;

static_assert(std::endian::native == std::endian::little, "values are read in host order");

uint32_t scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

std::string_view type_name(GgufType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<uint32_t>(type)];
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// A scalar of any integer type as int64; nothing for other types and for u64 beyond its range.
std::optional<int64_t> as_integer(GgufType type, const std::byte* from) {
  switch (type) {
    case GgufType::kU8:
      return load<uint8_t>(from);
    case GgufType::kI8:
      return load<int8_t>(from);
    case GgufType::kU16:
      return load<uint16_t>(from);
    case GgufType::kI16:
      return load<int16_t>(from);
    case GgufType::kU32:
      return load<uint32_t>(from);
    case GgufType::kI32:
      return load<int32_t>(from);
    case GgufType::kI64:
      return load<int64_t>(from);
    case GgufType::kU64: {
      const auto value = load<uint64_t>(from);
      if (value > INT64_MAX) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

/// Walks the header once, checking every length against what is left of the file.
class GgufParser {
 public:
  /// `bytes` are the first ones of a file of `file_bytes`.
  GgufParser(std::span<const std::byte> bytes, uint64_t file_bytes, GgufFile* file)
      : bytes_(bytes), file_bytes_(file_bytes), file_(*file) {}

  /// How many bytes must be known to come further, if `run` failed because too few were; else 0.
  uint64_t wanted() const { return wanted_; }

  Status run() {
    uint64_t tensor_count = 0;
    uint64_t pair_count = 0;
    ATLAS_RETURN_IF_ERROR(read_start(&tensor_count, &pair_count));
    for (uint64_t i = 0; i < pair_count; ++i) ATLAS_RETURN_IF_ERROR(read_pair(i, pair_count));
    ATLAS_RETURN_IF_ERROR(read_alignment());
    file_.tensors_.reserve(std::min(tensor_count, bytes_.size() / kLeastTensorBytes));
    for (uint64_t i = 0; i < tensor_count; ++i) ATLAS_RETURN_IF_ERROR(read_tensor(i));
    return place_tensors();
  }

 private:
  uint64_t left() const { return file_bytes_ - position_; }
  /// Whether the next `bytes` are in the file, and known.
  bool have(uint64_t bytes) {
    if (bytes > left()) return false;
    if (bytes <= bytes_.size() - position_) return true;
    wanted_ = position_ + bytes;
    return false;
  }

  template <typename T>
  bool read(T* value) {
    if (!have(sizeof(T))) return false;
    *value = load<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return true;
  }
  bool read_string(std::string_view* value) {
    uint64_t length = 0;
    if (!read(&length) || !have(length)) return false;
    *value = {reinterpret_cast<const char*>(bytes_.data()) + position_, length};
    position_ += length;
    return true;
  }

  Status read_start(uint64_t* tensor_count, uint64_t* pair_count) {
    uint32_t magic = 0;
    if (!read(&magic) || magic != kMagic) {
      const std::string_view kind = guess_file_kind(bytes_);
      return invalid_argument("not a GGUF file: it looks like {}",
                              kind.empty() ? "something else" : kind);
    }
    uint32_t version = 0;
    if (!read(&version)) return cut_short("the version");
    if (version != 0 && (version & 0xffff) == 0) {
      return unimplemented("a big-endian GGUF file; Atlas reads little-endian ones");
    }
    if (version != 2 && version != 3) {
      return unimplemented("GGUF version {}; Atlas reads versions 2 and 3", version);
    }
    file_.version_ = version;
    if (!read(tensor_count) || !read(pair_count)) return cut_short("the counts");
    if (*pair_count > left() / kLeastPairBytes) {
      return invalid_argument("{} key-value pairs cannot fit in a file of {} bytes", *pair_count,
                              file_bytes_);
    }
    if (*tensor_count > left() / kLeastTensorBytes) {
      return invalid_argument("{} tensors cannot fit in a file of {} bytes", *tensor_count,
                              file_bytes_);
    }
    return {};
  }

  Status read_pair(uint64_t index, uint64_t count) {
    std::string_view key;
    uint32_t type = 0;
    if (!read_string(&key) || !read(&type)) {
      return cut_short(fmt::format("key {} of {}", index + 1, count));
    }
    GgufFile::Value value;
    Status status = read_value(type, &value);
    if (!status.ok()) return status.with_context(fmt::format("key '{}'", printable(key)));
    if (!file_.values_.emplace(key, value).second) {
      return invalid_argument("key '{}' is there twice", printable(key));
    }
    return {};
  }

  Status read_value(uint32_t type, GgufFile::Value* value) {
    if (type > static_cast<uint32_t>(GgufType::kF64)) {
      return invalid_argument("value type {} is unknown", type);
    }
    value->type = static_cast<GgufType>(type);
    if (value->type == GgufType::kArray) return read_array(value, 1);
    const uint64_t start = position_;
    ATLAS_RETURN_IF_ERROR(skip_elements(value->type, 1, 0));
    value->bytes = bytes_.subspan(start, position_ - start);
    return {};
  }

  Status read_array(GgufFile::Value* value, uint32_t depth) {
    uint32_t element = 0;
    if (!read(&element) || !read(&value->count)) return cut_short("the array");
    if (element > static_cast<uint32_t>(GgufType::kF64)) {
      return invalid_argument("array element type {} is unknown", element);
    }
    value->element = static_cast<GgufType>(element);
    const uint64_t start = position_;
    ATLAS_RETURN_IF_ERROR(skip_elements(value->element, value->count, depth));
    value->bytes = bytes_.subspan(start, position_ - start);
    return {};
  }

  Status skip_elements(GgufType type, uint64_t count, uint32_t depth) {
    if (const uint32_t size = scalar_bytes(type); size != 0) {
      if (count > left() / size || !have(count * size)) return cut_short("the value");
      position_ += count * size;
      return {};
    }
    if (type == GgufType::kArray && depth >= kMaxArrayDepth) {
      return invalid_argument("arrays nested deeper than {}", kMaxArrayDepth);
    }
    for (uint64_t i = 0; i < count; ++i) {
      std::string_view text;
      GgufFile::Value inner;
      if (type == GgufType::kArray) {
        ATLAS_RETURN_IF_ERROR(read_array(&inner, depth + 1));
      } else if (!read_string(&text)) {
        return cut_short(count == 1 ? std::string("the string")
                                    : fmt::format("string {} of {}", i + 1, count));
      }
    }
    return {};
  }

  Status read_alignment() {
    ATLAS_ASSIGN_OR_RETURN(const auto given, file_.integer("general.alignment"));
    alignment_ = given.value_or(kDefaultAlignment);
    if (std::has_single_bit(alignment_) && alignment_ <= kMaxAlignment) return {};
    return invalid_argument("general.alignment is {}; expected a power of two up to {}", alignment_,
                            kMaxAlignment);
  }

  Status read_tensor(uint64_t index) {
    TensorInfo tensor;
    uint32_t type = 0;
    if (!read_string(&tensor.name) || !read(&tensor.rank)) {
      return cut_short(fmt::format("tensor record {}", index + 1));
    }
    if (tensor.name.empty() || tensor.name.find('\0') != std::string_view::npos) {
      return invalid_argument("name '{}' of tensor {} is empty or holds a zero byte",
                              printable(tensor.name), index + 1);
    }
    const std::string name = printable(tensor.name);
    if (tensor.rank > kMaxRank) {
      return invalid_argument("tensor '{}' has {} dimensions; the format has at most {}", name,
                              tensor.rank, kMaxRank);
    }
    // The file counts the row first; here the row comes last.
    for (uint32_t i = tensor.rank; i-- > 0;) {
      if (!read(&tensor.dims[i])) return cut_short(fmt::format("the record of tensor '{}'", name));
    }
    if (!read(&type) || !read(&tensor.offset)) {
      return cut_short(fmt::format("the record of tensor '{}'", name));
    }
    const auto dtype = dtype_from_ggml(type);
    if (!dtype) {
      const std::string_view known = ggml_type_name(type);
      return unimplemented("tensor '{}' has type {}{}{}; Atlas reads {}", name, type,
                           known.empty() ? "" : ", ", known, ggml_dtype_names());
    }
    tensor.dtype = *dtype;
    const DTypeInfo& info = *dtype_info(*dtype);
    const uint64_t row = tensor.rank == 0 ? 1 : tensor.dims[tensor.rank - 1];
    if (row % info.block_elements != 0) {
      return invalid_argument("tensor '{}' has rows of {} elements, but {} has blocks of {}", name,
                              row, info.name, info.block_elements);
    }
    const auto bytes = tensor_bytes(info, tensor.shape());
    if (!bytes) return invalid_argument("tensor '{}': its shape overflows 64 bits", name);
    tensor.bytes = *bytes;
    file_.tensors_.push_back(tensor);
    return {};
  }

  /// Turns offsets within the data into offsets within the file and checks them against it.
  Status place_tensors() {
    if (file_.tensors_.empty()) return {};
    const uint64_t start = (position_ + alignment_ - 1) / alignment_ * alignment_;
    if (start > file_bytes_) {
      return invalid_argument("the data begins at {} and the file ends at {}: it is cut short",
                              start, file_bytes_);
    }
    const uint64_t data_bytes = file_bytes_ - start;
    for (TensorInfo& tensor : file_.tensors_) {
      if (tensor.offset % alignment_ != 0) {
        return invalid_argument("tensor '{}' lies at {}, which is no multiple of {}",
                                printable(tensor.name), tensor.offset, alignment_);
      }
      if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
        return invalid_argument(
            "tensor '{}' needs {} bytes at {} of {} bytes of data: the file is cut short",
            printable(tensor.name), tensor.bytes, tensor.offset, data_bytes);
      }
      tensor.offset += start;
      const uint32_t unit =
          dtype_info(tensor.dtype)->block_elements == 1 ? dtype_info(tensor.dtype)->block_bytes : 2;
      if (tensor.offset % unit != 0) ++file_.misaligned_;
    }
    return check_overlap();
  }

  Status check_overlap() const {
    std::vector<const TensorInfo*> order;
    order.reserve(file_.tensors_.size());
    for (const TensorInfo& tensor : file_.tensors_) order.push_back(&tensor);
    std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
      return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
    });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
        return invalid_argument("tensors '{}' and '{}' overlap", printable(order[i - 1]->name),
                                printable(order[i]->name));
      }
    }
    return {};
  }

  Status cut_short(std::string_view where) const {
    return invalid_argument("the file of {} bytes ends inside {}", file_bytes_, where);
  }

  std::span<const std::byte> bytes_;
  uint64_t file_bytes_;
  GgufFile& file_;
  uint64_t position_ = 0;
  uint64_t wanted_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
};

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string path) {
  GgufFile file;
  file.path_ = std::move(path);
  const Status status = GgufParser(bytes, bytes.size(), &file).run();
  if (!status.ok()) return status.with_context(file.path_);
  return file;
}

// The header does not say how long it is: more of the file is read until the walk comes to its end.
Result<GgufFile> GgufFile::read(const InputFile& file) {
  constexpr uint64_t kFirstBytes = 1 << 20;
  for (uint64_t count = kFirstBytes;;) {
    count = std::min({count, kMaxGgufHeader, file.size()});
    GgufFile header;
    header.path_ = file.path();
    header.header_.resize(count);
    ATLAS_RETURN_IF_ERROR(file.read_at(0, header.header_));
    GgufParser parser(header.header_, file.size(), &header);
    const Status status = parser.run();
    if (status.ok()) return header;
    if (parser.wanted() == 0) return status.with_context(header.path_);
    if (count == kMaxGgufHeader) {
      return invalid_argument("{}: its header has {} bytes or more; the limit is {}", header.path_,
                              parser.wanted(), kMaxGgufHeader);
    }
    count = std::max(2 * count, parser.wanted());
  }
}

const GgufFile::Value* GgufFile::find(std::string_view key) const {
  const auto place = values_.find(key);
  return place != values_.end() ? &place->second : nullptr;
}

Status GgufFile::wrong_type(std::string_view key, const Value& value,
                            std::string_view expected) const {
  if (value.type == GgufType::kArray) {
    return invalid_argument("{}: key '{}' is an array of {} {}; expected {}", path_, key,
                            value.count, type_name(value.element), expected);
  }
  if (const auto whole = as_integer(value.type, value.bytes.data())) {
    return invalid_argument("{}: key '{}' is {}; expected {}", path_, key, *whole, expected);
  }
  return invalid_argument("{}: key '{}' is a {}; expected {}", path_, key, type_name(value.type),
                          expected);
}

Result<std::optional<uint64_t>> GgufFile::integer(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::optional<uint64_t>();
  const bool array = value->type == GgufType::kArray;
  const GgufType type = array ? value->element : value->type;
  const uint32_t size = scalar_bytes(type);
  if (value->count == 0 || size == 0) return wrong_type(key, *value, "an integer from 0");
  const auto whole = as_integer(type, value->bytes.data());
  if (!whole || *whole < 0) return wrong_type(key, *value, "an integer from 0");
  for (uint64_t i = 1; array && i < value->count; ++i) {
    if (as_integer(type, value->bytes.data() + i * size) != whole) {
      return wrong_type(key, *value, "one integer, or the same one for all layers");
    }
  }
  return std::optional<uint64_t>(static_cast<uint64_t>(*whole));
}

Result<std::optional<double>> GgufFile::number(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::optional<double>();
  if (value->type == GgufType::kF32) {
    return std::optional<double>(load<float>(value->bytes.data()));
  }
  if (value->type == GgufType::kF64) {
    return std::optional<double>(load<double>(value->bytes.data()));
  }
  const auto whole = as_integer(value->type, value->bytes.data());
  if (value->type == GgufType::kArray || !whole) return wrong_type(key, *value, "a number");
  return std::optional<double>(static_cast<double>(*whole));
}

Result<std::optional<bool>> GgufFile::boolean(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->type != GgufType::kBool) return wrong_type(key, *value, "true or false");
  return std::optional<bool>(load<uint8_t>(value->bytes.data()) != 0);
}

Result<std::optional<std::string_view>> GgufFile::text(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->type != GgufType::kString) return wrong_type(key, *value, "a string");
  return std::optional<std::string_view>(
      {reinterpret_cast<const char*>(value->bytes.data()) + 8, value->bytes.size() - 8});
}

Result<std::optional<std::vector<std::string_view>>> GgufFile::texts(std::string_view key) const {
  using Texts = std::optional<std::vector<std::string_view>>;
  const Value* value = find(key);
  if (value == nullptr) return Texts();
  if (value->type != GgufType::kArray ||
      (value->element != GgufType::kString && value->count != 0)) {
    return wrong_type(key, *value, "an array of strings");
  }
  std::vector<std::string_view> texts;
  texts.reserve(value->count);
  const std::byte* from = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = load<uint64_t>(from);
    texts.emplace_back(reinterpret_cast<const char*>(from) + 8, length);
    from += 8 + length;
  }
  return Texts(std::move(texts));
}

Result<std::optional<std::vector<int64_t>>> GgufFile::integers(std::string_view key) const {
  using Integers = std::optional<std::vector<int64_t>>;
  const Value* value = find(key);
  if (value == nullptr) return Integers();
  const uint32_t size = scalar_bytes(value->element);
  if (value->type != GgufType::kArray || (value->count != 0 && size == 0)) {
    return wrong_type(key, *value, "an array of integers");
  }
  std::vector<int64_t> integers;
  integers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto whole = as_integer(value->element, value->bytes.data() + i * size);
    if (!whole) return wrong_type(key, *value, "an array of integers");
    integers.push_back(*whole);
  }
  return Integers(std::move(integers));
}

std::optional<std::string_view> GgufFile::text_at(std::string_view key, uint64_t index) const {
  const Value* value = find(key);
  if (value == nullptr || value->type != GgufType::kArray || value->element != GgufType::kString ||
      index >= value->count) {
    return std::nullopt;
  }
  const std::byte* from = value->bytes.data();
  for (uint64_t i = 0; i < index; ++i) from += 8 + load<uint64_t>(from);
  return std::string_view(reinterpret_cast<const char*>(from) + 8, load<uint64_t>(from));
}

uint64_t GgufFile::array_size(std::string_view key) const {
  const Value* value = find(key);
  return value != nullptr && value->type == GgufType::kArray ? value->count : 0;
}

}  // namespace atlas::model
