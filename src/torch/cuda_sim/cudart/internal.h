/* internal.h - what the files of the libcudart.so.13 stand-in share: the runtime's way of returning errors. */
#ifndef INSPECT_CUDA_SIM_CUDART_INTERNAL_H
#define INSPECT_CUDA_SIM_CUDART_INTERNAL_H

#include "../driver.h"

/* Ends a runtime call: remembers its error for cudaGetLastError, and lets a sticky error win over any result. */
cuda_result runtime_result(cuda_result result);

#endif
