// The recorder: operators, modules, autograd nodes and allocations as one stream of words (layout in shim.h).
//
// Operators come from at::RecordFunction, modules from the marks that module.cpp puts into the graphs, allocations
// from c10's memory-reporting hook and, on CUDA, from the caching allocator's trace tracker (requested sizes,
// segments). All writers take one lock; a callback never throws.

#include "common.h"

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace {

using Clock = std::chrono::steady_clock;
using torch::jit::Module;

struct Hash {
  size_t operator()(const std::vector<int64_t>& v) const {
    uint64_t h = 1469598103934665603ull;
    for (int64_t x : v) {
      h = (h ^ static_cast<uint64_t>(x)) * 1099511628211ull;
      h ^= h >> 29;
    }
    return static_cast<size_t>(h);
  }
};

struct ModuleNames {
  std::string path;                                             // the first one found
  std::vector<std::pair<const void*, std::string>> parents;     // every (parent, full path)
  int64_t class_text = -1;
};

// What a kernel's own form of a weight holds: known once it was unpacked. The weak pointer keeps the address from being
// used again.
struct Packed {
  c10::weak_intrusive_ptr<c10::ivalue::Object> object;
  int64_t scalar_type; // -1: no weight
  std::vector<int64_t> sizes;
};

// Words of one recording between two drains: 1 GiB, some three million operators.
constexpr size_t kMostWords = size_t{1} << 27;

// A module's method that has not returned.
struct Frame {
  const void* object;
  std::string path;
  bool marked; // false: a method of the module that is already on top
};

// When the device came to an event of the recording: its time is put into that word once it is known.
struct Moment {
  size_t word;
  std::unique_ptr<c10::Event> event;
};

struct Recorder {
  std::mutex mutex;
  std::vector<int64_t> words, handed_over;
  std::unordered_map<std::string, int64_t> texts;
  std::unordered_map<std::vector<int64_t>, int64_t, Hash> sigs;
  std::unordered_map<const void*, int64_t> live;                // address -> allocation
  std::unordered_map<const void*, int64_t> foreign;             // address -> allocation from before the recording
  std::unordered_map<uint64_t, std::pair<int64_t, uint64_t>> requested;  // CUDA address -> requested size, stream
  std::unordered_map<const void*, ModuleNames> modules;
  std::unordered_map<int64_t, std::vector<Frame>> frames;       // by thread
  std::vector<int64_t> scratch;
  std::unordered_map<const void*, Packed> packed;
  bool full = false;                                            // more to record than a recording may hold
  int64_t allocations = 0, ops = 0;
  Clock::time_point start = Clock::now();
  c10::DeviceType device = c10::DeviceType::CPU;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
  std::shared_ptr<c10::DebugInfoBase> reporter;
  std::vector<Moment> moments;
  std::unique_ptr<c10::Event> base;                             // of the device's times; none: times are the host's
  int64_t base_ns = 0;
};

Recorder& recorder() {
  static Recorder* r = new Recorder; // never destroyed: threads may outlive main
  return *r;
}

std::atomic<bool> recording{false};
std::atomic<bool> operators_on{false};
std::atomic<int> threads{0};

int64_t thread_number() {
  thread_local int number = threads.fetch_add(1);
  return number;
}

int64_t now(const Recorder& r) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - r.start).count();
}

