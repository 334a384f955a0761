#!/bin/sh
# cuda_sim_matrix_abi.sh CUDA_INCLUDE - compares the stand-ins' own type declarations (src/torch/cuda_sim/cuda_types.h)
# with NVIDIA's headers: sizes, and the offset of every field that the stand-ins write. Fails on the first difference.
# CUDA_INCLUDE is the include folder of the nvidia-cuda-runtime package, 13.0.
set -eu
include=${1:?usage: cuda_sim_matrix_abi.sh CUDA_INCLUDE}
source=$(cd "$(dirname "$0")/../src/torch/cuda_sim" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/crt"
# The runtime package has no crt/ headers (they come with nvcc); these two are all that a host compiler needs of them.
: > "$work/crt/host_config.h"
cat > "$work/crt/host_defines.h" <<'SHIM'
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __inline_hint__
#define CUDARTAPI
#define CUDARTAPI_CDECL
SHIM
cat > "$work/abi.c" <<'SOURCE'
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stddef.h>
#include "cuda_types.h"
#define SAME_SIZE(theirs, ours) _Static_assert(sizeof(theirs) == sizeof(ours), #ours)
#define SAME(theirs, their_field, ours, our_field)                                         \
    _Static_assert(offsetof(theirs, their_field) == offsetof(ours, our_field), #our_field)
SAME_SIZE(struct cudaDeviceProp, struct device_prop);
#define PROP(theirs, ours) SAME(struct cudaDeviceProp, theirs, struct device_prop, ours)
PROP(uuid, uuid); PROP(totalGlobalMem, total_global_mem); PROP(sharedMemPerBlock, shared_mem_per_block);
PROP(regsPerBlock, regs_per_block); PROP(warpSize, warp_size); PROP(memPitch, mem_pitch);
PROP(maxThreadsPerBlock, max_threads_per_block); PROP(maxThreadsDim, max_threads_dim);
PROP(maxGridSize, max_grid_size); PROP(totalConstMem, total_const_mem); PROP(major, major); PROP(minor, minor);
PROP(textureAlignment, texture_alignment); PROP(texturePitchAlignment, texture_pitch_alignment);
PROP(multiProcessorCount, multi_processor_count); PROP(canMapHostMemory, can_map_host_memory);
PROP(surfaceAlignment, surface_alignment); PROP(concurrentKernels, concurrent_kernels); PROP(pciBusID, pci_bus_id);
PROP(asyncEngineCount, async_engine_count); PROP(unifiedAddressing, unified_addressing);
PROP(memoryBusWidth, memory_bus_width); PROP(l2CacheSize, l2_cache_size);
PROP(maxThreadsPerMultiProcessor, max_threads_per_multi_processor);
PROP(streamPrioritiesSupported, stream_priorities_supported);
PROP(globalL1CacheSupported, global_l1_cache_supported); PROP(localL1CacheSupported, local_l1_cache_supported);
PROP(sharedMemPerMultiprocessor, shared_mem_per_multiprocessor);
PROP(regsPerMultiprocessor, regs_per_multiprocessor); PROP(managedMemory, managed_memory);
PROP(computePreemptionSupported, compute_preemption_supported); PROP(cooperativeLaunch, cooperative_launch);
PROP(sharedMemPerBlockOptin, shared_mem_per_block_optin);
PROP(maxBlocksPerMultiProcessor, max_blocks_per_multi_processor);
PROP(reservedSharedMemPerBlock, reserved_shared_mem_per_block);
PROP(hostRegisterSupported, host_register_supported); PROP(memoryPoolsSupported, memory_pools_supported);
PROP(clusterLaunch, cluster_launch); PROP(deviceNumaId, device_numa_id); PROP(hostNumaId, host_numa_id);
PROP(reserved, reserved);
SAME_SIZE(struct cudaFuncAttributes, struct func_attributes);
#define FUNC(theirs, ours) SAME(struct cudaFuncAttributes, theirs, struct func_attributes, ours)
FUNC(maxThreadsPerBlock, max_threads_per_block); FUNC(numRegs, num_regs); FUNC(ptxVersion, ptx_version);
FUNC(binaryVersion, binary_version); FUNC(maxDynamicSharedSizeBytes, max_dynamic_shared_size_bytes);
FUNC(preferredShmemCarveout, preferred_shmem_carveout);
FUNC(nonPortableClusterSizeAllowed, non_portable_cluster_size_allowed);
SAME_SIZE(struct cudaPointerAttributes, struct pointer_attributes);
SAME(struct cudaPointerAttributes, device, struct pointer_attributes, device);
SAME(struct cudaPointerAttributes, devicePointer, struct pointer_attributes, device_pointer);
SAME(struct cudaPointerAttributes, hostPointer, struct pointer_attributes, host_pointer);
SAME_SIZE(cudaLaunchConfig_t, struct launch_config);
SAME(cudaLaunchConfig_t, blockDim, struct launch_config, block);
SAME(cudaLaunchConfig_t, dynamicSmemBytes, struct launch_config, dynamic_shared_bytes);
SAME(cudaLaunchConfig_t, stream, struct launch_config, stream);
SAME_SIZE(CUlaunchConfig, struct driver_launch_config);
SAME(CUlaunchConfig, sharedMemBytes, struct driver_launch_config, shared_bytes);
SAME(CUlaunchConfig, hStream, struct driver_launch_config, stream);
SAME_SIZE(CUmemAllocationProp, struct mem_allocation_prop);
SAME(CUmemAllocationProp, location, struct mem_allocation_prop, location);
SAME_SIZE(CUmemAccessDesc, struct mem_access_desc);
SAME_SIZE(cudaGraphEdgeData, struct graph_edge_data);
#define CODE(theirs, ours) _Static_assert((int)(theirs) == (int)(ours), #ours)
CODE(cudaErrorInvalidValue, SIM_INVALID_VALUE); CODE(cudaErrorMemoryAllocation, SIM_OUT_OF_MEMORY);
CODE(cudaErrorInvalidConfiguration, SIM_INVALID_CONFIGURATION); CODE(cudaErrorInvalidDevice, SIM_INVALID_DEVICE);
CODE(cudaErrorInvalidDeviceFunction, SIM_INVALID_DEVICE_FUNCTION);
CODE(cudaErrorNoKernelImageForDevice, SIM_NO_KERNEL_IMAGE);
CODE(cudaErrorInvalidResourceHandle, SIM_INVALID_RESOURCE_HANDLE); CODE(cudaErrorIllegalState, SIM_ILLEGAL_STATE);
CODE(cudaErrorSymbolNotFound, SIM_NOT_FOUND); CODE(cudaErrorNotReady, SIM_NOT_READY);
CODE(cudaErrorNotSupported, SIM_NOT_SUPPORTED); CODE(cudaErrorCapturedEvent, SIM_CAPTURED_EVENT);
CODE(cudaErrorHostMemoryAlreadyRegistered, SIM_HOST_MEMORY_ALREADY_REGISTERED);
CODE(cudaErrorHostMemoryNotRegistered, SIM_HOST_MEMORY_NOT_REGISTERED);
CODE(cudaErrorStreamCaptureUnsupported, SIM_CAPTURE_UNSUPPORTED);
CODE(cudaErrorStreamCaptureInvalidated, SIM_CAPTURE_INVALIDATED);
CODE(cudaErrorStreamCaptureMerge, SIM_CAPTURE_MERGE); CODE(cudaErrorStreamCaptureUnmatched, SIM_CAPTURE_UNMATCHED);
CODE(cudaErrorStreamCaptureUnjoined, SIM_CAPTURE_UNJOINED);
CODE(CUDA_ERROR_OUT_OF_MEMORY, SIM_OUT_OF_MEMORY); CODE(CUDA_ERROR_INVALID_HANDLE, SIM_INVALID_RESOURCE_HANDLE);
CODE(CUDA_ERROR_NOT_FOUND, SIM_NOT_FOUND); CODE(CUDA_ERROR_NO_BINARY_FOR_GPU, SIM_NO_KERNEL_IMAGE);
CODE(cudaMemoryTypeHost, MEMORY_HOST); CODE(cudaMemoryTypeDevice, MEMORY_DEVICE);
CODE(cudaDevAttrL2CacheSize, ATTR_L2_CACHE_SIZE); CODE(cudaDevAttrMaxSharedMemoryPerBlockOptin, ATTR_SHARED_PER_BLOCK_OPTIN);
CODE(cudaDevAttrMaxBlocksPerMultiprocessor, ATTR_BLOCKS_PER_MULTIPROCESSOR);
CODE(cudaDevAttrClusterLaunch, ATTR_CLUSTER_LAUNCH); CODE(cudaDevAttrMemoryPoolsSupported, ATTR_MEMORY_POOLS);
CODE(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ATTR_VIRTUAL_MEMORY);
CODE(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ATTR_POSIX_FD_HANDLES);
CODE(CUDART_VERSION, SIM_CUDA_VERSION);
int main(void) { return 0; }
SOURCE
"${CC:-cc}" -std=gnu11 -I"$work" -I"$source" -I"$include" -c "$work/abi.c" -o "$work/abi.o"
echo "cuda_types.h agrees with $include"
