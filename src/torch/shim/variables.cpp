// The lifetimes of an eager Python module, kept beside a TorchScript run.
//
// The interpreter drops a value after its last use. Python keeps it as long as a variable of a running function names
// it, and nn.Module.__call__ keeps what a module was called with until it returns. The names are in the graphs: what
// the archive's code assigns to a variable has its name, and `x`, `x0`, `x6` there are one `x` assigned three times.
// So every function's graph gets three kinds of marks: `frame` where it begins, `bind` behind every value with a name,
// `unframe` where it ends. They hold references in tables of their own and change neither the order of operators nor
// what the interpreter does.
//
// Known differences: `del` leaves no trace in TorchScript; where an archive lacks the Python code that it was compiled
// from, a variable `x1` of the author's own, assigned beside `x`, is taken for `x` assigned anew.

#include "common.h"

#include <torch/csrc/jit/runtime/custom_operator.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace {

using c10::IValue;
using torch::jit::Block;
using torch::jit::Function;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Operator;
using torch::jit::Stack;
using torch::jit::Value;

// What a function that has not returned keeps alive.
struct PythonFrame {
  std::vector<IValue> arguments; // of a module's call: held to its end, whatever the function assigns
  std::vector<IValue> variables;
};

// By number, not by thread: a function that waited for a fork may go on in another thread.
struct Frames {
  std::mutex mutex;
  std::unordered_map<int64_t, PythonFrame> open;
  int64_t next = 0;
};

Frames& frames() {
  static Frames* all = new Frames; // never destroyed: threads may outlive main
  return *all;
}

void bind(int64_t frame, int64_t slot, IValue value) {
  auto& all = frames();
  IValue old; // dropped after the lock is
  std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.open.find(frame);
  if (found == all.open.end()) {
    return;
  }
  auto& variables = found->second.variables;
  auto at = static_cast<size_t>(slot);
  if (variables.size() <= at) {
    variables.resize(at + 1);
  }
  old = std::exchange(variables[at], std::move(value));
}

torch::jit::RegisterOperators variable_marks({
    Operator(
        "inspect::frame() -> int",
        [](Stack& stack) {
          auto& all = frames();
          std::lock_guard<std::mutex> lock(all.mutex);
          int64_t number = all.next++;
          all.open.try_emplace(number);
          torch::jit::push(stack, number);
        },
        c10::AliasAnalysisKind::CONSERVATIVE),
    Operator(
        "inspect::argument(int frame, Any value) -> ()",
        [](Stack& stack) {
          IValue value = torch::jit::pop(stack);
          int64_t frame = torch::jit::pop(stack).toInt();
          auto& all = frames();
          std::lock_guard<std::mutex> lock(all.mutex);
          if (auto found = all.open.find(frame); found != all.open.end()) {
            found->second.arguments.push_back(std::move(value));
          }
        },
        c10::AliasAnalysisKind::CONSERVATIVE),
    Operator(
        "inspect::bind(int frame, int slot, Any value) -> ()",
        [](Stack& stack) {
          IValue value = torch::jit::pop(stack);
          int64_t slot = torch::jit::pop(stack).toInt();
          int64_t frame = torch::jit::pop(stack).toInt();
          bind(frame, slot, std::move(value));
        },
        c10::AliasAnalysisKind::CONSERVATIVE),
    Operator(
        "inspect::unframe(int frame, Any result) -> ()",
        [](Stack& stack) {
          torch::jit::pop(stack);
          int64_t frame = torch::jit::pop(stack).toInt();
          auto& all = frames();
          PythonFrame ended; // dropped after the lock is
          std::lock_guard<std::mutex> lock(all.mutex);
          if (auto found = all.open.find(frame); found != all.open.end()) {
            ended = std::move(found->second);
            all.open.erase(found);
          }
        },
        c10::AliasAnalysisKind::CONSERVATIVE),
});

// ---- which values are variables

