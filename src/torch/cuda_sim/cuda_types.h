/*
 * cuda_types.h - the types and constants of the CUDA 13 runtime and driver API that libtorch passes to the stand-ins.
 *
 * Declared here from their documented layout, so that no NVIDIA header is needed to build. Layouts are pinned by the
 * static assertions below; scripts/cuda_sim_matrix_abi.sh compares them with NVIDIA's own headers where they are
 * installed.
 */
#ifndef INSPECT_CUDA_SIM_CUDA_TYPES_H
#define INSPECT_CUDA_SIM_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* Error codes. cudaError_t and CUresult use the same numbers for all of these. */
enum cuda_error {
    SIM_SUCCESS = 0,
    SIM_INVALID_VALUE = 1,
    SIM_OUT_OF_MEMORY = 2,
    SIM_INVALID_CONFIGURATION = 9,   /* runtime only; the driver says SIM_INVALID_VALUE */
    SIM_INVALID_MEMCPY_DIRECTION = 21,
    SIM_INVALID_DEVICE_FUNCTION = 98,
    SIM_INVALID_DEVICE = 101,
    SIM_INVALID_IMAGE = 200,
    SIM_NO_KERNEL_IMAGE = 209,
    SIM_UNSUPPORTED_LIMIT = 215,
    SIM_PEER_ACCESS_UNSUPPORTED = 217,
    SIM_OPERATING_SYSTEM = 304,
    SIM_INVALID_RESOURCE_HANDLE = 400,
    SIM_ILLEGAL_STATE = 401,
    SIM_NOT_FOUND = 500,
    SIM_NOT_READY = 600,
    SIM_HOST_MEMORY_ALREADY_REGISTERED = 712,
    SIM_HOST_MEMORY_NOT_REGISTERED = 713,
    SIM_NOT_SUPPORTED = 801,
    SIM_CAPTURE_UNSUPPORTED = 900,
    SIM_CAPTURE_INVALIDATED = 901,
    SIM_CAPTURE_MERGE = 902,
    SIM_CAPTURE_UNMATCHED = 903,
    SIM_CAPTURE_UNJOINED = 904,
    SIM_CAPTURE_ISOLATION = 905,
    SIM_CAPTURED_EVENT = 907,
};

typedef int cuda_result;    /* cudaError_t, CUresult */
typedef uint64_t device_pointer; /* CUdeviceptr */

#define SIM_CUDA_VERSION 13000

/* Opaque handles. */
typedef struct sim_stream *sim_stream_t;
typedef struct sim_event *sim_event_t;
typedef struct sim_graph *sim_graph_t;
typedef struct sim_node *sim_node_t;

struct dims {
    unsigned x, y, z;
};

