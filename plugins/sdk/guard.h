// What keeps C++ inside a plugin: errors become codes, and no exception crosses.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "plugins/abi/atlas_plugin.h"

namespace atlas::sdk {

/// Fills `error` (which may be null) and returns `code`.
inline AtlasCode fail(AtlasError* error, AtlasCode code, std::string_view message) noexcept {
  if (error != nullptr) {
    const size_t length = std::min(message.size(), sizeof(error->message) - 1);
    std::memcpy(error->message, message.data(), length);
    error->message[length] = '\0';
  }
  return code;
}

/// An error with its code, for plugins that report by throwing; caught by `guarded`.
class Failure : public std::exception {
 public:
  Failure(AtlasCode code, std::string message) : code_(code), message_(std::move(message)) {}
  AtlasCode code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  AtlasCode code_;
  std::string message_;
};

/// Runs `body` (which returns an AtlasCode) and turns what it throws into a code: a Failure into
/// its own, a lack of memory into ATLAS_RESOURCE_EXHAUSTED, anything else into ATLAS_INTERNAL.
template <typename Body>
AtlasCode guarded(AtlasError* error, Body&& body) noexcept {
  try {
    return body();
  } catch (const Failure& failure) {
    return fail(error, failure.code(), failure.what());
  } catch (const std::bad_alloc&) {
    return fail(error, ATLAS_RESOURCE_EXHAUSTED, "the host is out of memory");
  } catch (const std::exception& thrown) {
    return fail(error, ATLAS_INTERNAL, thrown.what());
  } catch (...) {
    return fail(error, ATLAS_INTERNAL, "an exception that is no std::exception");
  }
}

/// The table of an attention plugin that has nothing to shut down.
constexpr AtlasPlugin attention_plugin(const AtlasAttentionApi* api) {
  return {sizeof(AtlasPlugin),
          ATLAS_ABI_MAJOR,
          ATLAS_ABI_MINOR,
          ATLAS_KIND_ATTENTION,
          nullptr,
          api,
          nullptr,
          nullptr};
}

/// What an entry function does: hands `plugin` to a host of the same major version.
inline const AtlasPlugin* enter(const AtlasPlugin& plugin, const AtlasHost* host,
                                AtlasError* error) noexcept {
  if (host != nullptr && host->abi_major == ATLAS_ABI_MAJOR) return &plugin;
  fail(error, ATLAS_FAILED_PRECONDITION,
       "the plugin is built for another ABI version than the host's");
  return nullptr;
}

template <size_t N>
void copy_text(char (&array)[N], std::string_view text) noexcept {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(array, text.data(), length);
  array[length] = '\0';
}

}  // namespace atlas::sdk
