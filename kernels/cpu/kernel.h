// What a kernel of the CPU pack is: a function over a range of tasks, and two symbols.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/params.h"

namespace atlas::kernels::cpu {

/// Runs tasks [begin, end) of the grid (x fastest). `scratch` is this thread's, 64-byte aligned, of
/// the record's shared_bytes, with undefined contents. A task's results depend on nothing but the
/// parameters and its number, so any thread may run it.
using Kernel = void (*)(const void* params, uint32_t begin, uint32_t end, std::byte* scratch);

}  // namespace atlas::kernels::cpu

/// Defines kernel `name` over `Params`: the symbols `atlas_kernel_<name>` and, read from the file
/// by the audit, `atlas_params_<name>` with the digest of its parameter struct. The body that
/// follows sees `params`, `begin`, `end` and `scratch`. Use inside namespace atlas::kernels or
/// below.
#define ATLAS_CPU_KERNEL(name, Params)                                                             \
  static void name##_body(const Params& params, uint32_t begin, uint32_t end, std::byte* scratch); \
  extern "C" {                                                                                     \
  extern __attribute__((visibility("default"))) const uint64_t atlas_params_##name;                \
  __attribute__((used)) const uint64_t atlas_params_##name = k##Params##Digest;                    \
  __attribute__((visibility("default"),                                                            \
                 used)) void atlas_kernel_##name(const void* raw, uint32_t first, uint32_t last,   \
                                                 std::byte* memory) {                              \
    name##_body(*static_cast<const Params*>(raw), first, last, memory);                            \
  }                                                                                                \
  }                                                                                                \
  static void name##_body([[maybe_unused]] const Params& params, [[maybe_unused]] uint32_t begin,  \
                          [[maybe_unused]] uint32_t end, [[maybe_unused]] std::byte* scratch)
