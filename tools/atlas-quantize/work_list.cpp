#include "tools/atlas-quantize/work_list.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

namespace atlas::quantize {

using model::TensorInfo;

namespace {

constexpr uint64_t kTile = 128;  // what exl3 transforms as one

bool has(std::string_view name, std::string_view part) { return name.find(part) != name.npos; }

/// Compares numbers inside of names as numbers: layer 2 comes before layer 10.
bool natural_less(std::string_view a, std::string_view b) {
  size_t i = 0, j = 0;
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      size_t i_end = i, j_end = j;
      while (i_end < a.size() && digit(a[i_end])) ++i_end;
      while (j_end < b.size() && digit(b[j_end])) ++j_end;
      if (i_end - i != j_end - j) return i_end - i < j_end - j;
      const int order = a.substr(i, i_end - i).compare(b.substr(j, j_end - j));
      if (order != 0) return order < 0;
      i = i_end;
      j = j_end;
      continue;
    }
    if (a[i] != b[j]) return a[i] < b[j];
    ++i;
    ++j;
  }
  return a.size() - i < b.size() - j;
}

uint32_t layer_of(std::string_view name) {
  constexpr std::string_view kLayers = ".layers.";
  const size_t at = name.find(kLayers);
  if (at == name.npos) return ~0u;
  uint32_t layer = 0;
  for (size_t i = at + kLayers.size(); i < name.size() && name[i] >= '0' && name[i] <= '9'; ++i) {
    layer = layer * 10 + static_cast<uint32_t>(name[i] - '0');
  }
  return layer;
}

/// Why this kind of matrix stays as it is, whatever the format; empty if it may be quantized.
std::string kind_kept(std::string_view module) {
  if (module.ends_with("embed_tokens")) return "embedding";
  if (module.ends_with(".mlp.gate")) return "router";
  if (module.ends_with(".shared_expert_gate")) return "gate of the shared expert";
  if (has(module, "hyper_connection")) return "gated residual streams";
  if (has(module, ".ple.") || has(module, "ngram_embedding")) return "n-gram embedding";
  if (has(module, ".indexer.")) return "indexer";
  if (module.ends_with(".in_proj_a") || module.ends_with(".in_proj_b")) return "small";
  if (has(module, "norm")) return "norm";
  return {};
}

std::string cannot_hold(Format format, uint64_t n, uint64_t k) {
  if (format == Format::kNvfp4 && k % 16 != 0) return "its inputs are no multiple of 16";
  if (format == Format::kExl3 && (n < kTile || k < kTile)) return "smaller than 128";
  return {};
}

/// Same group, same bits.
std::string bit_group(const std::string& module) {
  std::string group = module;
  const auto join = [&](std::string_view from, std::string_view to) {
    if (group.ends_with(from)) group.replace(group.size() - from.size(), from.size(), to);
  };
  join(".up_proj", ".gate_proj");
  join(".v_proj", ".k_proj");
  // The experts of a layer are one group a projection.
  const size_t experts = group.find(".experts.");
  if (experts != group.npos) {
    const size_t number = experts + std::string_view(".experts.").size();
    group.erase(number, group.find('.', number) - number);
  }
  return group;
}

Item item_of(const TensorInfo& tensor, Format format, const BitTargets& targets) {
  constexpr std::string_view kWeight = ".weight";
  Item item;
  item.tensor = &tensor;
  item.module = tensor.name;
  item.layer = layer_of(tensor.name);
  if (tensor.rank == 0) return item;
  item.k = tensor.shape().back();
  item.n = 1;
  for (uint32_t i = 0; i + 1 < tensor.rank; ++i) item.n *= tensor.dims[i];
  if (tensor.rank != 2 || !tensor.name.ends_with(kWeight)) return item;
  const std::string module(tensor.name.substr(0, tensor.name.size() - kWeight.size()));
  item.kept_because = kind_kept(module);
  if (format == Format::kBf16) {
    item.kept_because = "the format is bf16";
  } else if (item.kept_because.empty() && module == "lm_head") {
    if (format != Format::kExl3) item.kept_because = "output head";
    if (format == Format::kExl3 && targets.head_bits == 16)
      item.kept_because = "16 bits were asked";
  }
  if (item.kept_because.empty()) item.kept_because = cannot_hold(format, item.n, item.k);
  if (!item.kept_because.empty()) return item;
  item.module = module;
  item.quantized = true;
  if (format == Format::kExl3 && module == "lm_head") item.bits = targets.head_bits;
  return item;
}

}  // namespace

