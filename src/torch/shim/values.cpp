// Values: the arguments and results of methods and operators.

#include "common.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <sstream>

namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

std::vector<IValue> take(shim_values* values, size_t count) {
  TORCH_CHECK(count <= values->stack.size(), "expected ", count, " values on the stack, found ", values->stack.size());
  auto first = values->stack.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<IValue> taken(std::make_move_iterator(first), std::make_move_iterator(values->stack.end()));
  values->stack.erase(first, values->stack.end());
  return taken;
}

std::string shown(const IValue& v) {
  if (v.isTensor()) {
    return "a tensor";
  }
  if (v.isTuple()) {
    return "a list";
  }
  if (v.isGenericDict()) {
    return "a dict";
  }
  std::ostringstream out;
  out << '`' << v << '`';
  return out.str();
}

[[noreturn]] void mismatch(const TypePtr& wanted, const IValue& v) {
  TORCH_CHECK(false, "expected ", wanted->annotation_str(), ", got ", shown(v));
}

IValue fit(const TypePtr& type, IValue v);

IValue fit_list(const TypePtr& type, const IValue& v) {
  auto element = type->containedType(0);
  if (!v.isTuple()) {
    mismatch(type, v);
  }
  c10::impl::GenericList list(element);
  for (const auto& item : v.toTupleRef().elements()) {
    list.push_back(fit(element, item));
  }
  return list;
}

IValue fit_tuple(const TypePtr& type, const IValue& v) {
  auto elements = type->containedTypes();
  if (!v.isTuple() || v.toTupleRef().elements().size() != elements.size()) {
    mismatch(type, v);
  }
  std::vector<IValue> items;
  size_t i = 0;
  for (const auto& item : v.toTupleRef().elements()) {
    items.push_back(fit(elements[i++], item));
  }
  auto tuple_type = type->cast<c10::TupleType>();
  return tuple_type && tuple_type->schema() ? IValue(c10::ivalue::Tuple::createNamed(std::move(items), tuple_type))
                                            : IValue(c10::ivalue::Tuple::create(std::move(items)));
}

IValue fit_dict(const TypePtr& type, const IValue& v) {
  if (!v.isGenericDict()) {
    mismatch(type, v);
  }
  auto key = type->containedType(0), value = type->containedType(1);
  c10::impl::GenericDict dict(key, value);
  for (const auto& entry : v.toGenericDict()) {
    dict.insert(fit(key, entry.key()), fit(value, entry.value()));
  }
  return dict;
}

IValue fit_any_of(const TypePtr& type, const IValue& v) {
  for (const auto& option : type->containedTypes()) {
    try {
      return fit(option, v);
    } catch (const c10::Error&) {
    }
  }
  mismatch(type, v);
}

// Makes `v` what `type` wants: lists and tuples come as tuples, numbers as int or float.
IValue fit(const TypePtr& type, IValue v) {
  switch (type->kind()) {
    case TypeKind::AnyType:
      return v;
    case TypeKind::OptionalType:
      return v.isNone() ? v : fit(type->expectRef<c10::OptionalType>().getElementType(), std::move(v));
    case TypeKind::UnionType:
      return fit_any_of(type, v);
    case TypeKind::ListType:
      return fit_list(type, v);
    case TypeKind::TupleType:
      return fit_tuple(type, v);
    case TypeKind::DictType:
      return fit_dict(type, v);
    case TypeKind::FloatType:
      return v.isInt() ? IValue(static_cast<double>(v.toInt())) : v.isDouble() ? v : (mismatch(type, v), v);
    case TypeKind::DeviceObjType:
      return v.isString() ? IValue(c10::Device(v.toStringRef())) : (mismatch(type, v), v);
    default:
      if (!v.type()->isSubtypeOf(*type)) {
        mismatch(type, v);
      }
      return v;
  }
}

const c10::Argument& argument(shim_module* module, const char* method, size_t index) {
  const auto& all = module->module.get_method(method).function().getSchema().arguments();
  TORCH_CHECK(index + 1 < all.size(), "the method has ", all.size() - 1, " arguments, none number ", index);
  return all[index + 1];
}

} // namespace