std::unique_ptr<c10::Event> device_event() {
  c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
  auto event = std::make_unique<c10::Event>(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
  event->record(device.getStream(c10::Device(c10::DeviceType::CUDA, 0)));
  return event;
}

// The time of an event whose first two words, its kind and this time, are the next in the recording.
int64_t moment(Recorder& r) {
  if (r.base) {
    r.moments.push_back({r.words.size() + 1, device_event()});
  }
  return now(r);
}

// Puts in the device's times, once it has come to all of them.
void settle(Recorder& r) {
  if (r.moments.empty()) {
    return;
  }
  r.moments.back().event->synchronize();
  int64_t last = r.base_ns;
  for (auto& moment : r.moments) {
    moment.event->synchronize();
    last = r.base_ns + std::max<int64_t>(0, static_cast<int64_t>(r.base->elapsedTime(*moment.event) * 1e6));
    r.words[moment.word] = last;
  }
  r.base = std::move(r.moments.back().event);
  r.base_ns = last;
  r.moments.clear();
}

int64_t text_id(Recorder& r, std::string_view s) {
  auto [at, added] = r.texts.try_emplace(std::string(s), static_cast<int64_t>(r.texts.size()));
  if (added) {
    r.words.insert(r.words.end(), {REC_STR, at->second, static_cast<int64_t>(s.size())});
    size_t first = r.words.size();
    r.words.resize(first + (s.size() + 7) / 8, 0);
    std::memcpy(&r.words[first], s.data(), s.size());
  }
  return at->second;
}

// Metadata of a tensor with these sizes.
int64_t sig_id(Recorder& r, c10::ScalarType type, c10::IntArrayRef shape) {
  auto& key = r.scratch;
  key.clear();
  key.push_back(static_cast<int64_t>(type));
  key.insert(key.end(), shape.begin(), shape.end());
  auto found = r.sigs.find(key);
  if (found != r.sigs.end()) {
    return found->second;
  }
  int64_t id = static_cast<int64_t>(r.sigs.size());
  std::vector<int64_t> sizes(shape.begin(), shape.end());
  r.sigs.emplace(key, id);
  int64_t numel = 1;
  for (int64_t size : sizes) {
    numel *= size;
  }
  int64_t dtype = text_id(r, c10::toString(type));
  int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(type));
  r.words.insert(r.words.end(), {REC_SIG, id, dtype, bytes, static_cast<int64_t>(sizes.size())});
  r.words.insert(r.words.end(), sizes.begin(), sizes.end());
  return id;
}

// A tensor without plain sizes (nested) is described by its number of elements.
int64_t sig_id(Recorder& r, const at::Tensor& t) {
  return t.is_nested() ? sig_id(r, t.scalar_type(), {t.numel()}) : sig_id(r, t.scalar_type(), t.sizes());
}

// Tensors elsewhere than on the recorded device (step counters of optimizers) are none of its memory.
int64_t alloc_id(Recorder& r, const at::Tensor& t) {
  if (!t.unsafeGetTensorImpl()->has_storage() || t.device().type() != r.device) {
    return -1;
  }
  const auto& storage = t.storage();
  const void* address = storage.data();
  if (address == nullptr) {
    return -1;
  }
  if (auto found = r.live.find(address); found != r.live.end()) {
    return found->second;
  }
  if (auto found = r.foreign.find(address); found != r.foreign.end()) {
    return found->second;
  }
  int64_t id = r.allocations++;
  r.foreign.emplace(address, id);
  r.words.insert(r.words.end(), {REC_EXTERN, id, static_cast<int64_t>(storage.nbytes())});
  return id;
}

// New texts, sigs and allocations must stand before the event that names them, so an event is built apart.
using Words = std::vector<int64_t>;

void put_tensor(Recorder& r, Words& out, const at::Tensor& t) {
  if (!t.defined()) {
    out.push_back(ARG_NONE);
    return;
  }
  int64_t sig = sig_id(r, t);
  out.insert(out.end(), {ARG_TENSOR, sig, alloc_id(r, t)});
}

