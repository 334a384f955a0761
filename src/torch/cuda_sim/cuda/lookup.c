/* lookup.c - driver functions by name, and what their errors are called. */
#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <stdio.h>

struct message {
    int code;
    const char *runtime_name, *driver_name, *text;
};

/* The codes that the stand-ins return, with CUDA's names and texts for them. */
static const struct message MESSAGES[] = {
    {SIM_SUCCESS, "cudaSuccess", "CUDA_SUCCESS", "no error"},
    {SIM_INVALID_VALUE, "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {SIM_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {SIM_INVALID_CONFIGURATION, "cudaErrorInvalidConfiguration", "CUDA_ERROR_INVALID_VALUE",
     "invalid configuration argument"},
    {SIM_INVALID_MEMCPY_DIRECTION, "cudaErrorInvalidMemcpyDirection", "CUDA_ERROR_INVALID_VALUE",
     "invalid copy direction for memcpy"},
    {SIM_INVALID_DEVICE_FUNCTION, "cudaErrorInvalidDeviceFunction", "CUDA_ERROR_INVALID_VALUE",
     "invalid device function"},
    {SIM_INVALID_DEVICE, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {SIM_INVALID_IMAGE, "cudaErrorInvalidKernelImage", "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {SIM_NO_KERNEL_IMAGE, "cudaErrorNoKernelImageForDevice", "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {SIM_UNSUPPORTED_LIMIT, "cudaErrorUnsupportedLimit", "CUDA_ERROR_UNSUPPORTED_LIMIT",
     "limit is not supported on this architecture"},
    {SIM_PEER_ACCESS_UNSUPPORTED, "cudaErrorPeerAccessUnsupported", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {SIM_OPERATING_SYSTEM, "cudaErrorOperatingSystem", "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {SIM_INVALID_RESOURCE_HANDLE, "cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE",
     "invalid resource handle"},
    {SIM_ILLEGAL_STATE, "cudaErrorIllegalState", "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {SIM_NOT_FOUND, "cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {SIM_NOT_READY, "cudaErrorNotReady", "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {710, "cudaErrorAssert", "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {SIM_HOST_MEMORY_ALREADY_REGISTERED, "cudaErrorHostMemoryAlreadyRegistered",
     "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {SIM_HOST_MEMORY_NOT_REGISTERED, "cudaErrorHostMemoryNotRegistered", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {719, "cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {SIM_NOT_SUPPORTED, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {SIM_CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {SIM_CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {SIM_CAPTURE_MERGE, "cudaErrorStreamCaptureMerge", "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {SIM_CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched", "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {SIM_CAPTURE_UNJOINED, "cudaErrorStreamCaptureUnjoined", "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {SIM_CAPTURE_ISOLATION, "cudaErrorStreamCaptureIsolation", "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {SIM_CAPTURED_EVENT, "cudaErrorCapturedEvent", "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
};

static const struct message *find_message(int code) {
    for (size_t i = 0; i < sizeof MESSAGES / sizeof *MESSAGES; i++)
        if (MESSAGES[i].code == code) return &MESSAGES[i];
    return NULL;
}

SIM_EXPORT const char *inspect_cuda_sim_error_name(int code) {
    const struct message *message = find_message(code);
    return message ? message->runtime_name : "cudaErrorUnknown";
}

SIM_EXPORT const char *inspect_cuda_sim_error_text(int code) {
    const struct message *message = find_message(code);
    return message ? message->text : "unrecognized error code";
}

SIM_EXPORT cuda_result cuGetErrorString(int code, const char **text) {
    if (!text) return SIM_INVALID_VALUE;
    const struct message *message = find_message(code);
    *text = message ? message->text : NULL;
    return message ? SIM_SUCCESS : SIM_INVALID_VALUE;
}

SIM_EXPORT cuda_result cuGetErrorName(int code, const char **name) {
    if (!name) return SIM_INVALID_VALUE;
    const struct message *message = find_message(code);
    *name = message ? message->driver_name : NULL;
    return message ? SIM_SUCCESS : SIM_INVALID_VALUE;
}

/*
 * The table of functions is this library's own symbol table. A name stands for its newest form, as in cuda.h, where
 * `cuMemAlloc` is a macro for `cuMemAlloc_v2`.
 */
SIM_EXPORT cuda_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
    (void)version, (void)flags;
    static const char *const SUFFIXES[] = {"_v3", "_v2", ""};
    if (!name || !out) return SIM_INVALID_VALUE;
    *out = NULL;
    void *self = dlopen(SIM_SONAME, RTLD_LAZY | RTLD_NOLOAD);
    for (size_t i = 0; self && !*out && i < sizeof SUFFIXES / sizeof *SUFFIXES; i++) {
        char symbol[128];
        int length = snprintf(symbol, sizeof symbol, "%s%s", name, SUFFIXES[i]);
        if (length > 0 && (size_t)length < sizeof symbol) *out = dlsym(self, symbol);
    }
    if (self) dlclose(self);
    if (status) *status = *out ? 0 : 1; /* CU_GET_PROC_ADDRESS_SUCCESS, _SYMBOL_NOT_FOUND */
    return *out ? SIM_SUCCESS : SIM_NOT_FOUND;
}
