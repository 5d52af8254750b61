// Built attention plugins, asked directly: their tables, and what they have against a problem.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <stdexcept>
#include <string>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::test {

/// The table of a built attention plugin, by the plugin's name.
inline const AtlasAttentionApi& attention_plugin(const std::string& name) {
  const std::string path = ATLAS_BINARY_DIR "/lib/atlas/plugins/attn_" + name + ".so";
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<AtlasPluginEntry>(dlsym(handle, ATLAS_PLUGIN_ENTRY));
  AtlasHost host{sizeof(AtlasHost), ATLAS_ABI_MAJOR, ATLAS_ABI_MINOR, 0, nullptr};
  AtlasError error{};
  const AtlasPlugin* plugin = entry(&host, &error);
  if (plugin == nullptr) throw std::runtime_error(error.message);
  return *plugin->attention;
}

/// What a plugin has against a problem, which `plan` asks, or else `needs`; empty if it takes it.
/// Throws if the refusal is no ATLAS_INVALID_ARGUMENT, or comes with records.
inline std::string refusal(const AtlasAttentionApi& api, const AtlasAttentionProblem& problem,
                           bool plan) {
  size_t records = 0;
  const AtlasRecordSink sink{sizeof(sink), 0, &records,
                             [](void* context, const AtlasRecord*, AtlasError*) -> AtlasCode {
                               ++*static_cast<size_t*>(context);
                               return ATLAS_OK;
                             }};
  AtlasAttentionNeeds needs{};
  needs.struct_size = sizeof(needs);
  AtlasError error{sizeof(AtlasError), {}};
  const AtlasCode code =
      plan ? api.plan(&problem, &sink, &error) : api.needs(&problem, &needs, &error);
  if (code == ATLAS_OK) return "";
  if (code != ATLAS_INVALID_ARGUMENT || records != 0) {
    throw std::runtime_error("code " + std::to_string(code) + " after " + std::to_string(records) +
                             " records: " + error.message);
  }
  return error.message;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace atlas::test
