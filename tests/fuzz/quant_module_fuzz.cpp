// A module's tensors that a quantization plugin is asked about: its claim, and packing what it
// claims. Bytes that are a safetensors file give the tensors of its module "m"; any others are read
// as a list of tensors with names, types and sizes that formats have, so that few are refused for
// nothing. Built once for each plugin, whose sources are linked in.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/model/checkpoint/checkpoint.h"
#include "daemon/model/checkpoint/safetensors.h"
#include "plugins/abi/atlas_plugin.h"

using namespace atlas::model;

extern "C" const AtlasPlugin* atlas_plugin_entry(const AtlasHost* host, AtlasError* error);

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "property violated: %s\n", what);
  std::abort();
}

const AtlasQuantApi& api() {
  static const AtlasQuantApi table = [] {
    AtlasHost host{};
    host.struct_size = sizeof(host);
    host.abi_major = ATLAS_ABI_MAJOR;
    host.abi_minor = ATLAS_ABI_MINOR;
    AtlasError error{sizeof(AtlasError), {}};
    const AtlasPlugin* plugin = atlas_plugin_entry(&host, &error);
    require(plugin != nullptr, "the plugin starts");
    return *plugin->quant;
  }();
  return table;
}

void check_refusal(AtlasCode code, const AtlasError& error) {
  require(code == ATLAS_OK || error.message[0] != '\0', "a refusal has words");
  require(code == ATLAS_OK || code == ATLAS_INVALID_ARGUMENT || code == ATLAS_UNIMPLEMENTED,
          "a bad file is no internal error");
}

/// What was claimed is packed in one piece and group by group, to the same bytes.
void pack(const AtlasWeightQuery& query, const AtlasWeightClaim& claim, uint64_t stored) {
  require(claim.row_group != 0 && claim.group_bytes != 0 && claim.n != 0 && claim.k != 0,
          "a claim has a layout");
  require((query.n == 0 || query.n == claim.n) && (query.k == 0 || query.k == claim.k),
          "a claim has the sizes that were asked");
  const uint64_t groups = (claim.n + claim.row_group - 1) / claim.row_group;
  uint64_t bytes = 0;
  require(!__builtin_mul_overflow(groups, claim.group_bytes, &bytes), "a weight fits 64 bits");
  bytes += claim.head_bytes;
  // A row of one number takes a group of sixteen rows with a scale and a vector each.
  require(bytes <= 4096 + 4096 * stored, "a small file makes no large weight");
  if (bytes > 16u << 20) return;
  std::vector<uint8_t> whole(bytes), parts(bytes);
  AtlasError error{sizeof(AtlasError), {}};
  const AtlasCode code = api().pack(&query, &claim, 0, groups, whole.data(), &error);
  check_refusal(code, error);
  bool parts_good = true;
  for (uint64_t g = 0; g < groups && parts_good; ++g) {
    const uint64_t at = g == 0 ? 0 : claim.head_bytes + g * claim.group_bytes;
    parts_good = api().pack(&query, &claim, g, g + 1, parts.data() + at, &error) == ATLAS_OK;
  }
  require(parts_good == (code == ATLAS_OK), "parts are refused like the whole");
  require(code != ATLAS_OK || whole == parts, "parts are the whole's bytes");
}

/// Tensors with memory of exactly their size, so that reads past it show.
struct Tensors {
  std::vector<AtlasTensor> all;
  std::vector<std::unique_ptr<std::string>> names;
  std::vector<std::vector<std::byte>> data;

  void add(AtlasTensor tensor, const std::string& name, std::vector<std::byte> bytes) {
    names.push_back(std::make_unique<std::string>(name));
    data.push_back(std::move(bytes));
    tensor.struct_size = sizeof(tensor);
    tensor.name = names.back()->c_str();
    tensor.bytes = data.back().size();
    tensor.data = data.back().data();
    all.push_back(tensor);
  }
};

bool read_file(std::span<const std::byte> file, Tensors& tensors) {
  TensorTable table;
  const std::vector<std::string> files{"fuzz"};
  if (!read_safetensors(file, files[0], 0, &table) || !table.seal(files).ok()) return false;
  for (const TensorInfo& info : table.with_prefix("m")) {
    const auto tensor = to_abi_tensor(info);
    if (!tensor) return false;
    const auto bytes = file.subspan(info.offset, info.bytes);
    tensors.add(*tensor, std::string(info.name), {bytes.begin(), bytes.end()});
  }
  return true;
}

