// Shared by the shim's sources: the opaque types, and the guard that keeps exceptions on this side.
#pragma once

#include "shim.h"

#include <c10/util/Exception.h>
#include <torch/script.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <vector>

struct shim_module {
  torch::jit::Module module;
};

struct shim_values {
  std::vector<c10::IValue> stack;
};

namespace shim {

inline char* text(const std::string& s) {
  char* copy = static_cast<char*>(std::malloc(s.size() + 1));
  if (copy != nullptr) {
    std::memcpy(copy, s.c_str(), s.size() + 1);
  }
  return copy;
}

inline void fail(char** error, const std::string& message) {
  if (error != nullptr) {
    *error = text(message);
  }
}

// Runs `body`; every exception becomes a kind and a text.
template <typename Body>
int guard(char** error, Body body) {
  try {
    body();
    return SHIM_OK;
  } catch (const c10::OutOfMemoryError& e) {
    fail(error, e.what_without_backtrace());
    return SHIM_OUT_OF_MEMORY;
  } catch (const c10::Error& e) {
    fail(error, e.what_without_backtrace());
    return SHIM_ERROR;
  } catch (const std::bad_alloc&) {
    fail(error, "out of memory");
    return SHIM_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    fail(error, e.what());
    return SHIM_ERROR;
  } catch (...) {
    fail(error, "an exception of unknown type");
    return SHIM_FOREIGN;
  }
}

// Every method of every module, but those that only make a module and are never part of a run.
template <typename Visit>
void each_method(const torch::jit::Module& root, Visit visit) {
  for (const auto& module : root.modules()) {
    for (const auto& method : module.get_methods()) {
      auto& function = method.function();
      if (function.name() != "__setstate__" && function.name() != "__getstate__") {
        visit(function);
      }
    }
  }
}

inline const at::Tensor& tensor(const void* pointer) {
  return *static_cast<const at::Tensor*>(pointer);
}

// values.cpp: every defined tensor inside lists, tuples, dicts and class objects other than modules, in order. Throws
// where they are nested deeper, or are more, than any model's.
using TensorVisitor = std::function<void(const std::string& path, const at::Tensor&)>;
void visit_tensors(const c10::IValue& value, const std::string& path, const TensorVisitor& visit);

// record.cpp: what the marks in the graph call.
void on_enter(const c10::IValue& self);
void on_exit(const c10::IValue& self, const c10::IValue& result);
// record.cpp: names for the modules that marks will meet.
void name_modules(const torch::jit::Module& root);

// variables.cpp: from the next run on, values live as long as an eager module's variables would hold them.
void keep_variables(const torch::jit::Module& root);
// variables.cpp: after a run, also one that failed on the way.
void drop_variables();

// rnn.cpp: makes one block of the weights of every LSTM, GRU and RNN, as nn.RNNBase does when it is moved to CUDA.
void flatten_rnn_weights(const torch::jit::Module& module);

// cuda.cpp: attaches to the caching allocator; the callbacks are record.cpp's.
void attach_cuda_tracker();
void on_cuda_alloc(uint64_t address, int64_t requested, uint64_t stream);
void on_cuda_segment(int action, uint64_t address, int64_t bytes, uint64_t stream);

} // namespace shim
