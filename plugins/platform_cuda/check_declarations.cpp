// Compares driver_api.h with the toolkit's own header. Compiled where a CUDA toolkit is; never
// linked.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <type_traits>

#include "plugins/platform_cuda/driver_api.h"

namespace atlas::platform_cuda {
namespace {

// Handles are pointers to types of our own, so functions are compared by the sizes of what they
// take.
template <typename Ours, typename Theirs>
constexpr bool alike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;

template <typename Ours, typename Theirs>
constexpr bool same_form = false;
template <typename Ours, typename... OurArguments, typename Theirs, typename... TheirArguments>
requires(sizeof...(OurArguments) ==
         sizeof...(TheirArguments)) constexpr bool same_form<Ours (*)(OurArguments...),
                                                             Theirs (*)(TheirArguments...)> =
    alike<Ours, Theirs> && (alike<OurArguments, TheirArguments> && ...);

#define ATLAS_CUDA_COMPARE(name, version, arguments) \
  static_assert(same_form<decltype(DriverApi::name), PFN_##name##_v##version>, #name);
ATLAS_CUDA_ENTRY_POINTS(ATLAS_CUDA_COMPARE)
ATLAS_CUDA_OPTIONAL_ENTRY_POINTS(ATLAS_CUDA_COMPARE)

static_assert(sizeof(CuKernelNodeParams) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2));
static_assert(offsetof(CuKernelNodeParams, grid_x) ==
              offsetof(CUDA_KERNEL_NODE_PARAMS_v2, gridDimX));
static_assert(offsetof(CuKernelNodeParams, block_z) ==
              offsetof(CUDA_KERNEL_NODE_PARAMS_v2, blockDimZ));
static_assert(offsetof(CuKernelNodeParams, shared_bytes) ==
              offsetof(CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes));
static_assert(offsetof(CuKernelNodeParams, kernel_params) ==
              offsetof(CUDA_KERNEL_NODE_PARAMS_v2, kernelParams));
static_assert(offsetof(CuKernelNodeParams, kern) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, kern));
static_assert(offsetof(CuKernelNodeParams, ctx) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, ctx));

static_assert(sizeof(CuGraphEdgeData) == sizeof(CUgraphEdgeData));
static_assert(offsetof(CuGraphEdgeData, type) == offsetof(CUgraphEdgeData, type));
static_assert(kCuPortProgrammatic == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
static_assert(kCuDependencyProgrammatic == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);

#define ATLAS_CUDA_SAME(ours, theirs) static_assert(int{ours} == static_cast<int>(theirs))
ATLAS_CUDA_SAME(kCuInvalidValue, CUDA_ERROR_INVALID_VALUE);
ATLAS_CUDA_SAME(kCuOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
ATLAS_CUDA_SAME(kCuNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
ATLAS_CUDA_SAME(kCuDeinitialized, CUDA_ERROR_DEINITIALIZED);
ATLAS_CUDA_SAME(kCuDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
ATLAS_CUDA_SAME(kCuNoDevice, CUDA_ERROR_NO_DEVICE);
ATLAS_CUDA_SAME(kCuInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
ATLAS_CUDA_SAME(kCuInvalidImage, CUDA_ERROR_INVALID_IMAGE);
ATLAS_CUDA_SAME(kCuInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
ATLAS_CUDA_SAME(kCuNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
ATLAS_CUDA_SAME(kCuEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
ATLAS_CUDA_SAME(kCuInvalidPtx, CUDA_ERROR_INVALID_PTX);
ATLAS_CUDA_SAME(kCuNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
ATLAS_CUDA_SAME(kCuJitCompilerNotFound, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
ATLAS_CUDA_SAME(kCuUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
ATLAS_CUDA_SAME(kCuJitCompilationDisabled, CUDA_ERROR_JIT_COMPILATION_DISABLED);
ATLAS_CUDA_SAME(kCuContained, CUDA_ERROR_CONTAINED);
ATLAS_CUDA_SAME(kCuInvalidSource, CUDA_ERROR_INVALID_SOURCE);
ATLAS_CUDA_SAME(kCuNotFound, CUDA_ERROR_NOT_FOUND);
ATLAS_CUDA_SAME(kCuNotReady, CUDA_ERROR_NOT_READY);
ATLAS_CUDA_SAME(kCuIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
ATLAS_CUDA_SAME(kCuLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
ATLAS_CUDA_SAME(kCuContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
ATLAS_CUDA_SAME(kCuAssert, CUDA_ERROR_ASSERT);
ATLAS_CUDA_SAME(kCuHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
ATLAS_CUDA_SAME(kCuIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
ATLAS_CUDA_SAME(kCuMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
ATLAS_CUDA_SAME(kCuInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
ATLAS_CUDA_SAME(kCuInvalidPc, CUDA_ERROR_INVALID_PC);
ATLAS_CUDA_SAME(kCuLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
ATLAS_CUDA_SAME(kCuTensorMemoryLeak, CUDA_ERROR_TENSOR_MEMORY_LEAK);
ATLAS_CUDA_SAME(kCuNotSupported, CUDA_ERROR_NOT_SUPPORTED);
ATLAS_CUDA_SAME(kCuMpsClientTerminated, CUDA_ERROR_MPS_CLIENT_TERMINATED);
ATLAS_CUDA_SAME(kCuExternalDevice, CUDA_ERROR_EXTERNAL_DEVICE);
ATLAS_CUDA_SAME(kCuUnknown, CUDA_ERROR_UNKNOWN);

ATLAS_CUDA_SAME(kCuMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
ATLAS_CUDA_SAME(kCuMaxBlockDimX, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
ATLAS_CUDA_SAME(kCuMaxBlockDimZ, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
ATLAS_CUDA_SAME(kCuMaxGridDimX, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
ATLAS_CUDA_SAME(kCuMaxGridDimZ, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
ATLAS_CUDA_SAME(kCuMaxSharedMemoryPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
ATLAS_CUDA_SAME(kCuMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
ATLAS_CUDA_SAME(kCuIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
ATLAS_CUDA_SAME(kCuComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
ATLAS_CUDA_SAME(kCuComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
ATLAS_CUDA_SAME(kCuMaxSharedMemoryPerBlockOptin,
                CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);

ATLAS_CUDA_SAME(kCuFuncMaxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
ATLAS_CUDA_SAME(kCuFuncSharedSizeBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
ATLAS_CUDA_SAME(kCuFuncMaxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
ATLAS_CUDA_SAME(kCuFuncPreferredSharedCarveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);

static_assert(kCuStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kCuEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCuMemHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kCuMemHostAllocDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(same_form<CuGetProcAddress, PFN_cuGetProcAddress_v12000>);

}  // namespace
}  // namespace atlas::platform_cuda
