// Values that operators read from the simulated device: answered from what the same operators read in a run on the
// CPU, which the front tells by key (ReadBack::key). Answers with one key are used in order. A read of a tensor that is
// on the host takes its answer too: it was read in the other run as well.

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
  std::unordered_map<std::string, std::deque<Answer>> answers;      // by key
  std::unordered_map<const void*, std::string> producers;           // by the storage's address
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
    "aten::_local_scalar_dense", "aten::nonzero",    "aten::masked_select",
    "aten::_unique2",            "aten::unique_dim", "aten::unique_consecutive"};

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

struct Op : at::ObserverContext {
  bool reads = false;
};

// What an operator reads through others is its own read.
thread_local bool inside = false;
thread_local std::vector<const char*> running;

const void* address(const at::Tensor& t) {
  return t.defined() && t.unsafeGetTensorImpl()->has_storage() ? t.storage().data() : nullptr;
}

// The operator that made a tensor; empty where it was not seen.
std::string producer(const State& s, const at::Tensor& t) {
  auto found = s.producers.find(address(t));
  return found == s.producers.end() ? "" : found->second;
}

// ReadBack::key in src/trace/read_back.rs makes the same text of a read in the CPU's run.
std::string key(const char* op, const std::string& producer, const at::Tensor& first) {
  std::string key = std::string(op) + "|" + (running.empty() ? op : running.front()) + "|";
  if (std::string_view(op) == kReaders[0]) {
    key += producer;
  }
  key += "|";
  for (size_t i = 0; i < first.sizes().size(); i++) {
    key += (i == 0 ? "" : "x") + std::to_string(first.size(static_cast<int64_t>(i)));
  }
  return key;
}

// Answers the read that the operator is about to do.
void read(State& s, const char* op, const at::Tensor& first) {
  auto made_by = producer(s, first);
  auto& queue = s.answers[key(op, made_by, first)];
  if (first.is_cuda()) {
    auto& count = s.reads[op];
    if (!queue.empty()) {
      give(s, queue.front(), first.scalar_type());
      count.answered++;
    } else {
      count.unknown++;
      // Whether all is well: taken to be so.
      if (made_by == "aten::all") {
        give(s, {READ_INT, 1}, first.scalar_type());
      }
    }
  }
  if (!queue.empty()) {
    queue.pop_front();
  }
}

std::unique_ptr<at::ObserverContext> on_reader(const at::RecordFunction& fn) {
  if (!watching.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  try {
    auto context = std::make_unique<Op>();
    auto inputs = fn.inputs();
    size_t own = fn.num_inputs();
    bool copies = std::string_view(fn.name()) == "aten::copy_";
    if (!inside && own > 0 && inputs.size() >= own && (copies || reads(fn.name()))) {
      inputs = inputs.slice(inputs.size() - own);
      if (inputs[0].isTensor() && inputs[0].toTensor().defined()) {
        auto& s = state();
        std::lock_guard<std::mutex> lock(s.mutex);
        if (!copies) {
          read(s, fn.name(), inputs[0].toTensor());
          context->reads = inside = true;
        } else if (inputs.size() > 1 && inputs[1].isTensor() && inputs[0].toTensor().is_cpu() &&
                   inputs[1].toTensor().is_cuda()) {
          s.reads[fn.name()].unknown++; // what is copied to the host are zeros
        }
      }
    }
    running.push_back(fn.name());
    return context;
  } catch (...) {
    return nullptr;
  }
}

// An answer that was not fetched must not reach the next operator.
void on_reader_end(const at::RecordFunction& fn, at::ObserverContext* base) {
  auto* op = static_cast<Op*>(base);
  if (op == nullptr) {
    return;
  }
  if (!running.empty()) {
    running.pop_back();
  }
  if (op->reads) {
    inside = false;
    state().answer(nullptr, 0);
  }
  try {
    auto& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    const auto& outputs = fn.outputs();
    size_t own = std::min(outputs.size(), fn.num_outputs());
    for (size_t i = outputs.size() - own; i < outputs.size(); i++) {
      if (outputs[i].isTensor()) {
        if (const void* where = address(outputs[i].toTensor())) {
          s.producers[where] = fn.name();
        }
      }
    }
  } catch (...) {
  }
}

} // namespace

int shim_read_back_add(const char* key, int kind, int64_t bits, char** error) {
  return shim::guard(error, [&] {
    auto& s = state();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.answers[key].push_back({kind, bits});
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
        at::RecordFunctionCallback(on_reader, on_reader_end)
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION}));
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