void put(Recorder& r, Words& out, const c10::IValue& v, int depth) {
  if (v.isTensor()) {
    put_tensor(r, out, v.toTensor());
  } else if (v.isNone()) {
    out.push_back(ARG_NONE);
  } else if (v.isInt()) {
    out.insert(out.end(), {ARG_INT, v.toInt()});
  } else if (v.isBool()) {
    out.insert(out.end(), {ARG_BOOL, v.toBool() ? 1 : 0});
  } else if (v.isDouble()) {
    double d = v.toDouble();
    int64_t bits = 0;
    std::memcpy(&bits, &d, sizeof bits);
    out.insert(out.end(), {ARG_DOUBLE, bits});
  } else if (v.isString() && v.toStringRef().size() <= 256) {
    out.insert(out.end(), {ARG_TEXT, text_id(r, v.toStringRef())});
  } else if (v.isList() && depth < 8 && v.toListRef().size() <= 100000) {
    auto items = v.toListRef();
    out.insert(out.end(), {ARG_LIST, static_cast<int64_t>(items.size())});
    for (const auto& item : items) {
      put(r, out, item, depth + 1);
    }
  } else if (v.isTuple() && depth < 8) {
    const auto& items = v.toTupleRef().elements();
    out.insert(out.end(), {ARG_LIST, static_cast<int64_t>(items.size())});
    for (const auto& item : items) {
      put(r, out, item, depth + 1);
    }
  } else if (v.isGenericDict() && depth < 8) {
    auto dict = v.toGenericDict();
    out.insert(out.end(), {ARG_LIST, static_cast<int64_t>(dict.size())});
    for (const auto& entry : dict) {
      put(r, out, entry.value(), depth + 1);
    }
  } else if (auto known = v.isCustomClass() ? r.packed.find(&v.toObjectRef()) : r.packed.end();
             known != r.packed.end() && known->second.scalar_type >= 0) {
    auto type = static_cast<c10::ScalarType>(known->second.scalar_type);
    out.insert(out.end(), {ARG_TENSOR, sig_id(r, type, known->second.sizes), -1});
  } else {
    out.insert(out.end(), {ARG_OTHER, text_id(r, v.tagKind())});
  }
}

// On while this thread unpacks a weight to look at it: nothing of that is the model's doing.
bool& looking() {
  thread_local bool now = false;
  return now;
}

// The weight inside a kernel's own form of it (quantized, XNNPACK): the first matrix that unpacking gives.
Packed unpacked(const c10::IValue& v) {
  Packed packed{c10::weak_intrusive_ptr<c10::ivalue::Object>(v.toObject()), -1, {}};
  auto type = v.toObjectRef().type();
  for (const char* name : {"unpack", "__getstate__"}) {
    auto* method = type->findMethod(name);
    if (method == nullptr || method->getSchema().arguments().size() != 1) {
      continue;
    }
    try {
      shim::visit_tensors((*method)({v}), "", [&](const std::string&, const at::Tensor& t) {
        if (packed.scalar_type < 0 && t.dim() >= 2) {
          packed.scalar_type = static_cast<int64_t>(t.scalar_type());
          packed.sizes = t.sizes().vec();
        }
      });
    } catch (const std::exception&) {
      continue; // it cannot be looked at; the operator is named as one without a formula
    }
    if (packed.scalar_type >= 0) {
      break;
    }
  }
  return packed;
}

// Looks into packed weights that were not seen before. Without the lock: unpacking allocates and calls operators.
void look_into(Recorder& r, c10::ArrayRef<const c10::IValue> values) {
  for (const auto& v : values) {
    if (!v.isCustomClass()) {
      continue;
    }
    const void* object = &v.toObjectRef();
    {
      std::lock_guard<std::mutex> lock(r.mutex);
      if (r.packed.count(object) != 0) {
        continue;
      }
    }
    looking() = true;
    auto packed = unpacked(v);
    looking() = false;
    std::lock_guard<std::mutex> lock(r.mutex);
    r.packed.emplace(object, std::move(packed));
  }
}

constexpr const char* kFull =
    "the run did more than can be recorded: some three million operators and allocations in one phase";

// Whether there is room for more; where not, the next drain says so.
bool has_room(Recorder& r) {
  r.full = r.full || r.words.size() > kMostWords;
  return !r.full;
}

// An operator called with a boxed stack reports the whole stack, with what lies below its own values.
c10::ArrayRef<const c10::IValue> own_values(c10::ArrayRef<const c10::IValue> values, size_t declared) {
  return declared > 0 && values.size() > declared ? values.slice(values.size() - declared) : values;
}

