// Drives the CUDACachingAllocator of libc10_cuda.so over the simulated CUDA runtime, for tests/front/simulate_real.rs.
//
//   driver                 reads operations from stdin, one a line, and answers each with one row on stdout
//   driver --settings      reads settings texts, one a line, and answers each with what was read, or the error
//   driver --time          reads all allocations and frees first, then runs them and prints the nanoseconds they took
//
//   a ID SIZE STREAM  allocate            f ID       free               e  empty_cache
//   p  reset peaks                        q  reset totals               m FRACTION  memory fraction
//   o SETTINGS  setAllocatorSettings      s  snapshot, as the last operation
//
// A row is ROW native 64-bit integers; see write_row.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <vector>

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

// What an allocation answers besides an address.
constexpr int64_t OUT_OF_MEMORY = -1, NO_BLOCK = -2, NOT_AN_ALLOCATION = -3, FAILED = -4;
constexpr size_t ROW = 1 + 9 * 3 * 4 + 2 + 2 * 4 + 3 + 1;

void put(const void* data, size_t bytes) {
  if (fwrite(data, 1, bytes, stdout) != bytes) _exit(3);
}

void put_value(int64_t value) { put(&value, sizeof value); }

void write_row(int64_t answer) {
  std::array<int64_t, ROW> row{};
  size_t at = 0;
  row[at++] = answer;
  auto put_stat = [&](const Stat& stat) {
    row[at++] = stat.current;
    row[at++] = stat.peak;
    row[at++] = stat.allocated;
    row[at++] = stat.freed;
  };
  const DeviceStats stats = allocator::get()->getDeviceStats(0);
  const StatArray* arrays[] = {&stats.allocation,         &stats.segment,        &stats.active,
                               &stats.inactive_split,     &stats.allocated_bytes, &stats.reserved_bytes,
                               &stats.active_bytes,       &stats.inactive_split_bytes,
                               &stats.requested_bytes};
  for (const StatArray* array : arrays)
    for (size_t pool = 0; pool < 3; pool++) put_stat((*array)[pool]);
  row[at++] = stats.num_alloc_retries;
  row[at++] = stats.num_ooms;
  put_stat(stats.oversize_allocations);
  put_stat(stats.oversize_segments);
  row[at++] = stats.num_sync_all_streams;
  row[at++] = stats.num_device_alloc;
  row[at++] = stats.num_device_free;
  size_t free_bytes = 0, total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  row[at++] = static_cast<int64_t>(total_bytes - free_bytes);
  put(row.data(), sizeof row);
}

// Segments by the order of the library's snapshot: count, then for each its address, size, pool, kind, stream, number
// of blocks, and for each block size, requested size, whether it is allocated, whether it is active.
void write_snapshot() {
  const auto snapshot = allocator::get()->snapshot();
  put_value(static_cast<int64_t>(snapshot.segments.size()));
  for (const auto& segment : snapshot.segments) {
    put_value(static_cast<int64_t>(segment.address));
    put_value(static_cast<int64_t>(segment.total_size));
    put_value(segment.is_large);
    put_value(segment.is_expandable);
    put_value(static_cast<int64_t>(reinterpret_cast<uintptr_t>(segment.stream)));
    put_value(static_cast<int64_t>(segment.blocks.size()));
    for (const auto& block : segment.blocks) {
      put_value(static_cast<int64_t>(block.size));
      put_value(static_cast<int64_t>(block.requested_size));
      put_value(block.allocated);
      put_value(block.active);
    }
  }
}

int64_t allocate(std::unordered_map<long, void*>& live, long id, size_t bytes, uintptr_t stream) {
  try {
    auto* cuda = allocator::get();
    void* block = stream ? cuda->raw_alloc_with_stream(bytes, reinterpret_cast<cudaStream_t>(stream))
                         : cuda->raw_alloc(bytes);
    if (!block) return NO_BLOCK;
    live[id] = block;
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(block));
  } catch (const c10::OutOfMemoryError&) {
    return OUT_OF_MEMORY;
  }
}

