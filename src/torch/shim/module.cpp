// Modules: loading, moving, naming, marking, running.

#include "common.h"

#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <functional>
#include <sstream>
#include <unordered_map>

namespace {

using c10::IValue;
using torch::jit::Graph;
using torch::jit::Module;
using torch::jit::Node;
using torch::jit::Operator;
using torch::jit::Stack;

// Marks in the graph: the interpreter runs them like any operator, so they stand exactly where a module's method
// begins and ends, however often it is called. Conservative alias analysis keeps every pass from moving them.
torch::jit::RegisterOperators module_marks({
    Operator(
        "inspect::enter(Any self) -> ()",
        [](Stack& stack) { shim::on_enter(torch::jit::pop(stack)); },
        c10::AliasAnalysisKind::CONSERVATIVE),
    Operator(
        "inspect::exit(Any self, Any result) -> ()",
        [](Stack& stack) {
          IValue result = torch::jit::pop(stack);
          IValue self = torch::jit::pop(stack);
          shim::on_exit(self, result);
        },
        c10::AliasAnalysisKind::CONSERVATIVE),
});

// An archive in pieces of a file and of memory. Where no arithmetic is done (the simulated device), the memory of large
// reads of data is left untouched: pages nobody wrote cost nothing.
class Pieces : public caffe2::serialize::ReadAdapterInterface {
 public:
  Pieces(const char* path, const void* head, const shim_piece* pieces, size_t count, bool skip_data)
      : fd_(open(path, O_RDONLY | O_CLOEXEC)), head_(static_cast<const char*>(head)), skip_data_(skip_data) {
    TORCH_CHECK(fd_ >= 0, "cannot open the file: ", std::strerror(errno));
    for (size_t i = 0; i < count; i++) {
      starts_.push_back(size_);
      pieces_.push_back(pieces[i]);
      size_ += pieces[i].bytes;
    }
  }
  ~Pieces() override {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  size_t size() const override { return size_; }

  size_t read(uint64_t pos, void* buf, size_t n, const char*) const override {
    size_t done = 0;
    while (done < n && pos + done < size_) {
      uint64_t at = pos + done;
      size_t index = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin()) - 1;
      uint64_t inside = at - starts_[index];
      size_t length = static_cast<size_t>(std::min<uint64_t>(n - done, pieces_[index].bytes - inside));
      if (!part(pieces_[index], inside, static_cast<char*>(buf) + done, length)) {
        break;
      }
      done += length;
    }
    return done;
  }

 private:
  bool part(const shim_piece& piece, uint64_t inside, char* out, size_t n) const {
    constexpr size_t kSmall = 1 << 16; // below this, reading is as fast as leaving out
    if (skip_data_ && piece.is_data && n > kSmall) {
      return true;
    }
    if (piece.in_head) {
      std::memcpy(out, head_ + piece.offset + inside, n);
      return true;
    }
    size_t done = 0;
    while (done < n) {
      ssize_t got = pread(fd_, out + done, n - done, static_cast<off_t>(piece.offset + inside + done));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got <= 0) {
        return false;
      }
      done += static_cast<size_t>(got);
    }
    return true;
  }

  int fd_;
  const char* head_;
  bool skip_data_;
  std::vector<shim_piece> pieces_;
  std::vector<uint64_t> starts_;
  uint64_t size_ = 0;
};

// Moves tensors one by one, as nn.Module._apply does: a tensor that two modules own is moved once and stays theirs, but
// two tensors that were views of one storage get a storage each.
class Mover {
 public:
  Mover(c10::Device device, int scalar_type, bool as_python)
      : device_(device), scalar_type_(scalar_type), as_python_(as_python) {}

  void apply(const Module& m) {
    if (!seen_.insert(m._ivalue().get()).second) {
      return;
    }
    for (const auto& child : m.children()) {
      apply(child);
    }
    for (const auto& p : m.named_parameters(/*recurse=*/false)) {
      move(p.value);
    }
    for (const auto& b : m.named_buffers(/*recurse=*/false)) {
      move(b.value);
    }
    if (as_python_ && device_.is_cuda()) {
      shim::flatten_rnn_weights(m);
    }
  }

