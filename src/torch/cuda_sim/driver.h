/* driver.h - the driver API of the libcuda.so.1 stand-in, for its own files and for the runtime on top of it. */
#ifndef INSPECT_CUDA_SIM_DRIVER_H
#define INSPECT_CUDA_SIM_DRIVER_H

#include "cuda_types.h"
#include "sim.h"

struct sim_module;
struct sim_kernel;

/* device.c */
SIM_EXPORT cuda_result cuInit(unsigned flags);
SIM_EXPORT cuda_result cuDriverGetVersion(int *version);
SIM_EXPORT cuda_result cuDeviceGetCount(int *count);
SIM_EXPORT cuda_result cuDeviceGet(int *out, int ordinal);
SIM_EXPORT cuda_result cuDeviceGetName(char *name, int length, int ordinal);
SIM_EXPORT cuda_result cuDeviceGetUuid(char *uuid, int ordinal);
SIM_EXPORT cuda_result cuDeviceGetUuid_v2(char *uuid, int ordinal);
SIM_EXPORT cuda_result cuDeviceTotalMem_v2(size_t *bytes, int ordinal);
SIM_EXPORT cuda_result cuDeviceGetAttribute(int *value, int attribute, int ordinal);
SIM_EXPORT cuda_result cuDevicePrimaryCtxGetState(int ordinal, unsigned *flags, int *active);
SIM_EXPORT cuda_result cuDevicePrimaryCtxRetain(void **context, int ordinal);
SIM_EXPORT cuda_result cuDevicePrimaryCtxRelease_v2(int ordinal);
SIM_EXPORT cuda_result cuCtxGetCurrent(void **context);
SIM_EXPORT cuda_result cuCtxSetCurrent(void *context);
SIM_EXPORT cuda_result cuCtxPushCurrent_v2(void *context);
SIM_EXPORT cuda_result cuCtxPopCurrent_v2(void **context);
SIM_EXPORT cuda_result cuCtxGetDevice(int *out);
SIM_EXPORT cuda_result cuCtxGetLimit(size_t *value, unsigned limit);
SIM_EXPORT cuda_result cuCtxSetLimit(unsigned limit, size_t value);

/* memory.c */
SIM_EXPORT cuda_result cuMemAlloc_v2(device_pointer *out, size_t bytes);
SIM_EXPORT cuda_result cuMemFree_v2(device_pointer pointer);
SIM_EXPORT cuda_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
SIM_EXPORT cuda_result cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
SIM_EXPORT cuda_result cuMemFreeHost(void *pointer);
SIM_EXPORT cuda_result cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags);
SIM_EXPORT cuda_result cuMemHostUnregister(void *pointer);
SIM_EXPORT cuda_result cuPointerGetAttribute(void *data, int attribute, device_pointer pointer);
SIM_EXPORT cuda_result cuMemGetAddressRange_v2(device_pointer *base, size_t *bytes, device_pointer pointer);
SIM_EXPORT cuda_result cuMemcpyHtoD_v2(device_pointer destination, const void *source, size_t bytes);
SIM_EXPORT cuda_result cuMemcpyDtoH_v2(void *destination, device_pointer source, size_t bytes);
SIM_EXPORT cuda_result cuMemsetD32Async(device_pointer destination, unsigned value, size_t count,
                                        sim_stream_t stream);
SIM_EXPORT cuda_result cuMemsetD8Async(device_pointer destination, unsigned char value, size_t count,
                                       sim_stream_t stream);

/* virtual.c */
SIM_EXPORT cuda_result cuMemGetAllocationGranularity(size_t *bytes, const struct mem_allocation_prop *prop,
                                                     int option);
SIM_EXPORT cuda_result cuMemCreate(uint64_t *handle, size_t bytes, const struct mem_allocation_prop *prop,
                                   unsigned long long flags);
SIM_EXPORT cuda_result cuMemRelease(uint64_t handle);
SIM_EXPORT cuda_result cuMemAddressReserve(device_pointer *out, size_t bytes, size_t alignment, device_pointer wanted,
                                           unsigned long long flags);