namespace shim {

namespace {

// Field names of a named tuple. Asking for the type of a tuple that holds an undefined tensor is an error in libtorch
// (`_native_multi_head_attention` returns one); such a tuple has indices only.
std::vector<std::string> field_names(const c10::ivalue::Tuple& tuple) {
  std::vector<std::string> names;
  try {
    auto type = tuple.type();
    if (type && type->schema()) {
      for (const auto& argument : type->schema()->arguments()) {
        names.push_back(argument.name());
      }
    }
  } catch (const c10::Error&) {
    names.clear();
  }
  return names;
}

} // namespace

namespace {

constexpr int kDeepest = 200;

// Lists of numbers hold no tensors, and may be long.
bool holds_no_tensors(const IValue& v) {
  return v.isIntList() || v.isDoubleList() || v.isBoolList() || v.isComplexDoubleList();
}

void visit_at(const IValue& v, const std::string& path, const TensorVisitor& visit, int depth) {
  TORCH_CHECK(depth < kDeepest, "a value of the model is nested more than ", kDeepest, " levels deep");
  auto visit_tensors = [&](const IValue& inner, const std::string& inner_path, const TensorVisitor&) {
    visit_at(inner, inner_path, visit, depth + 1);
  };
  auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  if (v.isTensor()) {
    if (v.toTensor().defined()) {
      visit(path, v.toTensor());
    }
  } else if (v.isList() && !holds_no_tensors(v)) {
    size_t i = 0;
    for (const auto& item : v.toListRef()) {
      visit_tensors(item, below(std::to_string(i++)), visit);
    }
  } else if (v.isTuple()) {
    const auto& tuple = v.toTupleRef();
    auto names = field_names(tuple);
    size_t i = 0;
    for (const auto& item : tuple.elements()) {
      visit_tensors(item, below(i < names.size() ? names[i] : std::to_string(i)), visit);
      i++;
    }
  } else if (v.isGenericDict()) {
    for (const auto& entry : v.toGenericDict()) {
      std::ostringstream key;
      if (entry.key().isString()) {
        key << entry.key().toStringRef();
      } else {
        key << entry.key();
      }
      visit_tensors(entry.value(), below(key.str()), visit);
    }
  } else if (v.isObject() && !v.isModule()) {
    const auto& object = v.toObjectRef();
    for (size_t i = 0; i < object.slots().size(); i++) {
      visit_tensors(object.getSlot(i), below(object.type()->getAttributeName(i)), visit);
    }
  }
}

} // namespace

void visit_tensors(const IValue& v, const std::string& path, const TensorVisitor& visit) {
  constexpr size_t kMost = 1000000;
  size_t count = 0;
  visit_at(
      v, path,
      [&](const std::string& at, const at::Tensor& t) {
        TORCH_CHECK(++count <= kMost, "the model returned more than ", kMost, " tensors at once");
        visit(at, t);
      },
      0);
}

} // namespace shim

namespace {

// A value as `--input` writes it.
void write_spec(std::string& out, const IValue& v, int depth) {
  constexpr size_t kLongest = 500;
  if (out.size() > kLongest || depth > 8) {
    out += "…";
    return;
  }
  auto many = [&](char open, char close, size_t count, auto&& each) {
    out += open;
    for (size_t i = 0; i < count && out.size() <= kLongest; i++) {
      out += i == 0 ? "" : ", ";
      each(i);
    }
    out += out.size() > kLongest ? std::string("…") + close : std::string(1, close);
  };
  if (v.isTensor()) {
    const auto& t = v.toTensor();
    if (!t.defined()) {
      out += "none";
    } else if (t.is_nested()) {
      out += "nested";
    } else {
      const char* between = "";
      out += t.dim() == 0 ? "[]" : "";
      for (int64_t size : t.sizes()) {
        out += between + std::to_string(size);
        between = "x";
      }
      out += ":" + c10::getDtypeNames(t.scalar_type()).first;
    }
  } else if (v.isNone()) {
    out += "none";
  } else if (v.isBool()) {
    out += v.toBool() ? "true" : "false";
  } else if (v.isString()) {
    const auto& s = v.toStringRef();
    out += s.size() > kLongest ? s.substr(0, kLongest) + "…" : s;
  } else if (v.isList()) {
    auto items = v.toList();
    many('[', ']', items.size(), [&](size_t i) { write_spec(out, items.get(i), depth + 1); });
  } else if (v.isTuple()) {
    const auto& items = v.toTupleRef().elements();
    many('(', ')', items.size(), [&](size_t i) { write_spec(out, items[i], depth + 1); });
  } else if (v.isGenericDict()) {
    auto dict = v.toGenericDict();
    auto entry = dict.begin();
    many('{', '}', dict.size(), [&](size_t) {
      write_spec(out, entry->key(), depth + 1);
      out += ": ";
      write_spec(out, entry->value(), depth + 1);
      ++entry;
    });
  } else if (v.isObject() || v.isCapsule() || v.isPyObject()) {
    out += v.tagKind();
  } else {
    std::ostringstream number;
    number.precision(15);
    if (v.isDouble()) {
      number << v.toDouble();
    } else {
      number << v;
    }
    out += number.str();
  }
}

} // namespace