 private:
  void move(const at::Tensor& t) {
    if (!t.defined() || t.is_quantized() || !t.unsafeGetTensorImpl()->has_storage()) {
      return;
    }
    auto dtype = scalar_type_ >= 0 && (t.is_floating_point() || t.is_complex())
        ? static_cast<at::ScalarType>(scalar_type_)
        : t.scalar_type();
    if (t.device() == device_ && t.scalar_type() == dtype) {
      return;
    }
    at::NoGradGuard no_grad;
    t.set_data(t.to(device_, dtype));
  }

  c10::Device device_;
  int scalar_type_;
  bool as_python_;
  std::set<const void*> seen_;
};

void mark(Graph& graph) {
  static const auto enter = c10::Symbol::fromQualString("inspect::enter");
  static const auto exit = c10::Symbol::fromQualString("inspect::exit");
  auto* self = graph.inputs().at(0);
  Node* first = graph.create(enter, {self}, 0);
  graph.prependNode(first);
  graph.appendNode(graph.create(exit, {self, graph.outputs().at(0)}, 0));
}

// Every method's graph, each once.
void each_graph(const Module& root, const std::function<void(Graph&)>& visit) {
  std::set<const torch::jit::Function*> done;
  shim::each_method(root, [&](torch::jit::Function& function) {
    if (function.isGraphFunction() && done.insert(&function).second) {
      visit(*torch::jit::toGraphFunction(function).graph());
    }
  });
}

// Every tensor that is a constant of the code.
void each_constant(const torch::jit::Block& block, const std::function<void(at::Tensor)>& visit) {
  static const auto value = c10::Symbol::fromQualString("attr::value");
  for (const auto* node : block.nodes()) {
    if (node->kind() == c10::prim::Constant && node->hasAttribute(value) &&
        node->kindOf(value) == torch::jit::AttributeKind::t && node->t(value).defined()) {
      visit(node->t(value));
    }
    for (const auto* inner : node->blocks()) {
      each_constant(*inner, visit);
    }
  }
}

std::string escaped(const std::string& s) {
  std::ostringstream out;
  out << '"';
  for (unsigned char c : s) {
    if (c == '"' || c == '\\') {
      out << '\\' << c;
    } else if (c < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out << code;
    } else {
      out << c;
    }
  }
  out << '"';
  return out.str();
}

// A type as JSON: {"is": "Tensor"}, {"is": "Optional", "of": [{...}]}.
std::string kind(const c10::TypePtr& type, int depth = 0) {
  std::string name = c10::typeKindToString(type->kind());
  name = name.substr(0, name.rfind("Type"));
  std::string text = "{\"is\":" + escaped(name);
  auto inner = type->containedTypes();
  if (!inner.empty() && depth < 8) {
    text += ",\"of\":[";
    for (size_t i = 0; i < inner.size(); i++) {
      text += (i == 0 ? "" : ",") + kind(inner[i], depth + 1);
    }
    text += "]";
  }
  return text + "}";
}

std::string default_text(const IValue& v) {
  std::ostringstream out;
  if (v.isTensor()) {
    out << "Tensor";
  } else if (v.isString()) {
    out << '\'' << v.toStringRef() << '\'';
  } else {
    v.repr(out, [](std::ostream&, const IValue&) { return false; });
  }
  return out.str();
}

} // namespace

int shim_module_load(
    const char* path,
    const void* head,
    const shim_piece* pieces,
    size_t count,
    const char* device,
    int skip_data,
    shim_module** out,
    char** error) {
  return shim::guard(error, [&] {
    auto reader = std::make_shared<Pieces>(path, head, pieces, count, skip_data != 0);
    auto loaded = std::make_unique<shim_module>();
    loaded->module = torch::jit::load(reader, c10::Device(device));
    *out = loaded.release();
  });
}

void shim_module_free(shim_module* module) { delete module; }