struct OpContext : at::ObserverContext {
  int64_t id = -1; // -1: an autograd node
};

std::unique_ptr<at::ObserverContext> on_op(const at::RecordFunction& fn) {
  if (!operators_on.load(std::memory_order_relaxed) || looking()) {
    return nullptr;
  }
  auto& r = recorder();
  try {
    auto inputs = own_values(fn.inputs(), fn.num_inputs());
    look_into(r, inputs);
    auto context = std::make_unique<OpContext>();
    thread_local Words event;
    event.clear();
    std::lock_guard<std::mutex> lock(r.mutex);
    if (!has_room(r)) {
      return nullptr;
    }
    int64_t name = text_id(r, fn.name());
    int64_t thread = thread_number();
    if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      r.words.insert(r.words.end(), {REC_NODE, moment(r), thread, name, fn.seqNr()});
      return context;
    }
    int64_t t = now(r);
    int64_t id = r.ops++;
    context->id = id;
    event.insert(event.end(), {REC_OP, t, thread, id, name, fn.seqNr(), static_cast<int64_t>(inputs.size())});
    for (const auto& input : inputs) {
      put(r, event, input, 0);
    }
    if (r.base) {
      event[1] = moment(r);
    }
    r.words.insert(r.words.end(), event.begin(), event.end());
    return context;
  } catch (...) {
    r.full = true; // never a recording with a hole
    return nullptr;
  }
}

void on_op_end(const at::RecordFunction& fn, at::ObserverContext* base) {
  auto* context = static_cast<OpContext*>(base);
  if (context == nullptr || !recording.load(std::memory_order_relaxed)) {
    return;
  }
  auto& r = recorder();
  try {
    thread_local Words event;
    event.clear();
    std::lock_guard<std::mutex> lock(r.mutex);
    if (!has_room(r)) {
      return;
    }
    if (context->id < 0) {
      r.words.insert(r.words.end(), {REC_NODE_END, moment(r), thread_number()});
      return;
    }
    int64_t t = now(r);
    const auto& results = fn.outputs();
    auto outputs = own_values(c10::ArrayRef<const c10::IValue>(results.data(), results.size()), fn.num_outputs());
    event.insert(event.end(), {REC_END, t, context->id, static_cast<int64_t>(outputs.size())});
    for (const auto& output : outputs) {
      put(r, event, output, 0);
    }
    if (r.base) {
      event[1] = moment(r);
    }
    r.words.insert(r.words.end(), event.begin(), event.end());
  } catch (...) {
    r.full = true;
  }
}

void allocated(Recorder& r, void* address, int64_t bytes, int64_t block, uint64_t stream) {
  int64_t id = r.allocations++;
  r.live[address] = id;
  r.foreign.erase(address);
  r.words.insert(
      r.words.end(),
      {REC_ALLOC, now(r), thread_number(), id, bytes, block, reinterpret_cast<int64_t>(address),
       static_cast<int64_t>(stream)});
}

struct Reporter : c10::MemoryReportingInfoBase {
  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void* address, int64_t size, size_t, size_t, c10::Device device) override {
    auto& r = recorder();
    if (!recording.load(std::memory_order_relaxed) || device.type() != r.device || address == nullptr ||
        looking()) {
      return;
    }
    try {
      std::lock_guard<std::mutex> lock(r.mutex);
      if (!has_room(r)) {
        return;
      }
      if (size >= 0) {
        auto known = r.requested.find(reinterpret_cast<uint64_t>(address));
        if (known == r.requested.end()) {
          allocated(r, address, size, -1, 0);
        } else {
          allocated(r, address, known->second.first, size, known->second.second);
          r.requested.erase(known);
        }
      } else if (auto found = r.live.find(address); found != r.live.end()) {
        r.words.insert(r.words.end(), {REC_FREE, now(r), found->second});
        r.live.erase(found);
      }
    } catch (...) {
      r.full = true;
    }
  }
};