shim_values* shim_values_new(void) { return new (std::nothrow) shim_values; }
void shim_values_free(shim_values* values) { delete values; }

int shim_values_push_none(shim_values* values, char** error) {
  return shim::guard(error, [&] { values->stack.emplace_back(); });
}
int shim_values_push_tensor(shim_values* values, const void* tensor, char** error) {
  return shim::guard(error, [&] { values->stack.emplace_back(shim::tensor(tensor)); });
}
int shim_values_push_int(shim_values* values, int64_t value, char** error) {
  return shim::guard(error, [&] { values->stack.emplace_back(value); });
}
int shim_values_push_double(shim_values* values, double value, char** error) {
  return shim::guard(error, [&] { values->stack.emplace_back(value); });
}
int shim_values_push_bool(shim_values* values, int value, char** error) {
  return shim::guard(error, [&] { values->stack.emplace_back(value != 0); });
}
int shim_values_push_text(shim_values* values, const char* text, char** error) {
  return shim::guard(error, [&] { values->stack.emplace_back(std::string(text)); });
}

int shim_values_tuple(shim_values* values, size_t count, char** error) {
  return shim::guard(error, [&] {
    auto items = take(values, count);
    values->stack.emplace_back(c10::ivalue::Tuple::create(std::move(items)));
  });
}

int shim_values_dict(shim_values* values, size_t count, char** error) {
  return shim::guard(error, [&] {
    auto items = take(values, 2 * count);
    c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
    for (size_t i = 0; i < items.size(); i += 2) {
      dict.insert(items[i], items[i + 1]);
    }
    values->stack.emplace_back(std::move(dict));
  });
}

int shim_values_tensor_list(shim_values* values, size_t count, char** error) {
  return shim::guard(error, [&] {
    c10::List<at::Tensor> list;
    for (auto& item : take(values, count)) {
      list.push_back(std::move(item).toTensor());
    }
    values->stack.emplace_back(std::move(list));
  });
}

int shim_values_scalar_list(shim_values* values, size_t count, char** error) {
  return shim::guard(error, [&] {
    c10::List<c10::Scalar> list;
    for (auto& item : take(values, count)) {
      list.push_back(item.toScalar());
    }
    values->stack.emplace_back(std::move(list));
  });
}

int shim_values_wrap_number(shim_values* values, char** error) {
  return shim::guard(error, [&] {
    auto number = take(values, 1);
    at::Tensor wrapped = c10::scalar_to_tensor(number[0].toScalar());
    wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
    values->stack.emplace_back(std::move(wrapped));
  });
}

int shim_values_push_default(shim_values* values, shim_module* module, const char* method, size_t index, char** error) {
  return shim::guard(error, [&] {
    const auto& a = argument(module, method, index);
    TORCH_CHECK(a.default_value().has_value(), "missing argument `", a.name(), "` of type ", a.type()->annotation_str());
    values->stack.push_back(*a.default_value());
  });
}

int shim_values_fit(shim_values* values, shim_module* module, const char* method, size_t index, char** error) {
  return shim::guard(error, [&] {
    auto& value = values->stack.at(index);
    value = fit(argument(module, method, index).type(), value);
  });
}

int shim_values_text(const shim_values* values, size_t index, char** out, char** error) {
  return shim::guard(error, [&] {
    std::string text;
    write_spec(text, values->stack.at(index), 0);
    *out = shim::text(text);
  });
}

int shim_values_visit(
    const shim_values* values, int64_t index, shim_output_visitor visit, void* context, char** error) {
  return shim::guard(error, [&] {
    auto each = [&](const IValue& value, const std::string& root) {
      shim::visit_tensors(value, root, [&](const std::string& path, const at::Tensor& t) {
        at::Tensor copy = t;
        visit(context, path.c_str(), &copy);
      });
    };
    if (index >= 0) {
      each(values->stack.at(static_cast<size_t>(index)), "");
      return;
    }
    size_t i = 0;
    for (const auto& value : values->stack) {
      each(value, values->stack.size() == 1 ? "" : std::to_string(i++));
    }
  });
}

int shim_values_call(shim_values* values, const char* op, const char* overload, char** error) {
  return shim::guard(error, [&] {
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op, overload);
    const auto& arguments = handle.schema().arguments();
    for (size_t i = values->stack.size(); i < arguments.size(); i++) {
      TORCH_CHECK(arguments[i].default_value(), op, " needs argument `", arguments[i].name(), "`");
      values->stack.push_back(*arguments[i].default_value());
    }
    handle.callBoxed(values->stack);
  });
}
