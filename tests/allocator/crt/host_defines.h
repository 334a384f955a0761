/* What cuda_runtime_api.h needs of a header that only nvcc's package holds: words that a host compiler ignores. */
#ifndef INSPECT_TESTS_HOST_DEFINES_H
#define INSPECT_TESTS_HOST_DEFINES_H

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __inline_hint__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))

#endif