// ---- modules

void name_module(Recorder& r, const Module& m, const std::string& path, int depth) {
  const void* object = m._ivalue().get();
  auto [at, added] = r.modules.try_emplace(object);
  if (!added || depth > 200) {
    return;
  }
  at->second.path = path;
  const auto& name = m.type()->name();
  at->second.class_text = text_id(r, name ? name->name() : std::string("Module"));
  for (const auto& child : m.named_children()) {
    std::string child_path = path.empty() ? child.name : path + "." + child.name;
    name_module(r, child.value, child_path, depth + 1);
    r.modules[child.value._ivalue().get()].parents.emplace_back(object, child_path);
  }
}

bool starts_with(const std::string& path, const std::string& prefix) {
  return prefix.empty() || (path.size() > prefix.size() && path.compare(0, prefix.size(), prefix) == 0 && path[prefix.size()] == '.');
}

} // namespace

namespace shim {

void name_modules(const Module& root) {
  auto& r = recorder();
  std::lock_guard<std::mutex> lock(r.mutex);
  r.modules.clear();
  name_module(r, root, "", 0);
}

// A module that hangs under several parents is named by the parent that is running.
void on_enter(const c10::IValue& self) {
  if (!operators_on.load(std::memory_order_relaxed) || !self.isObject()) {
    return;
  }
  auto& r = recorder();
  const void* object = &self.toObjectRef();
  std::lock_guard<std::mutex> lock(r.mutex);
  TORCH_CHECK(has_room(r), kFull);
  auto& stack = r.frames[thread_number()];
  if (!stack.empty() && stack.back().object == object) {
    std::string same = stack.back().path;
    stack.push_back({object, std::move(same), false});
    return;
  }
  auto found = r.modules.find(object);
  std::string path;
  int64_t class_text = -1;
  if (found != r.modules.end()) {
    path = found->second.path;
    class_text = found->second.class_text;
    if (found->second.parents.size() > 1 && !stack.empty()) {
      for (const auto& parent : found->second.parents) {
        if (parent.first == stack.back().object || starts_with(parent.second, stack.back().path)) {
          path = parent.second;
          break;
        }
      }
    }
  }
  if (class_text < 0) {
    const auto& name = self.toObjectRef().type()->name();
    class_text = text_id(r, name ? name->name() : std::string("Module"));
  }
  int64_t path_text = text_id(r, path);
  stack.push_back({object, path, true});
  r.words.insert(r.words.end(), {REC_ENTER, moment(r), thread_number(), path_text, class_text});
}

void on_exit(const c10::IValue& self, const c10::IValue& result) {
  if (!operators_on.load(std::memory_order_relaxed) || !self.isObject()) {
    return;
  }
  auto& r = recorder();
  const void* object = &self.toObjectRef();
  std::lock_guard<std::mutex> lock(r.mutex);
  auto is_open = [&](const std::vector<Frame>& stack) { return !stack.empty() && stack.back().object == object; };
  int64_t thread = thread_number();
  if (!is_open(r.frames[thread])) {
    // A method that waited for a fork goes on in another thread than it began in.
    auto begun = std::find_if(r.frames.begin(), r.frames.end(), [&](const auto& one) { return is_open(one.second); });
    if (begun == r.frames.end()) {
      return;
    }
    thread = begun->first;
  }
  auto& stack = r.frames[thread];
  bool marked = stack.back().marked;
  stack.pop_back();
  if (!marked) {
    return;
  }
  Words tensors;
  visit_tensors(result, "", [&](const std::string&, const at::Tensor& t) {
    int64_t sig = sig_id(r, t);
    tensors.insert(tensors.end(), {sig, alloc_id(r, t)});
  });
  r.words.insert(
      r.words.end(), {REC_EXIT, moment(r), thread, static_cast<int64_t>(tensors.size() / 2)});
  r.words.insert(r.words.end(), tensors.begin(), tensors.end());
}

void on_cuda_alloc(uint64_t address, int64_t requested, uint64_t stream) {
  auto& r = recorder();
  if (!recording.load(std::memory_order_relaxed)) {
    return;
  }
  std::lock_guard<std::mutex> lock(r.mutex);
  r.requested[address] = {requested, stream};
}

void on_cuda_segment(int action, uint64_t address, int64_t bytes, uint64_t stream) {
  auto& r = recorder();
  if (!recording.load(std::memory_order_relaxed)) {
    return;
  }
  std::lock_guard<std::mutex> lock(r.mutex);
  r.words.insert(
      r.words.end(),
      {REC_SEGMENT, now(r), action, static_cast<int64_t>(address), bytes, static_cast<int64_t>(stream)});
}

} // namespace shim