int64_t run(const std::string& line, std::unordered_map<long, void*>& live) {
  const char* rest = line.c_str() + 1;
  char* end = nullptr;
  auto* cuda = allocator::get();
  switch (line[0]) {
    case 'a': {
      const long id = strtol(rest, &end, 10);
      const size_t bytes = strtoull(end, &end, 10);
      return allocate(live, id, bytes, strtoull(end, &end, 10));
    }
    case 'f': {
      const auto found = live.find(strtol(rest, &end, 10));
      if (found != live.end()) {
        cuda->raw_delete(found->second);
        live.erase(found);
      }
      break;
    }
    case 'e': cuda->emptyCache(); break;
    case 'p': cuda->resetPeakStats(0); break;
    case 'q': cuda->resetAccumulatedStats(0); break;
    case 'm': cuda->setMemoryFraction(strtod(rest, &end), 0); break;
    case 'o': c10::CachingAllocator::setAllocatorSettings(rest + 1); break;
    default: return FAILED;
  }
  return NOT_AN_ALLOCATION;
}

int run_operations() {
  std::unordered_map<long, void*> live;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "s") {
      write_snapshot();
      break;
    }
    int64_t answer = FAILED;
    try {
      answer = run(line, live);
    } catch (const std::exception& error) {
      std::cerr << line << ": " << error.what() << '\n';
    }
    write_row(answer);
  }
  return 0;
}

std::string one_line(std::string text) {
  return text.substr(0, text.find('\n'));
}

int run_settings() {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  std::string line;
  while (std::getline(std::cin, line)) {
    try {
      // What a second text does not forget.
      c10::CachingAllocator::setAllocatorSettings(
          "large_segment_size_mb:20,expandable_segments:False,per_process_memory_fraction:1");
      c10::CachingAllocator::setAllocatorSettings(line);
      std::cout << "ok " << Config::large_segment_size() << ' ' << Config::max_split_size() << ' '
                << Config::max_non_split_rounding_size() << ' ' << Config::garbage_collection_threshold() << ' '
                << Config::use_expandable_segments() << ' '
                << allocator::CUDAAllocatorConfig::per_process_memory_fraction();
      for (size_t divisions : Config::roundup_power2_divisions()) std::cout << ' ' << divisions;
      std::cout << '\n';
    } catch (const c10::Error& error) {
      std::cout << "error " << one_line(error.what_without_backtrace()) << '\n';
    } catch (const std::exception& error) {
      std::cout << "std " << error.what() << (dynamic_cast<const std::out_of_range*>(&error) ? " range" : " argument")
                << '\n';
    }
  }
  return 0;
}

int run_timed() {
  struct Call {
    char kind;
    size_t id, bytes;
  };
  std::vector<Call> calls;
  std::string line;
  size_t ids = 0;
  while (std::getline(std::cin, line) && line != "s") {
    char* end = nullptr;
    Call call{line[0], strtoull(line.c_str() + 1, &end, 10), 0};
    call.bytes = strtoull(end, &end, 10);
    ids = std::max(ids, call.id + 1);
    if (call.kind == 'a' || call.kind == 'f') calls.push_back(call);
  }
  std::vector<void*> live(ids);
  auto* cuda = allocator::get();
  const auto start = std::chrono::steady_clock::now();
  for (const Call& call : calls) {
    if (call.kind == 'a') {
      live[call.id] = cuda->raw_alloc(call.bytes);
    } else if (live[call.id]) {
      cuda->raw_delete(live[call.id]);
    }
  }
  const auto spent = std::chrono::steady_clock::now() - start;
  std::cout << calls.size() << ' ' << std::chrono::nanoseconds(spent).count() << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  c10::cuda::device_count();
  allocator::get()->init(1);
  static char buffer[1 << 20];
  setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
  const std::string mode = argc > 1 ? argv[1] : "";
  const int result = mode == "--settings" ? run_settings() : mode == "--time" ? run_timed() : run_operations();
  std::cout.flush();
  fflush(stdout);
  // Without the libraries' destructors: they would give memory back to a device that may be gone.
  _exit(result);
}