void each_value(const Block& block, const std::function<void(const Value*)>& visit) {
  for (const Value* input : block.inputs()) {
    visit(input);
  }
  for (const Node* node : block.nodes()) {
    for (const Block* inner : node->blocks()) {
      each_value(*inner, visit);
    }
    for (const Value* output : node->outputs()) {
      visit(output);
    }
  }
}

bool is_number(const std::string& s, size_t from) {
  return from < s.size() && std::all_of(s.begin() + static_cast<std::ptrdiff_t>(from), s.end(), [](unsigned char c) {
           return std::isdigit(c) != 0;
         });
}

// The identifiers in the Python code that TorchScript was compiled from, where the archive has it (its debug records).
class Identifiers {
 public:
  void of(const Graph& graph) { of(*graph.block()); }

  bool contain(const std::string& name) const { return names_.count(name) != 0; }

 private:
  void of(const Block& block) {
    for (const Node* node : block.nodes()) {
      auto range = node->sourceRange().findSourceRangeThatGenerated();
      if (range && range->source() && seen_.insert(range->source().get()).second) {
        sources_.push_back(range->source());
        words(range->source()->text_str().str());
      }
      for (const Block* inner : node->blocks()) {
        of(*inner);
      }
    }
  }

  void words(const std::string& text) {
    auto in_word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
    for (auto at = text.begin(); at != text.end();) {
      auto end = std::find_if_not(at, text.end(), in_word);
      if (end == at) {
        ++at;
        continue;
      }
      names_.emplace(at, end);
      at = end;
    }
  }

  std::set<std::string> names_;
  std::set<const torch::jit::Source*> seen_;
  std::vector<std::shared_ptr<torch::jit::Source>> sources_; // so that no address is used twice
};

bool may_hold_memory(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::UnionType:
      return true;
    case c10::TypeKind::ClassType:
      return !type->is_module();
    default: {
      auto inner = type->containedTypes();
      return std::any_of(inner.begin(), inner.end(), [](const auto& one) { return may_hold_memory(one); });
    }
  }
}

// The variables of one function, by the names that its code has.
class Variables {
 public:
  explicit Variables(const Graph& graph) {
    written_.of(graph);
    each_value(*graph.block(), [&](const Value* value) {
      if (value->hasDebugName()) {
        names_.insert(value->debugNameBase());
      }
    });
  }

  // Whether the code has a name for a value; `_0` is none.
  bool named(const Value* value) const {
    if (!value->hasDebugName()) {
      return false;
    }
    std::string name = value->debugNameBase();
    return !name.empty() && !is_number(name, 0) && !(name[0] == '_' && is_number(name, 1));
  }

  // The place of a value's variable; -1 for what the code only computes on the way. Some variables have lost their
  // names: what is unpacked beside a named value was assigned to `_`, and an expression is used once, so that what is
  // used in several places had a name.
  int64_t slot(const Value* value, bool unpacked) {
    std::string name;
    if (named(value)) {
      name = variable(value->debugNameBase());
    } else if (unpacked) {
      name = "_";
    } else if (used_often(value)) {
      name = "_" + value->debugName();
    } else {
      return -1;
    }
    return slots_.try_emplace(name, static_cast<int64_t>(slots_.size())).first->second;
  }

 private:
  // Questions about a value (its size, its dtype) are no uses: what TorchScript asks for itself is among them.
  static bool used_often(const Value* value) {
    std::set<const Node*> users;
    for (const auto& use : value->uses()) {
      auto outputs = use.user->outputs();
      bool asks = !outputs.empty() &&
          std::none_of(outputs.begin(), outputs.end(), [](const Value* one) { return may_hold_memory(one->type()); });
      if (!asks) {
        users.insert(use.user);
      }
    }
    return users.size() > 1;
  }

  // Code is written with a number behind a name that was taken: a second `x` is `x0` or `x6`.
  std::string variable(const std::string& name) const {
    if (written_.contain(name)) {
      return name;
    }
    std::string shortest = name;
    for (size_t end = name.size(); end > 1 && is_number(name, end - 1); end--) {
      std::string base = name.substr(0, end - 1);
      if (written_.contain(base)) {
        return base;
      }
      if (names_.count(base) != 0) {
        shortest = base;
      }
    }
    return shortest;
  }

