// Process-wide settings of libtorch.

#include "common.h"

#include <ATen/autocast_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/jit/codegen/fuser/interface.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/print_handler.h>
#include <torch/csrc/jit/runtime/profiling_graph_executor_impl.h>
#include <torch/version.h>

#include <ATen/Context.h>
#include <dlfcn.h>

void shim_free_text(char* text) { std::free(text); }

const char* shim_libtorch_version(void) { return TORCH_VERSION; }

int shim_plain_executor(char** error) {
  return shim::guard(error, [&] {
    torch::jit::getProfilingMode() = false;
    torch::jit::getExecutorMode() = false;
    torch::jit::setGraphExecutorOptimize(false);
    torch::jit::overrideCanFuseOnCPU(false);
    torch::jit::overrideCanFuseOnGPU(false);
    torch::jit::setTensorExprFuserEnabled(false);
    // What a model prints is nothing that a report says, and could be gigabytes.
    torch::jit::setPrintHandler([](const std::string&) {});
  });
}

int shim_open_cuda(int* found, int* device_count, char** error) {
  return shim::guard(error, [&] {
    *found = 0;
    *device_count = 0;
    // Beside libtorch_cpu.so: the engine's own run path is where dlopen looks.
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      const char* why = dlerror();
      std::string reason = why != nullptr ? why : "";
      TORCH_CHECK(
          reason.find("libtorch_cuda.so: cannot open shared object file") != std::string::npos,
          "libtorch_cuda.so cannot be opened: ", reason);
      return;
    }
    *found = 1;
    *device_count = static_cast<int>(at::detail::getCUDAHooks().deviceCount());
  });
}

int shim_set_autocast(const char* device_type, int scalar_type, int on, char** error) {
  return shim::guard(error, [&] {
    auto type = c10::Device(device_type).type();
    if (on != 0) {
      at::autocast::set_autocast_dtype(type, static_cast<at::ScalarType>(scalar_type));
      at::autocast::increment_nesting();
      at::autocast::set_autocast_enabled(type, true);
    } else {
      at::autocast::set_autocast_enabled(type, false);
      if (at::autocast::decrement_nesting() == 0) {
        at::autocast::clear_cache();
      }
    }
  });
}

int shim_empty_cuda_cache(char** error) {
  return shim::guard(error, [&] { c10::getDeviceAllocator(c10::kCUDA)->emptyCache(); });
}