Result<Format> parse_format(const std::string& name) {
  for (const Format format : {Format::kBf16, Format::kFp8, Format::kNvfp4, Format::kExl3}) {
    if (format_name(format) == name) return format;
  }
  return invalid_argument("format '{}' is not known: exl3, nvfp4, fp8 and bf16 are", name);
}

std::string format_name(Format format) {
  switch (format) {
    case Format::kBf16:
      return "bf16";
    case Format::kFp8:
      return "fp8";
    case Format::kNvfp4:
      return "nvfp4";
    case Format::kExl3:
      return "exl3";
  }
  return "unknown";
}

Status check_targets(const BitTargets& targets) {
  if (!(targets.bits >= 1 && targets.bits <= 8)) {
    return invalid_argument("{} bits were asked; 1 to 8 are possible", targets.bits);
  }
  if (targets.head_bits != 16 && (targets.head_bits < 1 || targets.head_bits > 8)) {
    return invalid_argument("{} bits of the head were asked; 1 to 8 are possible, and 16 for bf16",
                            targets.head_bits);
  }
  return {};
}

Result<std::vector<Item>> make_work_list(const Source& source, Format format,
                                         const BitTargets& targets) {
  ATLAS_RETURN_IF_ERROR(check_targets(targets));
  std::vector<Item> items;
  for (const TensorInfo& tensor : source.checkpoint().tensors()) {
    if (tensor.name == "rope_freqs.weight") continue;  // of a GGUF: it is part of config.json
    items.push_back(item_of(tensor, format, targets));
  }
  const model::ModelConfig& config = source.checkpoint().config();
  const TensorInfo* embedding = source.checkpoint().find(config.prefix + ".embed_tokens.weight");
  if (format == Format::kExl3 && config.tie_embeddings && embedding != nullptr &&
      source.checkpoint().find("lm_head.weight") == nullptr && targets.head_bits != 16) {
    Item head;
    head.module = "lm_head";
    head.tensor = embedding;
    head.quantized = true;
    head.n = embedding->dims[0];
    head.k = embedding->dims[1];
    head.bits = targets.head_bits;
    if (cannot_hold(format, head.n, head.k).empty()) items.push_back(head);
  }
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return natural_less(a.module, b.module); });
  if (format == Format::kExl3) allocate_bits(items, targets.bits);
  return items;
}

void allocate_bits(std::vector<Item>& items, double bits) {
  struct Group {
    std::vector<Item*> items;
    uint64_t weights = 0;
    int rank = 0;         // 0 first
    uint32_t to_end = 0;  // layers to the nearer end
  };
  uint32_t layers = 0;
  for (const Item& item : items) {
    if (item.layer != ~0u && !item.module.starts_with("mtp.")) {
      layers = std::max(layers, item.layer + 1);
    }
  }
  std::map<std::string, Group> by_name;
  std::vector<std::string> order;
  const double whole = std::floor(bits);
  double budget = 0;
  for (Item& item : items) {
    if (!item.quantized || item.module == "lm_head") continue;
    const std::string name = bit_group(item.module);
    Group& group = by_name[name];
    if (group.items.empty()) order.push_back(name);
    item.bits = whole;
    group.items.push_back(&item);
    group.weights += item.weights();
    group.rank = has(item.module, "attn.") ? 0 : 1;
    const bool draft = item.module.starts_with("mtp.") || item.layer == ~0u;
    group.to_end = draft ? layers : std::min(item.layer, layers - 1 - item.layer);
    budget += (bits - whole) * static_cast<double>(item.weights());
  }
  std::stable_sort(order.begin(), order.end(), [&](const std::string& a, const std::string& b) {
    const Group &x = by_name[a], &y = by_name[b];
    return x.rank != y.rank ? x.rank < y.rank : x.to_end < y.to_end;
  });
  // The fraction is below one bit, so that one round spends it.
  for (const std::string& name : order) {
    Group& group = by_name[name];
    if (static_cast<double>(group.weights) > budget) continue;
    budget -= static_cast<double>(group.weights);
    for (Item* item : group.items) item->bits += 1;
  }
}

}  // namespace atlas::quantize
