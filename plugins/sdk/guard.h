// What keeps C++ inside a plugin: errors become codes, and no exception crosses.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

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

/// Runs `body` (which returns an AtlasCode) and turns what it throws into ATLAS_INTERNAL.
template <typename Body>
AtlasCode guarded(AtlasError* error, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& thrown) {
    return fail(error, ATLAS_INTERNAL, thrown.what());
  } catch (...) {
    return fail(error, ATLAS_INTERNAL, "an exception that is no std::exception");
  }
}

template <size_t N>
void copy_text(char (&array)[N], std::string_view text) noexcept {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(array, text.data(), length);
  array[length] = '\0';
}

}  // namespace atlas::sdk
