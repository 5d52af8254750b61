// Calls through the plugin ABI: the one place where codes become a Status and exceptions stop.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/base/status.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::abi {

/// A Status from a plugin's answer; unknown codes become kUnknown. "`context`: message".
Status to_status(std::string_view context, AtlasCode code, const AtlasError& error);

/// The field's name of a data type, for instance "bf16" or "q4_1".
std::string_view dtype_name(AtlasDType dtype);

/// Calls `function(args..., &error)`. A null function is kUnimplemented, a thrown exception
/// kInternal.
template <typename... Params, typename... Args>
Status call(std::string_view context, AtlasCode (*function)(Params...), Args&&... args) {
  if (function == nullptr) {
    return Status(Code::kUnimplemented, fmt::format("{}: the plugin has no such call", context));
  }
  AtlasError error{};
  error.struct_size = sizeof(error);
  try {
    const AtlasCode code = function(std::forward<Args>(args)..., &error);
    return code == ATLAS_OK ? Status() : to_status(context, code, error);
  } catch (const std::exception& thrown) {
    return Status(Code::kInternal,
                  fmt::format("{}: the plugin threw an exception: {}", context, thrown.what()));
  } catch (...) {
    return Status(Code::kInternal, fmt::format("{}: the plugin threw an exception", context));
  }
}

}  // namespace atlas::abi
