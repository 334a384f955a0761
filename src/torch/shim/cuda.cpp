// The CUDA caching allocator: its statistics through c10's device-neutral interface, its trace through the allocator
// object itself. Nothing of CUDA is linked; the object is found in the libc10_cuda.so that libtorch_cuda.so brought.

#include "common.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace {

using c10::CachingDeviceAllocator::TraceEntry;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;

constexpr c10::DeviceIndex kDevice = 0;

shim_stat sum(const c10::CachingAllocator::StatArray& s) {
  const auto& all = s[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {all.current, all.peak, all.allocated, all.freed};
}

// Device memory in use, by whomever, and the most that was seen: the allocator's tracker looks whenever it got more.
std::atomic<uint64_t> most_used{0};

std::pair<uint64_t, uint64_t> used_and_total() {
  auto [free_bytes, total_bytes] = c10::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(kDevice);
  uint64_t used = total_bytes - std::min(free_bytes, total_bytes);
  uint64_t most = most_used.load();
  while (most < used && !most_used.compare_exchange_weak(most, used)) {
  }
  return {used, total_bytes};
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
      if (e.action_ == TraceEntry::SEGMENT_ALLOC || e.action_ == TraceEntry::SEGMENT_MAP) {
        used_and_total();
      }
    }
  } catch (...) {
  }
}