int shim_module_train(shim_module* module, int on, char** error) {
  return shim::guard(error, [&] {
    // A frozen module has no `training` attribute: libtorch's own train() adds nothing where there is none.
    module->module.train(on != 0);
  });
}

int shim_module_to(shim_module* module, const char* device, int scalar_type, int as_python, char** error) {
  return shim::guard(
      error, [&] { Mover(c10::Device(device), scalar_type, as_python != 0).apply(module->module); });
}

int shim_module_visit(shim_module* module, shim_tensor_visitor visit, void* context, char** error) {
  return shim::guard(error, [&] {
    for (const auto& p : module->module.named_parameters()) {
      at::Tensor t = p.value;
      visit(context, p.name.c_str(), 0, &t);
    }
    for (const auto& b : module->module.named_buffers()) {
      at::Tensor t = b.value;
      visit(context, b.name.c_str(), 1, &t);
    }
    size_t number = 0;
    std::set<const void*> seen;
    each_graph(module->module, [&](Graph& graph) {
      each_constant(*graph.block(), [&](at::Tensor t) {
        if (seen.insert(t.unsafeGetTensorImpl()).second) {
          visit(context, std::to_string(number++).c_str(), 2, &t);
        }
      });
    });
  });
}

int shim_module_schema(shim_module* module, const char* method, char** out, char** methods, char** error) {
  return shim::guard(error, [&] {
    *out = nullptr;
    *methods = nullptr;
    auto found = module->module.find_method(method);
    if (!found) {
      std::string names;
      for (const auto& m : module->module.get_methods()) {
        names += (names.empty() ? "" : "\n") + m.name();
      }
      *methods = shim::text(names);
      return;
    }
    const auto& schema = found->function().getSchema();
    const auto& name = module->module.type()->name();
    std::string text = "{\"class\":" + escaped(name ? name->name() : "");
    text += ",\"method\":" + escaped(method);
    text += ",\"returns\":" + escaped(schema.returns().empty() ? "None" : schema.returns()[0].type()->annotation_str());
    text += ",\"arguments\":[";
    for (size_t i = 1; i < schema.arguments().size(); i++) {
      const auto& a = schema.arguments()[i];
      text += i == 1 ? "{" : ",{";
      text += "\"name\":" + escaped(a.name()) + ",\"type\":" + escaped(a.type()->annotation_str());
      text += ",\"kind\":" + kind(a.type());
      text += ",\"default\":" + (a.default_value() ? escaped(default_text(*a.default_value())) : std::string("null"));
      text += "}";
    }
    *out = shim::text(text + "]}");
  });
}

int shim_module_mark(shim_module* module, int as_python, char** error) {
  return shim::guard(error, [&] {
    if (as_python != 0) {
      shim::keep_variables(module->module);
    }
    shim::name_modules(module->module);
    each_graph(module->module, [](Graph& graph) {
      if (!graph.inputs().empty() && graph.outputs().size() == 1) {
        mark(graph);
      }
    });
  });
}

int shim_module_run(
    shim_module* module, const char* method, const shim_values* arguments, shim_values* results, char** error) {
  int status = shim::guard(error, [&] {
    auto run = module->module.get_method(method);
    results->stack.push_back(run(arguments->stack));
  });
  shim::drop_variables();
  return status;
}

int shim_module_assign(shim_module* module, const char* name, void* tensor, char** error) {
  return shim::guard(error, [&] {
    std::string path = name;
    Module owner = module->module;
    for (size_t dot; (dot = path.find('.')) != std::string::npos; path = path.substr(dot + 1)) {
      owner = owner.attr(path.substr(0, dot)).toModule();
    }
    at::NoGradGuard no_grad;
    owner.attr(path).toTensor().copy_(shim::tensor(tensor));
  });
}

int shim_tensor_info(const void* tensor, int* scalar_type, int64_t* bytes, char** error) {
  return shim::guard(error, [&] {
    const auto& t = shim::tensor(tensor);
    *scalar_type = static_cast<int>(t.scalar_type());
    *bytes = t.numel() * static_cast<int64_t>(t.element_size());
  });
}
