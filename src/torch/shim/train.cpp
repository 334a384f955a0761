// What a training step needs of tensors beside operators.

#include "common.h"

#include <ATen/native/ForeachUtils.h>

int shim_tensor_identity(const void* tensor, uintptr_t* identity, char** error) {
  return shim::guard(
      error, [&] { *identity = reinterpret_cast<uintptr_t>(shim::tensor(tensor).unsafeGetTensorImpl()); });
}

int shim_tensor_clear_grad(const void* tensor, char** error) {
  return shim::guard(error, [&] { shim::tensor(tensor).mutable_grad().reset(); });
}

int shim_group_tensors(const void* const* tensors, size_t count, size_t* groups, char** error) {
  return shim::guard(error, [&] {
    at::native::nested_optional_tensorvec_t lists(1);
    for (size_t i = 0; i < count; i++) {
      lists[0].emplace_back(shim::tensor(tensors[i]));
    }
    size_t place = 0;
    for (const auto& group : at::native::_group_tensors_by_first_tensors_device_and_dtype(lists, true)) {
      for (size_t index : group.second.second) {
        groups[index] = place;
      }
      place++;
    }
  });
}
