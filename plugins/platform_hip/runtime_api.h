// The part of HIP's runtime API that the platform uses, declared here so that a build needs no ROCm
// and a daemon starts without one.
//
// Source: hip_runtime_api.h and driver_types.h of HIP, as of ROCm 6.0 to 7
// (github.com/ROCm/rocm-systems, projects/hip/include/hip). What changed at ROCm 6.0 is
// hipDeviceProp_t, whose new form has entry points and a name of its own (R0600) since; earlier
// runtimes lack them and are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace atlas::platform_hip {

using HipResult = int;
using HipModule = struct HipModuleTag*;
using HipFunction = struct HipFunctionTag*;
using HipStream = struct HipStreamTag*;
using HipEvent = struct HipEventTag*;
using HipGraph = struct HipGraphTag*;
using HipGraphNode = struct HipGraphNodeTag*;
using HipGraphExec = struct HipGraphExecTag*;

struct HipDim3 {
  uint32_t x, y, z;
};

/// hipKernelNodeParams.
struct HipKernelNodeParams {
  HipDim3 block;
  void** extra;
  void* func;  // a HipFunction
  HipDim3 grid;
  void** kernel_params;
  unsigned int shared_bytes;
};
static_assert(sizeof(HipKernelNodeParams) == 64 && offsetof(HipKernelNodeParams, func) == 24 &&
              offsetof(HipKernelNodeParams, grid) == 32 &&
              offsetof(HipKernelNodeParams, kernel_params) == 48);

/// hipDeviceProp_tR0600. What has no use here is only as large as it is there.
struct HipDeviceProperties {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned int luid_node_mask;
  size_t total_memory;
  size_t shared_bytes_per_block;
  int registers_per_block;
  int warp_size;
  size_t memory_pitch;
  int max_threads_per_block;
  int max_block[3];
  int max_grid[3];
  int clock_rate;
  size_t constant_memory;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int device_overlap;
  int multiprocessors;
  int kernel_timeout;
  int integrated;
  int can_map_host_memory;
  int compute_mode;
  int textures_and_surfaces[40];
  size_t surface_alignment;
  int concurrent_kernels;
  int ecc;
  int pci_bus, pci_device, pci_domain;
  int tcc;
  int async_engines;
  int unified_addressing;
  int memory_clock, memory_bus_bits;
  int l2_bytes, persisting_l2_bytes;
  int threads_per_multiprocessor;
  int stream_priorities, global_l1, local_l1;
  size_t shared_per_multiprocessor;
  int registers_per_multiprocessor;
  int managed_memory, multi_gpu_board, multi_gpu_group;
  int host_native_atomics;
  int precision_ratio;
  int pageable_access, concurrent_managed, compute_preemption, host_pointer_for_registered;
  int cooperative_launch, cooperative_multi_device;
  size_t shared_bytes_optin;
  int host_page_tables, managed_from_host, blocks_per_multiprocessor, access_policy_window;
  size_t reserved_shared_per_block;
  int host_register[3];
  int timeline_semaphores, memory_pools;
  int direct_rdma[3];
  int pool_handle_types;
  int later[4];
  int reserved[63];
  int hip_reserved[32];
  char architecture[256];  // gcnArchName: "gfx1151", features after a colon
  size_t shared_per_cu;
  int clock_instruction_rate;
  unsigned int features;
  void* hdp_flush[2];
  int cooperative_unmatched[4];
  int large_bar;
  int revision;
};

enum HipResultCode : int {
  kHipSuccess = 0,
  kHipInvalidValue = 1,
  kHipOutOfMemory = 2,
  kHipDeinitialized = 4,
  kHipPriorLaunchFailure = 53,
  kHipNoDevice = 100,
  kHipInvalidDevice = 101,
  kHipInvalidImage = 200,
  kHipInvalidContext = 201,
  kHipNoBinaryForGpu = 209,
  kHipEccNotCorrectable = 214,
  kHipInvalidKernelFile = 218,
  kHipInvalidSource = 300,
  kHipSharedObjectInitFailed = 303,
  kHipNotFound = 500,
  kHipNotReady = 600,
  kHipIllegalAddress = 700,
  kHipLaunchTimeOut = 702,
  kHipContextIsDestroyed = 709,
  kHipAssert = 710,
  kHipLaunchFailure = 719,
  kHipNotSupported = 801,
  kHipRuntimeMemory = 1052,
  kHipRuntimeOther = 1053,
};

enum HipFunctionAttribute : int {
  kHipFuncMaxThreadsPerBlock = 0,
  kHipFuncSharedSizeBytes = 1,
};

enum HipCopyKind : int { kHipHostToDevice = 1, kHipDeviceToHost = 2 };