/* struct cudaDeviceProp of CUDA 13. */
struct device_prop {
    char name[256];
    char uuid[16];
    char luid[8];
    unsigned luid_device_node_mask;
    size_t total_global_mem;
    size_t shared_mem_per_block;
    int regs_per_block;
    int warp_size;
    size_t mem_pitch;
    int max_threads_per_block;
    int max_threads_dim[3];
    int max_grid_size[3];
    size_t total_const_mem;
    int major;
    int minor;
    size_t texture_alignment;
    size_t texture_pitch_alignment;
    int multi_processor_count;
    int integrated;
    int can_map_host_memory;
    int max_texture_1d, max_texture_1d_mipmap, max_texture_2d[2], max_texture_2d_mipmap[2], max_texture_2d_linear[3];
    int max_texture_2d_gather[2], max_texture_3d[3], max_texture_3d_alt[3], max_texture_cubemap;
    int max_texture_1d_layered[2], max_texture_2d_layered[3], max_texture_cubemap_layered[2];
    int max_surface_1d, max_surface_2d[2], max_surface_3d[3], max_surface_1d_layered[2], max_surface_2d_layered[3];
    int max_surface_cubemap, max_surface_cubemap_layered[2];
    size_t surface_alignment;
    int concurrent_kernels;
    int ecc_enabled;
    int pci_bus_id;
    int pci_device_id;
    int pci_domain_id;
    int tcc_driver;
    int async_engine_count;
    int unified_addressing;
    int memory_bus_width;
    int l2_cache_size;
    int persisting_l2_cache_max_size;
    int max_threads_per_multi_processor;
    int stream_priorities_supported;
    int global_l1_cache_supported;
    int local_l1_cache_supported;
    size_t shared_mem_per_multiprocessor;
    int regs_per_multiprocessor;
    int managed_memory;
    int is_multi_gpu_board;
    int multi_gpu_board_group_id;
    int host_native_atomic_supported;
    int pageable_memory_access;
    int concurrent_managed_access;
    int compute_preemption_supported;
    int can_use_host_pointer_for_registered_mem;
    int cooperative_launch;
    size_t shared_mem_per_block_optin;
    int pageable_memory_access_uses_host_page_tables;
    int direct_managed_mem_access_from_host;
    int max_blocks_per_multi_processor;
    int access_policy_max_window_size;
    size_t reserved_shared_mem_per_block;
    int host_register_supported;
    int sparse_cuda_array_supported;
    int host_register_read_only_supported;
    int timeline_semaphore_interop_supported;
    int memory_pools_supported;
    int gpu_direct_rdma_supported;
    unsigned gpu_direct_rdma_flush_writes_options;
    int gpu_direct_rdma_writes_ordering;
    unsigned memory_pool_supported_handle_types;
    int deferred_mapping_cuda_array_supported;
    int ipc_event_supported;
    int cluster_launch;
    int unified_function_pointers;
    int device_numa_config;
    int device_numa_id;
    int mps_enabled;
    int host_numa_id;
    unsigned gpu_pci_device_id;
    unsigned gpu_pci_subsystem_id;
    int host_numa_multinode_ipc_supported;
    int reserved[56];
};

/* struct cudaFuncAttributes. */
struct func_attributes {
    size_t shared_size_bytes;
    size_t const_size_bytes;
    size_t local_size_bytes;
    int max_threads_per_block;
    int num_regs;
    int ptx_version;
    int binary_version;
    int cache_mode_ca;
    int max_dynamic_shared_size_bytes;
    int preferred_shmem_carveout;
    int cluster_dim_must_be_set;
    int required_cluster_width, required_cluster_height, required_cluster_depth;
    int cluster_scheduling_policy_preference;
    int non_portable_cluster_size_allowed;
    int reserved[16];
};

/* enum cudaMemoryType and struct cudaPointerAttributes. */
enum { MEMORY_UNREGISTERED = 0, MEMORY_HOST = 1, MEMORY_DEVICE = 2 };
struct pointer_attributes {
    int type;
    int device;
    void *device_pointer;
    void *host_pointer;
    long reserved[8];
};

/* struct cudaLaunchConfig_st, and CUlaunchConfig. */
struct launch_config {
    struct dims grid, block;
    size_t dynamic_shared_bytes;
    sim_stream_t stream;
    void *attributes;
    unsigned attribute_count;
};
struct driver_launch_config {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    sim_stream_t stream;
    void *attributes;
    unsigned attribute_count;
};

