// The one way into plugin code: every call through a table goes through call_plugin, which turns
// codes, messages and exceptions into a Status. Header-only; needs daemon/base and the ABI alone.
#pragma once

#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "daemon/base/status.h"
#include "plugins/abi/atlas_plugin.h"

namespace atlas::plugin_host {

/// The Status of a call that returned `code`. A code that is none of the sixteen is kInternal.
inline Status status_of_call(std::string_view plugin, std::string_view call, AtlasCode code,
                             const AtlasError& error) {
  if (code == ATLAS_OK) return Status();
  const size_t length = strnlen(error.message, sizeof(error.message));
  const std::string_view message =
      length == 0 ? std::string_view("it gave no reason") : std::string_view(error.message, length);
  if (code < ATLAS_OK || code > ATLAS_DATA_LOSS) {
    return internal_error("plugin '{}', {}: returned the unknown code {}: {}", plugin, call, code,
                          message);
  }
  return Status(static_cast<Code>(code), fmt::format("plugin '{}', {}: {}", plugin, call, message));
}

/// What an exception that left a plugin becomes. Call inside a catch block.
inline Status status_of_exception(std::string_view plugin, std::string_view call) {
  try {
    throw;
  } catch (const std::exception& thrown) {
    return internal_error("plugin '{}', {}: threw an exception: {}", plugin, call, thrown.what());
  } catch (...) {
    return internal_error("plugin '{}', {}: threw something that is no std::exception", plugin,
                          call);
  }
}

/// Calls `function(args..., &error)`. `plugin` and `call` ("claim", "pack") are for the message.
/// Allocates nothing while all goes well.
/// Errors: the plugin's code and message; kInternal for what it throws; kUnimplemented for a null
/// function (a field that the plugin's table ends before).
template <typename... Params, typename... Args>
Status call_plugin(std::string_view plugin, std::string_view call, AtlasCode (*function)(Params...),
                   Args&&... args) {
  if (function == nullptr) {
    return unimplemented("plugin '{}' has no {}: it is built for an older ABI", plugin, call);
  }
  AtlasError error;
  error.struct_size = sizeof(error);
  error.message[0] = '\0';
  try {
    const AtlasCode code = function(std::forward<Args>(args)..., &error);
    if (code == ATLAS_OK) [[likely]] {
      return Status();
    }
    return status_of_call(plugin, call, code, error);
  } catch (...) {
    return status_of_exception(plugin, call);
  }
}

/// The same for functions that return nothing and take no error (destroy, close, shutdown).
template <typename... Params, typename... Args>
Status call_plugin(std::string_view plugin, std::string_view call, void (*function)(Params...),
                   Args&&... args) {
  if (function == nullptr) {
    return unimplemented("plugin '{}' has no {}: it is built for an older ABI", plugin, call);
  }
  try {
    function(std::forward<Args>(args)...);
    return Status();
  } catch (...) {
    return status_of_exception(plugin, call);
  }
}

}  // namespace atlas::plugin_host