inline constexpr unsigned int kHipStreamNonBlocking = 1;
inline constexpr unsigned int kHipEventDisableTiming = 2;
inline constexpr unsigned int kHipHostMallocPortable = 1;
inline constexpr unsigned int kHipHostMallocMapped = 2;
// Kernels and host see each other's writes while a kernel runs.
inline constexpr unsigned int kHipHostMallocCoherent = 0x40000000;

// X(name, result, arguments)
#define ATLAS_HIP_ENTRY_POINTS(X)                                                                  \
  X(hipInit, HipResult, (unsigned int flags))                                                      \
  X(hipRuntimeGetVersion, HipResult, (int* version))                                               \
  X(hipGetErrorName, const char*, (HipResult result))                                              \
  X(hipGetErrorString, const char*, (HipResult result))                                            \
  X(hipGetDeviceCount, HipResult, (int* count))                                                    \
  X(hipGetDevicePropertiesR0600, HipResult, (HipDeviceProperties * properties, int device))        \
  X(hipSetDevice, HipResult, (int device))                                                         \
  X(hipMemGetInfo, HipResult, (size_t * free, size_t * total))                                     \
  X(hipMalloc, HipResult, (void** address, size_t bytes))                                          \
  X(hipFree, HipResult, (void* address))                                                           \
  X(hipHostMalloc, HipResult, (void** host, size_t bytes, unsigned int flags))                     \
  X(hipHostFree, HipResult, (void* host))                                                          \
  X(hipHostGetDevicePointer, HipResult, (void** device, void* host, unsigned int flags))           \
  X(hipMemcpyAsync, HipResult,                                                                     \
    (void* to, const void* from, size_t bytes, int kind, HipStream stream))                        \
  X(hipMemsetAsync, HipResult, (void* to, int value, size_t bytes, HipStream stream))              \
  X(hipStreamCreateWithFlags, HipResult, (HipStream * stream, unsigned int flags))                 \
  X(hipStreamDestroy, HipResult, (HipStream stream))                                               \
  X(hipStreamQuery, HipResult, (HipStream stream))                                                 \
  X(hipEventCreateWithFlags, HipResult, (HipEvent * event, unsigned int flags))                    \
  X(hipEventDestroy, HipResult, (HipEvent event))                                                  \
  X(hipEventRecord, HipResult, (HipEvent event, HipStream stream))                                 \
  X(hipEventQuery, HipResult, (HipEvent event))                                                    \
  X(hipModuleLoadData, HipResult, (HipModule * module, const void* image))                         \
  X(hipModuleUnload, HipResult, (HipModule module))                                                \
  X(hipModuleGetFunction, HipResult, (HipFunction * function, HipModule module, const char* name)) \
  X(hipFuncGetAttribute, HipResult, (int* value, int attribute, HipFunction function))             \
  X(hipModuleLaunchKernel, HipResult,                                                              \
    (HipFunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,          \
     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,  \
     HipStream stream, void** params, void** extra))                                               \
  X(hipGraphCreate, HipResult, (HipGraph * graph, unsigned int flags))                             \
  X(hipGraphDestroy, HipResult, (HipGraph graph))                                                  \
  X(hipGraphAddKernelNode, HipResult,                                                              \
    (HipGraphNode * node, HipGraph graph, const HipGraphNode* after, size_t after_count,           \
     const HipKernelNodeParams* params))                                                           \
  X(hipGraphInstantiateWithFlags, HipResult,                                                       \
    (HipGraphExec * executable, HipGraph graph, unsigned long long flags))                         \
  X(hipGraphLaunch, HipResult, (HipGraphExec executable, HipStream stream))                        \
  X(hipGraphExecDestroy, HipResult, (HipGraphExec executable))

// Used where the runtime has them.
#define ATLAS_HIP_OPTIONAL_ENTRY_POINTS(X) \
  X(hipGraphUpload, HipResult, (HipGraphExec executable, HipStream stream))

/// The entry points of a runtime; an optional one that it lacks is null.
struct RuntimeApi {
#define ATLAS_HIP_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
  ATLAS_HIP_ENTRY_POINTS(ATLAS_HIP_MEMBER)
  ATLAS_HIP_OPTIONAL_ENTRY_POINTS(ATLAS_HIP_MEMBER)
#undef ATLAS_HIP_MEMBER
};

/// Opens libamdhip64, which stays open: of ROCm 7, else of ROCm 6, else whichever has the plain
/// name. Throws sdk::Failure (ATLAS_FAILED_PRECONDITION): no runtime, or one that is too old, with
/// what it lacks.
RuntimeApi open_runtime();

/// "6.4" of 60443483.
std::string version_text(int version);

inline constexpr char kRuntimeAdvice[] =
    "platform strix-hip needs ROCm's HIP runtime, libamdhip64 of ROCm 6 or 7, and access to "
    "/dev/kfd "
    "and /dev/dri (groups render and video)";

}  // namespace atlas::platform_hip