/// Each tensor: name, type, rank, a byte for each size, and one that says what is wrong with it.
/// Its data are bytes of the input again, from where it stands on.
void read_list(std::span<const uint8_t> input, Tensors& tensors) {
  constexpr const char* kNames[] = {"weight",
                                    "weight_scale",
                                    "weight_scale_inv",
                                    "weight_scale_2",
                                    "weight_packed",
                                    "weight_global_scale",
                                    "trellis",
                                    "suh",
                                    "svh",
                                    "su",
                                    "sv",
                                    "mcg",
                                    "mul1",
                                    "pre_quant_scale",
                                    "bias"};
  constexpr AtlasDType kTypes[] = {ATLAS_U8,  ATLAS_F8_E4M3,  ATLAS_F32, ATLAS_F16, ATLAS_BF16,
                                   ATLAS_I16, ATLAS_F8_UE8M0, ATLAS_I32, ATLAS_U16, ATLAS_F8_E5M2};
  constexpr uint64_t kElement[] = {1, 1, 4, 2, 2, 2, 1, 4, 2, 1};
  constexpr uint64_t kSizes[] = {0,  1,  2,  3,  4,   5,   8,   16,  17,  20, 24,
                                 32, 40, 48, 64, 127, 128, 129, 256, 300, 16, uint64_t{1} << 40};
  size_t at = 0;
  const auto next = [&]() -> uint8_t { return at < input.size() ? input[at++] : uint8_t{0}; };
  while (at < input.size() && tensors.all.size() < 8) {
    const char* name = kNames[next() % std::size(kNames)];
    const size_t type = next() % std::size(kTypes);
    AtlasTensor tensor{};
    tensor.dtype = kTypes[type];
    tensor.rank = next() % 5;
    uint64_t bytes = kElement[type];
    for (uint32_t i = 0; i < tensor.rank; ++i) {
      tensor.dims[i] = kSizes[next() % std::size(kSizes)];
      bytes = std::min<uint64_t>(bytes * std::min<uint64_t>(tensor.dims[i], 4096), 1 << 15);
    }
    const uint8_t wrong = next();
    if (wrong % 16 == 1 && bytes != 0) --bytes;
    std::vector<std::byte> data(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = std::byte{input[(at + i) % input.size()]};
    // Few bytes are scales: most inputs keep those of a good one.
    if (wrong % 2 == 0 && kElement[type] == 4 && bytes >= 4)
      std::memcpy(&data[0], "\0\0\x80\x3c", 4);
    if (wrong % 2 == 0 && std::string(name) == "mul1" && bytes >= 4) {
      std::memcpy(&data[0], "\x2d\xd1\xdc\x83", 4);
    }
    if (wrong % 2 == 0 && std::string(name) == "mcg" && bytes >= 4) {
      std::memcpy(&data[0], "\xed\x1f\xac\xcb", 4);
    }
    tensors.add(tensor, std::string("m.") + name, std::move(data));
    if (wrong % 16 == 3) tensors.all.back().data = nullptr;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Tensors tensors;
  if (!read_file({reinterpret_cast<const std::byte*>(data), size}, tensors)) {
    tensors = {};
    read_list({data, size}, tensors);
  }
  uint64_t stored = 0;
  for (const AtlasTensor& tensor : tensors.all) stored += tensor.bytes;
  AtlasWeightQuery query{};
  query.struct_size = sizeof(query);
  query.tensor_count = static_cast<uint32_t>(tensors.all.size());
  query.platform = "cpu";
  query.module = "m";
  query.tensors = tensors.all.data();
  const auto claim = [&](AtlasWeightClaim& out) {
    out = {};
    out.struct_size = sizeof(out);
    AtlasError error{sizeof(AtlasError), {}};
    const AtlasCode code = api().claim(&query, &out, &error);
    check_refusal(code, error);
    require(code == ATLAS_OK || out.claimed == 0, "what is refused is not claimed");
    return code == ATLAS_OK && out.claimed != 0;
  };
  AtlasWeightClaim found{};
  if (!claim(found)) return 0;
  pack(query, found, stored);
  // Sizes that a model asks for: fewer (padding, or refused), and one that nothing has.
  query.n = found.n - found.n % 7;
  query.k = found.k - found.k % 5;
  AtlasWeightClaim other{};
  if (query.n != 0 && query.k != 0 && claim(other)) pack(query, other, stored);
  query.n = ~uint64_t{0};
  require(!claim(other), "no matrix has 2^64 - 1 rows");
  return 0;
}