/* CUmemLocation, CUmemAllocationProp, CUmemAccessDesc. */
struct mem_location {
    int type;
    int id;
};
struct mem_allocation_prop {
    int type;
    int requested_handle_types;
    struct mem_location location;
    void *win32_handle_metadata;
    struct {
        unsigned char compression_type;
        unsigned char gpu_direct_rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
struct mem_access_desc {
    struct mem_location location;
    int flags;
};

/* cudaIpcMemHandle_t and cudaIpcEventHandle_t. */
struct ipc_handle {
    char bytes[64];
};

/* cudaGraphEdgeData. */
struct graph_edge_data {
    unsigned char from_port, to_port, type, reserved[5];
};

enum { CAPTURE_STATUS_NONE = 0, CAPTURE_STATUS_ACTIVE = 1, CAPTURE_STATUS_INVALIDATED = 2 };

/* cudaDeviceAttr / CUdevice_attribute: both enumerations use the same numbers. */
enum device_attribute {
    ATTR_MAX_THREADS_PER_BLOCK = 1,
    ATTR_MAX_BLOCK_DIM_X = 2,
    ATTR_MAX_BLOCK_DIM_Y = 3,
    ATTR_MAX_BLOCK_DIM_Z = 4,
    ATTR_MAX_GRID_DIM_X = 5,
    ATTR_MAX_GRID_DIM_Y = 6,
    ATTR_MAX_GRID_DIM_Z = 7,
    ATTR_SHARED_PER_BLOCK = 8,
    ATTR_TOTAL_CONST_MEM = 9,
    ATTR_WARP_SIZE = 10,
    ATTR_MAX_PITCH = 11,
    ATTR_REGS_PER_BLOCK = 12,
    ATTR_CLOCK_RATE = 13,
    ATTR_TEXTURE_ALIGNMENT = 14,
    ATTR_GPU_OVERLAP = 15,
    ATTR_MULTIPROCESSOR_COUNT = 16,
    ATTR_CAN_MAP_HOST_MEMORY = 19,
    ATTR_SURFACE_ALIGNMENT = 30,
    ATTR_CONCURRENT_KERNELS = 31,
    ATTR_PCI_BUS_ID = 33,
    ATTR_MEMORY_CLOCK_RATE = 36,
    ATTR_MEMORY_BUS_WIDTH = 37,
    ATTR_L2_CACHE_SIZE = 38,
    ATTR_THREADS_PER_MULTIPROCESSOR = 39,
    ATTR_ASYNC_ENGINE_COUNT = 40,
    ATTR_UNIFIED_ADDRESSING = 41,
    ATTR_TEXTURE_PITCH_ALIGNMENT = 51,
    ATTR_COMPUTE_CAPABILITY_MAJOR = 75,
    ATTR_COMPUTE_CAPABILITY_MINOR = 76,
    ATTR_STREAM_PRIORITIES = 78,
    ATTR_GLOBAL_L1_CACHE = 79,
    ATTR_LOCAL_L1_CACHE = 80,
    ATTR_SHARED_PER_MULTIPROCESSOR = 81,
    ATTR_REGS_PER_MULTIPROCESSOR = 82,
    ATTR_MANAGED_MEMORY = 83,
    ATTR_COMPUTE_PREEMPTION = 90,
    ATTR_COOPERATIVE_LAUNCH = 95,
    ATTR_SHARED_PER_BLOCK_OPTIN = 97,
    ATTR_HOST_REGISTER = 99,
    ATTR_VIRTUAL_MEMORY = 102,
    ATTR_POSIX_FD_HANDLES = 103,
    ATTR_BLOCKS_PER_MULTIPROCESSOR = 106,
    ATTR_RESERVED_SHARED_PER_BLOCK = 111,
    ATTR_MEMORY_POOLS = 115,
    ATTR_CLUSTER_LAUNCH = 120,
    ATTR_HOST_NUMA_ID = 134,
};

_Static_assert(sizeof(struct device_prop) == 1008, "cudaDeviceProp");
_Static_assert(offsetof(struct device_prop, total_global_mem) == 288, "cudaDeviceProp.totalGlobalMem");
_Static_assert(sizeof(struct func_attributes) == 144, "cudaFuncAttributes");
_Static_assert(sizeof(struct pointer_attributes) == 88, "cudaPointerAttributes");
_Static_assert(sizeof(struct launch_config) == 56, "cudaLaunchConfig_t");
_Static_assert(sizeof(struct driver_launch_config) == 56, "CUlaunchConfig");
_Static_assert(sizeof(struct mem_allocation_prop) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(struct mem_access_desc) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(struct graph_edge_data) == 8, "cudaGraphEdgeData");

#endif
