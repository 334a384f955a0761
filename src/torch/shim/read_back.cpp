// Values that operators read from the simulated device: answered from what the same operators read in a run on the
// CPU. An operator is known by its name and the shape of its first argument, and answers are used in order. A read of a
// tensor that is on the host takes its answer too: it was read in the other run as well.

#include "common.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/record_function.h>

#include <dlfcn.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

namespace {

struct Answer {
  int kind;
  int64_t bits;
};

struct Reads {
  uint64_t answered = 0, unknown = 0;
};

struct State {
  std::mutex mutex;
  // operator -> shape -> answers
  std::unordered_map<std::string, std::map<std::vector<int64_t>, std::deque<Answer>>> answers;
  std::map<std::string, Reads> reads;
  void (*answer)(const void*, size_t) = nullptr;
  void (*answer_count)(int64_t) = nullptr;
};

std::atomic<bool> watching{false};

State& state() {
  static State* s = new State; // never destroyed: threads may outlive main
  return *s;
}

constexpr std::string_view kReaders[] = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"};

bool reads(std::string_view name) {
  for (auto reader : kReaders) {
    if (name == reader) {
      return true;
    }
  }
  return false;
}

template <typename T>
T number(const Answer& a) {
  if (a.kind == READ_DOUBLE) {
    double value = 0;
    std::memcpy(&value, &a.bits, sizeof value);
    return static_cast<T>(value);
  }
  return static_cast<T>(a.bits);
}

void give(State& s, const Answer& a, at::ScalarType dtype) {
  if (a.kind == READ_COUNT) {
    s.answer_count(a.bits);
    return;
  }
  AT_DISPATCH_V2(
      dtype, "read_back", AT_WRAP([&] {
        auto value = number<scalar_t>(a);
        s.answer(&value, sizeof value);
      }),
      AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf, at::kBFloat16);
}

struct Reading : at::ObserverContext {};

// What an operator reads through others is its own read.
thread_local bool inside = false;

std::unique_ptr<at::ObserverContext> on_op(const at::RecordFunction& fn) {
  if (!watching.load(std::memory_order_relaxed) || inside || !reads(fn.name())) {
    return nullptr;
  }
  try {
    auto inputs = fn.inputs();
    if (fn.num_inputs() == 0 || inputs.size() < fn.num_inputs()) {
      return nullptr;
    }
    const auto& first = inputs[inputs.size() - fn.num_inputs()];
    if (!first.isTensor() || !first.toTensor().defined()) {
      return nullptr;
    }
    const at::Tensor& t = first.toTensor();
    auto& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    auto& queue = s.answers[fn.name()][t.sizes().vec()];
    auto reading = std::make_unique<Reading>();
    if (t.is_cuda()) {
      auto& count = s.reads[fn.name()];
      if (queue.empty()) {
        count.unknown++;
      } else {
        give(s, queue.front(), t.scalar_type());
        count.answered++;
      }
    }
    if (!queue.empty()) {
      queue.pop_front();
    }
    inside = true;
    return reading;
  } catch (...) {
    return nullptr;
  }
}

// What was not fetched must not reach the next operator.
void on_op_end(const at::RecordFunction&, at::ObserverContext* reading) {
  if (reading != nullptr) {
    inside = false;
    state().answer(nullptr, 0);
  }
}

} // namespace

int shim_read_back_add(
    const char* op, const int64_t* shape, size_t dims, int kind, int64_t bits, char** error) {
  return shim::guard(error, [&] {
    auto& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.answers[op][std::vector<int64_t>(shape, shape + dims)].push_back({kind, bits});
  });
}

int shim_read_back_watch(int on, char** error) {
  return shim::guard(error, [&] {
    auto& s = state();
    watching = on != 0;
    if (on == 0 || s.answer != nullptr) {
      return;
    }
    s.answer = reinterpret_cast<void (*)(const void*, size_t)>(dlsym(RTLD_DEFAULT, "inspect_cuda_sim_answer"));
    s.answer_count = reinterpret_cast<void (*)(int64_t)>(dlsym(RTLD_DEFAULT, "inspect_cuda_sim_answer_count"));
    TORCH_CHECK(s.answer != nullptr && s.answer_count != nullptr, "the simulated CUDA device is not loaded");
    at::addGlobalCallback(
        at::RecordFunctionCallback(on_op, on_op_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  });
}

int shim_read_back_visit(shim_read_visitor visit, void* context, char** error) {
  return shim::guard(error, [&] {
    auto& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    for (const auto& [op, count] : s.reads) {
      visit(context, op.c_str(), count.answered, count.unknown);
    }
  });
}
