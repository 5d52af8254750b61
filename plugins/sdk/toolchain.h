// The toolchain that builds a plugin, as text: compared with the host's before any code runs.
#pragma once

#include <cstddef>

namespace atlas::sdk {

#define ATLAS_SDK_STRING_INNER(x) #x
#define ATLAS_SDK_STRING(x) ATLAS_SDK_STRING_INNER(x)

#if defined(__SANITIZE_ADDRESS__)
#define ATLAS_SDK_SANITIZER "address"
#elif defined(__SANITIZE_THREAD__)
#define ATLAS_SDK_SANITIZER "thread"
#else
#define ATLAS_SDK_SANITIZER "none"
#endif

#if defined(__clang__)
#define ATLAS_SDK_COMPILER "clang-" ATLAS_SDK_STRING(__clang_major__)
#else
#define ATLAS_SDK_COMPILER "gcc-" ATLAS_SDK_STRING(__GNUC__)
#endif

#if defined(__x86_64__)
#define ATLAS_SDK_MACHINE "x86_64"
#elif defined(__aarch64__)
#define ATLAS_SDK_MACHINE "aarch64"
#else
#define ATLAS_SDK_MACHINE "unknown"
#endif

/// Fields are `key=value`, separated by spaces, so that a refusal can name the one that differs.
inline constexpr char kToolchain[] =
    "machine=" ATLAS_SDK_MACHINE " compiler=" ATLAS_SDK_COMPILER " sanitizer=" ATLAS_SDK_SANITIZER;

}  // namespace atlas::sdk