  Identifiers written_;
  std::set<std::string> names_;
  std::map<std::string, int64_t> slots_;
};

// Puts the marks into one graph.
class Marker {
 public:
  Marker(Graph& graph, bool is_module_call) : graph_(graph), variables_(graph), is_module_call_(is_module_call) {}

  void mark() {
    frame_ = graph_.create(c10::Symbol::fromQualString("inspect::frame"), {}, 1)->output();
    frame_->setType(c10::IntType::get());
    // What is walked are the graph's own nodes: the marks come in as the walk goes on.
    block(*graph_.block());
    graph_.prependNode(frame_->node());
    graph_.appendNode(
        graph_.create(c10::Symbol::fromQualString("inspect::unframe"), {frame_, graph_.outputs().at(0)}, 0));
  }

 private:
  void block(Block& block) {
    std::vector<Node*> nodes(block.nodes().begin(), block.nodes().end());
    torch::jit::WithInsertPoint at_start(*block.nodes().begin());
    for (Value* input : block.inputs()) {
      if (is_module_call_ && &block == graph_.block() && may_hold_memory(input->type())) {
        insert("inspect::argument", {frame_, input});
      }
      bind(input);
    }
    for (Node* node : nodes) {
      for (Block* inner : node->blocks()) {
        this->block(*inner);
      }
      torch::jit::WithInsertPoint behind(node->next());
      if (node->kind() != c10::prim::Constant) {
        bool unpacks = node->outputs().size() > 1 &&
            std::any_of(node->outputs().begin(), node->outputs().end(), [&](Value* one) { return variables_.named(one); });
        for (Value* output : node->outputs()) {
          bind(output, unpacks);
        }
      }
    }
  }

  void bind(Value* value, bool unpacked = false) {
    int64_t slot = may_hold_memory(value->type()) ? variables_.slot(value, unpacked) : -1;
    if (slot >= 0) {
      insert("inspect::bind", {frame_, graph_.insertConstant(slot), value});
    }
  }

  void insert(const char* mark, at::ArrayRef<Value*> inputs) {
    graph_.insertNode(graph_.create(c10::Symbol::fromQualString(mark), inputs, 0));
  }

  Graph& graph_;
  Variables variables_;
  bool is_module_call_;
  Value* frame_ = nullptr;
};

// Marks a function and those that it calls, each once.
class Walk {
 public:
  void function(Function& function, bool is_module_call) {
    if (!function.isGraphFunction() || !seen_.insert(&function).second) {
      return;
    }
    function.ensure_defined();
    Graph& graph = *torch::jit::toGraphFunction(function).graph();
    if (graph.outputs().size() != 1) {
      return;
    }
    calls(*graph.block());
    Marker(graph, is_module_call).mark();
  }

 private:
  // Functions and methods of classes; modules' methods are met on their own.
  void calls(const Block& block) {
    for (const Node* node : block.nodes()) {
      if (node->kind() == c10::prim::CallFunction) {
        if (auto type = node->input(0)->type()->cast<c10::FunctionType>()) {
          function(*type->function(), false);
        }
      } else if (node->kind() == c10::prim::CallMethod) {
        if (auto type = node->input(0)->type()->cast<c10::ClassType>(); type && !type->is_module()) {
          if (auto* method = type->findMethod(node->s(c10::attr::name))) {
            function(*method, false);
          }
        }
      }
      for (const Block* inner : node->blocks()) {
        calls(*inner);
      }
    }
  }

  std::set<const Function*> seen_;
};

} // namespace

namespace shim {

void keep_variables(const torch::jit::Module& root) {
  Walk walk;
  each_method(root, [&](torch::jit::Function& function) { walk.function(function, function.name() == "forward"); });
}

void drop_variables() {
  auto& all = frames();
  std::unordered_map<int64_t, PythonFrame> open; // dropped after the lock is
  std::lock_guard<std::mutex> lock(all.mutex);
  open.swap(all.open);
}

} // namespace shim
