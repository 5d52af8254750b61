// The part of CUDA's driver API that the platform uses, declared here so that a build needs no CUDA
// toolkit and a daemon starts without a driver.
//
// Source: cuda.h and cudaTypedefs.h of CUDA 13.0 (CUDA_VERSION 13000); structs, numbers and the
// version at which each entry point took the form below. check_declarations.cpp compares them with
// the toolkit's own wherever one is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace atlas::platform_cuda {

using CuResult = int;
using CuDevice = int;
using CuDevicePtr = unsigned long long;
using CuContext = struct CuContextTag*;
using CuModule = struct CuModuleTag*;
using CuFunction = struct CuFunctionTag*;
using CuStream = struct CuStreamTag*;
using CuEvent = struct CuEventTag*;
using CuGraph = struct CuGraphTag*;
using CuGraphNode = struct CuGraphNodeTag*;
using CuGraphExec = struct CuGraphExecTag*;
using CuKernel = struct CuKernelTag*;

/// CUDA_KERNEL_NODE_PARAMS_v2.
struct CuKernelNodeParams {
  CuFunction func;
  unsigned int grid_x, grid_y, grid_z;
  unsigned int block_x, block_y, block_z;
  unsigned int shared_bytes;
  void** kernel_params;
  void** extra;
  CuKernel kern;  // used if func is null
  CuContext ctx;
};
static_assert(sizeof(CuKernelNodeParams) == 72 &&
              offsetof(CuKernelNodeParams, kernel_params) == 40 &&
              offsetof(CuKernelNodeParams, ctx) == 64);

/// CUgraphEdgeData.
struct CuGraphEdgeData {
  unsigned char from_port, to_port, type;
  unsigned char reserved[5];
};
static_assert(sizeof(CuGraphEdgeData) == 8);
inline constexpr unsigned char kCuPortProgrammatic = 1;  // when all blocks have let it start
inline constexpr unsigned char kCuDependencyProgrammatic = 1;

enum CuResultCode : int {
  kCuSuccess = 0,
  kCuInvalidValue = 1,
  kCuOutOfMemory = 2,
  kCuNotInitialized = 3,
  kCuDeinitialized = 4,
  kCuDeviceUnavailable = 46,
  kCuNoDevice = 100,
  kCuInvalidDevice = 101,
  kCuInvalidImage = 200,
  kCuInvalidContext = 201,
  kCuNoBinaryForGpu = 209,
  kCuEccUncorrectable = 214,
  kCuInvalidPtx = 218,
  kCuNvlinkUncorrectable = 220,
  kCuJitCompilerNotFound = 221,
  kCuUnsupportedPtxVersion = 222,
  kCuJitCompilationDisabled = 223,
  kCuContained = 226,
  kCuInvalidSource = 300,
  kCuNotFound = 500,
  kCuNotReady = 600,
  kCuIllegalAddress = 700,
  kCuLaunchTimeout = 702,
  kCuContextIsDestroyed = 709,
  kCuAssert = 710,
  kCuHardwareStackError = 714,
  kCuIllegalInstruction = 715,
  kCuMisalignedAddress = 716,
  kCuInvalidAddressSpace = 717,
  kCuInvalidPc = 718,
  kCuLaunchFailed = 719,
  kCuTensorMemoryLeak = 721,
  kCuNotSupported = 801,
  kCuMpsClientTerminated = 810,
  kCuExternalDevice = 911,
  kCuUnknown = 999,
};

enum CuDeviceAttribute : int {
  kCuMaxThreadsPerBlock = 1,
  kCuMaxBlockDimX = 2,
  kCuMaxBlockDimY = 3,
  kCuMaxBlockDimZ = 4,
  kCuMaxGridDimX = 5,
  kCuMaxGridDimY = 6,
  kCuMaxGridDimZ = 7,
  kCuMaxSharedMemoryPerBlock = 8,
  kCuMultiprocessorCount = 16,
  kCuIntegrated = 18,
  kCuComputeCapabilityMajor = 75,
  kCuComputeCapabilityMinor = 76,
  kCuMaxSharedMemoryPerBlockOptin = 97,
};

enum CuFunctionAttribute : int {
  kCuFuncMaxThreadsPerBlock = 0,
  kCuFuncSharedSizeBytes = 1,
  kCuFuncMaxDynamicSharedSizeBytes = 8,
  kCuFuncPreferredSharedCarveout = 9,
};

inline constexpr unsigned int kCuStreamNonBlocking = 1;
inline constexpr unsigned int kCuEventDisableTiming = 2;
inline constexpr unsigned int kCuMemHostAllocPortable = 1;
inline constexpr unsigned int kCuMemHostAllocDeviceMap = 2;

/// `cuGetProcAddress_v2` of CUDA 12.0, the one symbol that is looked up by name in the library.
using CuGetProcAddress = CuResult (*)(const char* symbol, void** function, int version,
                                      uint64_t flags, int* status);
inline constexpr char kCuGetProcAddressSymbol[] = "cuGetProcAddress_v2";