template <typename Function>
Function found(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

// A library that libtorch has opened already.
void* opened(const char* soname) { return dlopen(soname, RTLD_LAZY | RTLD_NOLOAD); }

// Workspaces by convolution; a key is the bytes of the description, which has no gaps.
static_assert(sizeof(sim_convolution) == 4 * sizeof(int) + (4 * 8 + 3 * 6) * sizeof(int64_t), "no gaps");
using Workspaces = std::unordered_map<std::string, int64_t>;

std::string key(const sim_convolution* convolution) {
  return std::string(reinterpret_cast<const char*>(convolution), sizeof *convolution);
}

Workspaces& workspaces() {
  static auto* all = new Workspaces; // outlives the stand-ins, which ask until the process ends
  return *all;
}

int64_t workspace_of(const sim_convolution* convolution, void* context) {
  const auto& all = *static_cast<Workspaces*>(context);
  auto at = all.find(key(convolution));
  return at == all.end() ? -1 : at->second;
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

int shim_cuda_memory_seen(uint64_t* used_bytes, uint64_t* peak_bytes, uint64_t* total_bytes, char** error) {
  return shim::guard(error, [&] {
    std::tie(*used_bytes, *total_bytes) = used_and_total();
    *peak_bytes = most_used.exchange(*used_bytes);
  });
}

int shim_cuda_used_before(int* known, uint64_t* bytes, char** error) {
  return shim::guard(error, [&] {
    struct { unsigned long long total, free, used; } memory = {};
    char bus[64] = {};
    void* handle = nullptr;
    *known = 0;
    void* management = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    if (management == nullptr) {
      return;
    }
    auto bus_of = found<int (*)(char*, int, int)>(RTLD_DEFAULT, "cudaDeviceGetPCIBusId");
    auto begin = found<int (*)()>(management, "nvmlInit_v2");
    auto handle_of = found<int (*)(const char*, void**)>(management, "nvmlDeviceGetHandleByPciBusId_v2");
    auto memory_of = found<int (*)(void*, void*)>(management, "nvmlDeviceGetMemoryInfo");
    if (bus_of && begin && handle_of && memory_of && bus_of(bus, static_cast<int>(sizeof bus), kDevice) == 0 &&
        begin() == 0 && handle_of(bus, &handle) == 0 && memory_of(handle, &memory) == 0) {
      *bytes = memory.used;
      *known = 1;
    }
  });
}

int shim_cuda_moment(uint64_t* elapsed_ns, char** error) {
  return shim::guard(error, [&] {
    static std::unique_ptr<c10::Event> last;
    auto now = std::make_unique<c10::Event>(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    now->record(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(c10::Device(c10::kCUDA, kDevice)));
    now->synchronize();
    double milliseconds = last ? last->elapsedTime(*now) : 0.0;
    *elapsed_ns = milliseconds > 0 ? static_cast<uint64_t>(milliseconds * 1e6) : 0;
    last = std::move(now);
  });
}

int shim_cuda_synchronize(char** error) {
  return shim::guard(error, [&] { c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(kDevice); });
}

int shim_cuda_release(char** error) {
  return shim::guard(error, [&] {
    c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(kDevice);
    // at::cuda::clearCublasWorkspaces()
    if (auto clear = found<void (*)()>(RTLD_DEFAULT, "_ZN2at4cuda21clearCublasWorkspacesEv")) {
      clear();
    }
    c10::getDeviceAllocator(c10::kCUDA)->emptyCache();
  });
}

int shim_cuda_card(shim_card* out, char** error) {
  return shim::guard(error, [&] {
    // cuDeviceAttribute
    constexpr int kMultiprocessors = 16, kL2Bytes = 38, kMajor = 75, kMinor = 76;
    void* driver = opened("libcuda.so.1");
    TORCH_CHECK(driver != nullptr, "the driver's libcuda.so.1 is not loaded");
    auto device_of = found<int (*)(int*, int)>(driver, "cuDeviceGet");
    auto name_of = found<int (*)(char*, int, int)>(driver, "cuDeviceGetName");
    auto memory_of = found<int (*)(size_t*, int)>(driver, "cuDeviceTotalMem_v2");
    auto attribute_of = found<int (*)(int*, int, int)>(driver, "cuDeviceGetAttribute");
    auto version = found<int (*)(int*)>(driver, "cuDriverGetVersion");
    TORCH_CHECK(device_of && name_of && memory_of && attribute_of && version, "this is not CUDA's driver");
    std::memset(out, 0, sizeof *out);
    int device = 0, l2_bytes = 0;
    size_t total_bytes = 0;
    auto done = [](int status) { TORCH_CHECK(status == 0, "the driver answers error ", status); };
    done(device_of(&device, kDevice));
    done(name_of(out->name, static_cast<int>(sizeof out->name), device));
    done(memory_of(&total_bytes, device));
    done(attribute_of(&out->major, kMajor, device));
    done(attribute_of(&out->minor, kMinor, device));
    done(attribute_of(&out->multiprocessors, kMultiprocessors, device));
    done(attribute_of(&l2_bytes, kL2Bytes, device));
    done(version(&out->driver_version));
    out->total_bytes = total_bytes;
    out->l2_bytes = static_cast<uint64_t>(l2_bytes);
    if (void* cudnn = opened("libcudnn.so.9")) {
      auto cudnn_version = found<size_t (*)()>(cudnn, "cudnnGetVersion");
      out->cudnn_version = cudnn_version ? static_cast<int>(cudnn_version()) : 0;
    }
  });
}

int shim_convolution_run(
    size_t index, int* known, sim_convolution* out, uint64_t* workspace_bytes, uint64_t* calls, char** error) {
  return shim::guard(error, [&] {
    using Run = int (*)(size_t, sim_convolution*, uint64_t*, uint64_t*);
    auto run = found<Run>(RTLD_DEFAULT, "inspect_cudnn_record");
    *known = run == nullptr ? -1 : run(index, out, workspace_bytes, calls);
  });
}

int shim_sim_convolution(const sim_convolution* convolution, uint64_t workspace_bytes, char** error) {
  return shim::guard(error, [&] {
    using Source = void (*)(sim_conv_workspace_fn, void*);
    auto source = found<Source>(RTLD_DEFAULT, "inspect_cuda_sim_set_conv_workspace");
    TORCH_CHECK(source != nullptr, "the simulated CUDA device is not loaded");
    workspaces()[key(convolution)] = static_cast<int64_t>(workspace_bytes);
    source(workspace_of, &workspaces());
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