SIM_EXPORT cuda_result cuMemAddressFree(device_pointer address, size_t bytes);
SIM_EXPORT cuda_result cuMemMap(device_pointer address, size_t bytes, size_t offset, uint64_t handle,
                                unsigned long long flags);
SIM_EXPORT cuda_result cuMemUnmap(device_pointer address, size_t bytes);
SIM_EXPORT cuda_result cuMemSetAccess(device_pointer address, size_t bytes, const struct mem_access_desc *access,
                                      size_t count);
SIM_EXPORT cuda_result cuMemGetAllocationPropertiesFromHandle(struct mem_allocation_prop *prop, uint64_t handle);
SIM_EXPORT cuda_result cuMemRetainAllocationHandle(uint64_t *handle, void *pointer);
SIM_EXPORT cuda_result cuMemExportToShareableHandle(void *out, uint64_t handle, int type, unsigned long long flags);
SIM_EXPORT cuda_result cuMemImportFromShareableHandle(uint64_t *handle, void *shared, int type);

/* stream.c */
SIM_EXPORT cuda_result cuStreamCreateWithPriority(sim_stream_t *out, unsigned flags, int priority);
SIM_EXPORT cuda_result cuStreamCreate(sim_stream_t *out, unsigned flags);
SIM_EXPORT cuda_result cuStreamDestroy_v2(sim_stream_t stream);
SIM_EXPORT cuda_result cuStreamGetPriority(sim_stream_t stream, int *priority);
SIM_EXPORT cuda_result cuStreamGetFlags(sim_stream_t stream, unsigned *flags);
SIM_EXPORT cuda_result cuStreamSynchronize(sim_stream_t stream);
SIM_EXPORT cuda_result cuStreamQuery(sim_stream_t stream);
SIM_EXPORT cuda_result cuCtxSynchronize(void);
SIM_EXPORT cuda_result cuLaunchHostFunc(sim_stream_t stream, void (*function)(void *), void *data);
SIM_EXPORT cuda_result cuStreamAddCallback(sim_stream_t stream, void (*callback)(sim_stream_t, cuda_result, void *),
                                           void *data, unsigned flags);
SIM_EXPORT cuda_result cuStreamWriteValue32_v2(sim_stream_t stream, device_pointer address, uint32_t value,
                                               unsigned flags);
SIM_EXPORT cuda_result cuEventCreate(sim_event_t *out, unsigned flags);
SIM_EXPORT cuda_result cuEventDestroy_v2(sim_event_t event);
SIM_EXPORT cuda_result cuEventRecordWithFlags(sim_event_t event, sim_stream_t stream, unsigned flags);
SIM_EXPORT cuda_result cuEventRecord(sim_event_t event, sim_stream_t stream);
SIM_EXPORT cuda_result cuEventQuery(sim_event_t event);
SIM_EXPORT cuda_result cuEventSynchronize(sim_event_t event);
SIM_EXPORT cuda_result cuEventElapsedTime_v2(float *milliseconds, sim_event_t start, sim_event_t end);
SIM_EXPORT cuda_result cuStreamWaitEvent(sim_stream_t stream, sim_event_t event, unsigned flags);

/* graph.c */
SIM_EXPORT cuda_result cuStreamBeginCapture_v2(sim_stream_t handle, int mode);
SIM_EXPORT cuda_result cuStreamEndCapture(sim_stream_t handle, sim_graph_t *out);
SIM_EXPORT cuda_result cuStreamIsCapturing(sim_stream_t handle, int *status);
SIM_EXPORT cuda_result cuStreamGetCaptureInfo_v3(sim_stream_t handle, int *status, unsigned long long *id,
                                                 sim_graph_t *graph, const sim_node_t **dependencies,
                                                 const struct graph_edge_data **edges, size_t *dependency_count);