// X(name, version, arguments): the version is that of the form declared here.
#define ATLAS_CUDA_ENTRY_POINTS(X)                                                                \
  X(cuInit, 2000, (unsigned int flags))                                                           \
  X(cuDriverGetVersion, 2020, (int* version))                                                     \
  X(cuGetErrorName, 6000, (CuResult result, const char** name))                                   \
  X(cuGetErrorString, 6000, (CuResult result, const char** text))                                 \
  X(cuDeviceGetCount, 2000, (int* count))                                                         \
  X(cuDeviceGet, 2000, (CuDevice * device, int ordinal))                                          \
  X(cuDeviceGetName, 2000, (char* name, int size, CuDevice device))                               \
  X(cuDeviceGetAttribute, 2000, (int* value, int attribute, CuDevice device))                     \
  X(cuDevicePrimaryCtxRetain, 7000, (CuContext * context, CuDevice device))                       \
  X(cuDevicePrimaryCtxRelease, 11000, (CuDevice device))                                          \
  X(cuCtxSetCurrent, 4000, (CuContext context))                                                   \
  X(cuMemGetInfo, 3020, (size_t * free, size_t * total))                                          \
  X(cuMemAlloc, 3020, (CuDevicePtr * address, size_t bytes))                                      \
  X(cuMemFree, 3020, (CuDevicePtr address))                                                       \
  X(cuMemHostAlloc, 2020, (void** host, size_t bytes, unsigned int flags))                        \
  X(cuMemFreeHost, 2000, (void* host))                                                            \
  X(cuMemHostGetDevicePointer, 3020, (CuDevicePtr * address, void* host, unsigned int flags))     \
  X(cuMemcpyHtoDAsync, 3020, (CuDevicePtr to, const void* from, size_t bytes, CuStream stream))   \
  X(cuMemcpyDtoHAsync, 3020, (void* to, CuDevicePtr from, size_t bytes, CuStream stream))         \
  X(cuMemsetD8Async, 3020, (CuDevicePtr to, unsigned char value, size_t bytes, CuStream stream))  \
  X(cuStreamCreate, 2000, (CuStream * stream, unsigned int flags))                                \
  X(cuStreamDestroy, 4000, (CuStream stream))                                                     \
  X(cuStreamQuery, 2000, (CuStream stream))                                                       \
  X(cuEventCreate, 2000, (CuEvent * event, unsigned int flags))                                   \
  X(cuEventDestroy, 4000, (CuEvent event))                                                        \
  X(cuEventRecord, 2000, (CuEvent event, CuStream stream))                                        \
  X(cuEventQuery, 2000, (CuEvent event))                                                          \
  X(cuModuleLoadData, 2000, (CuModule * module, const void* image))                               \
  X(cuModuleUnload, 2000, (CuModule module))                                                      \
  X(cuModuleGetGlobal, 3020,                                                                      \
    (CuDevicePtr * address, size_t * bytes, CuModule module, const char* name))                   \
  X(cuModuleGetFunction, 2000, (CuFunction * function, CuModule module, const char* name))        \
  X(cuFuncGetAttribute, 2020, (int* value, int attribute, CuFunction function))                   \
  X(cuFuncSetAttribute, 9000, (CuFunction function, int attribute, int value))                    \
  X(cuLaunchKernel, 4000,                                                                         \
    (CuFunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,          \
     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, \
     CuStream stream, void** params, void** extra))                                               \
  X(cuGraphCreate, 10000, (CuGraph * graph, unsigned int flags))                                  \
  X(cuGraphDestroy, 10000, (CuGraph graph))                                                       \
  X(cuGraphAddKernelNode, 12000,                                                                  \
    (CuGraphNode * node, CuGraph graph, const CuGraphNode* after, size_t after_count,             \
     const CuKernelNodeParams* params))                                                           \
  X(cuGraphInstantiateWithFlags, 11040,                                                           \
    (CuGraphExec * executable, CuGraph graph, unsigned long long flags))                          \
  X(cuGraphUpload, 11010, (CuGraphExec executable, CuStream stream))                              \
  X(cuGraphLaunch, 10000, (CuGraphExec executable, CuStream stream))                              \
  X(cuGraphExecDestroy, 10000, (CuGraphExec executable))

// Used where the driver has them.
#define ATLAS_CUDA_OPTIONAL_ENTRY_POINTS(X)                                                       \
  X(cuFuncLoad, 12040, (CuFunction function))                                                     \
  X(cuGraphAddDependencies, 12030,                                                                \
    (CuGraph graph, const CuGraphNode* from, const CuGraphNode* to, const CuGraphEdgeData* edges, \
     size_t count))                                                                               \
  X(cuFuncGetParamInfo, 12040, (CuFunction function, size_t index, size_t * offset, size_t * bytes))

/// The entry points of a driver; an optional one that it lacks is null.
struct DriverApi {
#define ATLAS_CUDA_MEMBER(name, version, arguments) CuResult(*name) arguments = nullptr;
  ATLAS_CUDA_ENTRY_POINTS(ATLAS_CUDA_MEMBER)
  ATLAS_CUDA_OPTIONAL_ENTRY_POINTS(ATLAS_CUDA_MEMBER)
#undef ATLAS_CUDA_MEMBER
};

/// Opens libcuda.so.1, which stays open, and finds its entry points. Throws sdk::Failure
/// (ATLAS_FAILED_PRECONDITION): no driver, or one that is too old, with what it lacks.
DriverApi open_driver();

/// "13.0" of 13000.
std::string version_text(int version);

// R580 is the first that runs code of CUDA 13, as our packs are.
inline constexpr char kDriverAdvice[] =
    "platforms h200 and gb10 need NVIDIA's driver, R580 or later (nvidia-smi shows which one runs)";

}  // namespace atlas::platform_cuda
