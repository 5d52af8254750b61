// The functions that each minor version requires, by name, and the copying.
#include "daemon/plugin_host/tables.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

namespace atlas::plugin_host {
namespace {

struct Slot {
  const char* name;
  size_t offset;
  uint32_t minor = 0;  // the version that brought it
};

#define ATLAS_SLOT(Api, field, ...) \
  Slot { #field, offsetof(Api, field) __VA_OPT__(, ) __VA_ARGS__ }

// A plugin has every function of the version that it says; of later ones it has none.
constexpr std::array kQuantSlots = {
    ATLAS_SLOT(AtlasQuantApi, claim),           ATLAS_SLOT(AtlasQuantApi, pack),
    ATLAS_SLOT(AtlasQuantApi, linear_needs),    ATLAS_SLOT(AtlasQuantApi, plan_linear),
    ATLAS_SLOT(AtlasQuantApi, plan_encode),     ATLAS_SLOT(AtlasQuantApi, plan_gather),
    ATLAS_SLOT(AtlasQuantApi, plan_grouped, 1), ATLAS_SLOT(AtlasQuantApi, grouped_needs, 1),
};
constexpr std::array kAttentionSlots = {
    ATLAS_SLOT(AtlasAttentionApi, needs),
    ATLAS_SLOT(AtlasAttentionApi, plan),
};
constexpr std::array kPlatformSlots = {
    ATLAS_SLOT(AtlasPlatformApi, device_open),
    ATLAS_SLOT(AtlasPlatformApi, device_close),
    ATLAS_SLOT(AtlasPlatformApi, device_info),
    ATLAS_SLOT(AtlasPlatformApi, memory_alloc),
    ATLAS_SLOT(AtlasPlatformApi, memory_free),
    ATLAS_SLOT(AtlasPlatformApi, stream_create),
    ATLAS_SLOT(AtlasPlatformApi, stream_destroy),
    ATLAS_SLOT(AtlasPlatformApi, stream_synchronize),
    ATLAS_SLOT(AtlasPlatformApi, copy_to_device),
    ATLAS_SLOT(AtlasPlatformApi, copy_to_host),
    ATLAS_SLOT(AtlasPlatformApi, fill),
    ATLAS_SLOT(AtlasPlatformApi, event_create),
    ATLAS_SLOT(AtlasPlatformApi, event_destroy),
    ATLAS_SLOT(AtlasPlatformApi, event_record),
    ATLAS_SLOT(AtlasPlatformApi, event_wait),
    ATLAS_SLOT(AtlasPlatformApi, module_load),
    ATLAS_SLOT(AtlasPlatformApi, module_kernel),
    ATLAS_SLOT(AtlasPlatformApi, step_create),
    ATLAS_SLOT(AtlasPlatformApi, step_destroy),
    ATLAS_SLOT(AtlasPlatformApi, step_launch),
    ATLAS_SLOT(AtlasPlatformApi, module_release, 3),
};
#undef ATLAS_SLOT

// A function added to a table and forgotten above does not compile.
template <typename Api>
constexpr size_t kFunctions = (sizeof(Api) - 2 * sizeof(uint32_t)) / sizeof(void*);
static_assert(kQuantSlots.size() == kFunctions<AtlasQuantApi>);
static_assert(kAttentionSlots.size() == kFunctions<AtlasAttentionApi>);
static_assert(kPlatformSlots.size() == kFunctions<AtlasPlatformApi>);

// Reads the one field that every struct has.
uint32_t struct_size_of(const void* table) {
  uint32_t size = 0;
  std::memcpy(&size, table, sizeof(size));
  return size;
}

template <typename Api>
Status take_table(const Api* from, std::string_view table, uint32_t minor,
                  std::span<const Slot> slots, Api& to) {
  if (from == nullptr) return failed_precondition("its {} table is null", table);
  minor = std::min<uint32_t>(minor, ATLAS_ABI_MINOR);
  while (slots.back().minor > minor) slots = slots.first(slots.size() - 1);
  const size_t size = struct_size_of(from);
  const size_t least = slots.back().offset + sizeof(void*);
  if (size < least) {
    return failed_precondition("its {} table says struct_size {}, version {}.{} has {}", table,
                               size, ATLAS_ABI_MAJOR, minor, least);
  }
  std::memcpy(&to, from, std::min(size, sizeof(to)));
  std::string missing;
  for (const Slot& slot : slots) {
    void* function = nullptr;
    std::memcpy(&function, reinterpret_cast<const char*>(&to) + slot.offset, sizeof(function));
    if (function == nullptr) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", slot.name);
  }
  if (!missing.empty()) {
    return failed_precondition("its {} table lacks {}", table, missing);
  }
  return Status();
}

}  // namespace

Result<Tables> take_tables(const AtlasPlugin* returned, const PluginDescriptor& descriptor) {
  constexpr size_t kLeast = offsetof(AtlasPlugin, shutdown) + sizeof(void*);
  const size_t size = struct_size_of(returned);
  if (size < kLeast) {
    return failed_precondition("its entry returned struct_size {}, version 1.0 has {}", size,
                               kLeast);
  }
  AtlasPlugin plugin{};
  std::memcpy(&plugin, returned, std::min(size, sizeof(plugin)));
  if (plugin.abi_major != descriptor.abi_major || plugin.abi_minor != descriptor.abi_minor) {
    return failed_precondition("its entry says ABI {}.{}, its descriptor {}.{}", plugin.abi_major,
                               plugin.abi_minor, descriptor.abi_major, descriptor.abi_minor);
  }
  if (plugin.kind != static_cast<uint32_t>(descriptor.kind)) {
    return failed_precondition("its entry says kind {}, its descriptor {}", plugin.kind,
                               static_cast<uint32_t>(descriptor.kind));
  }
  Tables tables;
  tables.shutdown = plugin.shutdown;
  switch (descriptor.kind) {
    case PluginKind::kQuant:
      ATLAS_RETURN_IF_ERROR(take_table(plugin.quant, kind_name(descriptor.kind), plugin.abi_minor,
                                       kQuantSlots, tables.quant));
      break;
    case PluginKind::kAttention:
      ATLAS_RETURN_IF_ERROR(take_table(plugin.attention, kind_name(descriptor.kind),
                                       plugin.abi_minor, kAttentionSlots, tables.attention));
      break;
    case PluginKind::kPlatform:
      ATLAS_RETURN_IF_ERROR(take_table(plugin.platform, kind_name(descriptor.kind),
                                       plugin.abi_minor, kPlatformSlots, tables.platform));
      break;
  }
  return tables;
}

}  // namespace atlas::plugin_host
