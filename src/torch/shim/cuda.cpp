// The CUDA caching allocator: its statistics through c10's device-neutral interface, its trace through the allocator
// object itself. Nothing of CUDA is linked; the object is found in the libc10_cuda.so that libtorch_cuda.so brought.

#include "common.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <dlfcn.h>

namespace {

using c10::CachingDeviceAllocator::TraceEntry;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;

constexpr c10::DeviceIndex kDevice = 0;

shim_stat sum(const c10::CachingAllocator::StatArray& s) {
  const auto& all = s[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {all.current, all.peak, all.allocated, all.freed};
}

int segment_action(TraceEntry::Action action) {
  switch (action) {
    case TraceEntry::SEGMENT_ALLOC:
      return 0;
    case TraceEntry::SEGMENT_FREE:
      return 1;
    case TraceEntry::SEGMENT_MAP:
      return 2;
    case TraceEntry::SEGMENT_UNMAP:
      return 3;
    case TraceEntry::OOM:
      return 4;
    default:
      return -1;
  }
}

void on_trace(const TraceEntry& e) {
  auto stream = reinterpret_cast<uint64_t>(e.stream_);
  try {
    if (e.action_ == TraceEntry::ALLOC) {
      shim::on_cuda_alloc(e.addr_, static_cast<int64_t>(e.size_), stream);
    } else if (int action = segment_action(e.action_); action >= 0) {
      shim::on_cuda_segment(action, e.addr_, static_cast<int64_t>(e.size_), stream);
    }
  } catch (...) {
  }
}

} // namespace

namespace shim {

void attach_cuda_tracker() {
  using Slot = std::atomic<CUDAAllocator*>;
  auto* slot = static_cast<Slot*>(dlsym(RTLD_DEFAULT, "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
  TORCH_CHECK(slot != nullptr && slot->load() != nullptr, "this libtorch has no CUDA caching allocator");
  slot->load()->attachAllocatorTraceTracker(on_trace);
}

} // namespace shim

int shim_cuda_stats(shim_device_stats* out, char** error) {
  return shim::guard(error, [&] {
    auto s = c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(kDevice);
    out->requested_bytes = sum(s.requested_bytes);
    out->allocated_bytes = sum(s.allocated_bytes);
    out->active_bytes = sum(s.active_bytes);
    out->reserved_bytes = sum(s.reserved_bytes);
    out->num_alloc_retries = s.num_alloc_retries;
    out->num_ooms = s.num_ooms;
  });
}

int shim_cuda_reset_peaks(char** error) {
  return shim::guard(error, [&] { c10::getDeviceAllocator(c10::kCUDA)->resetPeakStats(kDevice); });
}

int shim_cuda_memory_info(size_t* free_bytes, size_t* total_bytes, char** error) {
  return shim::guard(error, [&] {
    auto info = c10::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(kDevice);
    *free_bytes = info.first;
    *total_bytes = info.second;
  });
}

int shim_sim_loaded(void) { return dlsym(RTLD_DEFAULT, "inspect_cuda_sim_version") != nullptr ? 1 : 0; }

int shim_sim_functions(shim_function_visitor visit, void* context, char** error) {
  return shim::guard(error, [&] {
    using Function = int (*)(size_t, const char**, const char**, int*, uint64_t*);
    auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "inspect_cuda_sim_function"));
    TORCH_CHECK(function != nullptr, "the simulated CUDA device is not loaded");
    const char *library = nullptr, *name = nullptr;
    int gap = 0;
    uint64_t calls = 0;
    for (size_t i = 0; function(i, &library, &name, &gap, &calls) != 0; i++) {
      visit(context, library, name, gap, calls);
    }
  });
}