// What an earlier recording, or a run without one, left behind: this one's numbers begin at 0.
static void forget(Recorder& r) {
  std::lock_guard<std::mutex> lock(r.mutex);
  r.words.clear();
  r.handed_over.clear();
  r.texts.clear();
  r.sigs.clear();
  r.live.clear();
  r.foreign.clear();
  r.requested.clear();
  r.modules.clear();
  r.frames.clear();
  r.packed.clear();
  r.moments.clear();
  r.base.reset();
  r.full = false;
  r.allocations = r.ops = 0;
}

int shim_record_start(const char* device_type, char** error) {
  return shim::guard(error, [&] {
    auto& r = recorder();
    TORCH_CHECK(!recording, "a recording is already running");
    auto device = c10::Device(device_type).type();
    if (!r.reporter) {
      r.reporter = std::make_shared<Reporter>();
      c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, r.reporter);
      if (device == c10::DeviceType::CUDA) {
        shim::attach_cuda_tracker();
      }
    }
    forget(r);
    r.device = device;
    r.start = Clock::now();
    r.callback = at::addGlobalCallback(
        at::RecordFunctionCallback(on_op, on_op_end)
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
    recording = true;
  });
}

int shim_record_stop(char** error) {
  return shim::guard(error, [&] {
    auto& r = recorder();
    recording = false;
    operators_on = false;
    if (r.callback != at::INVALID_CALLBACK_HANDLE) {
      at::removeCallback(r.callback);
      r.callback = at::INVALID_CALLBACK_HANDLE;
    }
  });
}

int shim_record_operators(int on, char** error) {
  return shim::guard(error, [&] {
    operators_on = on != 0 && recording;
    auto& r = recorder();
    std::lock_guard<std::mutex> lock(r.mutex);
    r.frames.clear();
  });
}

int shim_record_device_times(char** error) {
  return shim::guard(error, [&] {
    auto& r = recorder();
    std::lock_guard<std::mutex> lock(r.mutex);
    r.base = device_event();
    r.base->synchronize();
    r.base_ns = now(r);
  });
}

int64_t shim_record_now(void) { return now(recorder()); }

size_t shim_record_words(void) {
  auto& r = recorder();
  std::lock_guard<std::mutex> lock(r.mutex);
  return r.words.size();
}

int shim_record_drain(const int64_t** words, size_t* count, char** error) {
  return shim::guard(error, [&] {
    auto& r = recorder();
    std::lock_guard<std::mutex> lock(r.mutex);
    TORCH_CHECK(!r.full, kFull);
    settle(r);
    r.handed_over.clear();
    r.handed_over.swap(r.words);
    *words = r.handed_over.data();
    *count = r.handed_over.size();
  });
}

int shim_record_tensor_of(const void* tensor, int64_t* sig, int64_t* alloc, char** error) {
  return shim::guard(error, [&] {
    auto& r = recorder();
    std::lock_guard<std::mutex> lock(r.mutex);
    *sig = sig_id(r, shim::tensor(tensor));
    *alloc = alloc_id(r, shim::tensor(tensor));
  });
}