SIM_EXPORT cuda_result cuThreadExchangeStreamCaptureMode(int *mode);
SIM_EXPORT cuda_result cuGraphGetNodes(sim_graph_t graph, sim_node_t *nodes, size_t *count);
SIM_EXPORT cuda_result cuGraphNodeGetDependencies_v2(sim_node_t node, sim_node_t *out, struct graph_edge_data *edges,
                                                     size_t *count);
SIM_EXPORT cuda_result cuGraphCreate(sim_graph_t *out, unsigned flags);
SIM_EXPORT cuda_result cuGraphInstantiateWithFlags(void **out, sim_graph_t graph, unsigned long long flags);
SIM_EXPORT cuda_result cuGraphLaunch(void *exec, sim_stream_t stream);
SIM_EXPORT cuda_result cuGraphExecDestroy(void *exec);
SIM_EXPORT cuda_result cuGraphDestroy(sim_graph_t graph);
SIM_EXPORT cuda_result cuGraphDebugDotPrint(sim_graph_t graph, const char *path, unsigned flags);

/* module.c */
SIM_EXPORT cuda_result cuModuleLoadData(struct sim_module **out, const void *image);
SIM_EXPORT cuda_result cuModuleLoadDataEx(struct sim_module **out, const void *image, unsigned count, int *options,
                                          void **values);
SIM_EXPORT cuda_result cuModuleLoad(struct sim_module **out, const char *path);
SIM_EXPORT cuda_result cuModuleUnload(struct sim_module *module);
SIM_EXPORT cuda_result cuModuleGetFunction(struct sim_kernel **out, struct sim_module *module, const char *name);
SIM_EXPORT cuda_result cuModuleGetGlobal_v2(device_pointer *address, size_t *bytes, struct sim_module *module,
                                            const char *name);
SIM_EXPORT cuda_result cuFuncGetAttribute(int *value, int attribute, struct sim_kernel *kernel);
SIM_EXPORT cuda_result cuFuncSetAttribute(struct sim_kernel *kernel, int attribute, int value);
SIM_EXPORT cuda_result cuFuncSetCacheConfig(struct sim_kernel *kernel, int config);
SIM_EXPORT cuda_result inspect_cuda_sim_launch(struct dims grid, struct dims block, size_t shared_bytes,
                                               sim_stream_t stream);
SIM_EXPORT cuda_result cuLaunchKernel(struct sim_kernel *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                      sim_stream_t stream, void **arguments, void **extra);
SIM_EXPORT cuda_result cuLaunchCooperativeKernel(struct sim_kernel *kernel, unsigned grid_x, unsigned grid_y,
                                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                                 unsigned block_z, unsigned shared_bytes, sim_stream_t stream,
                                                 void **arguments);
SIM_EXPORT cuda_result cuLaunchKernelEx(const struct driver_launch_config *config, struct sim_kernel *kernel,
                                        void **arguments, void **extra);
SIM_EXPORT cuda_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, struct sim_kernel *kernel,
                                                                   int block_size, size_t shared_bytes);
SIM_EXPORT cuda_result cuLinkCreate_v2(unsigned count, int *options, void **values, void **state);
SIM_EXPORT cuda_result cuLinkAddData_v2(void *state, int type, void *data, size_t bytes, const char *name,
                                        unsigned count, int *options, void **values);
SIM_EXPORT cuda_result cuLinkComplete(void *state, void **image, size_t *bytes);
SIM_EXPORT cuda_result cuLinkDestroy(void *state);
SIM_EXPORT cuda_result cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address,
                                              const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                                              const uint32_t *element_strides, int interleave, int swizzle,
                                              int promotion, int fill);
SIM_EXPORT cuda_result cuOccupancyMaxActiveClusters(int *clusters, struct sim_kernel *kernel,
                                                    const struct driver_launch_config *config);

/* lookup.c */
SIM_EXPORT cuda_result cuGetErrorString(int code, const char **text);
SIM_EXPORT cuda_result cuGetErrorName(int code, const char **name);
SIM_EXPORT cuda_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);

#endif
