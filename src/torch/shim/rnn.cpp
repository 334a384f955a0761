// The weights of recurrent networks in one block, as nn.RNNBase.flatten_parameters makes it whenever an eager module is
// moved to CUDA. A TorchScript module that is moved keeps them apart, and cuDNN's path then copies them in every call.

#include "common.h"

#include <ATen/ops/_cudnn_rnn_flatten_weight.h>

#include <optional>

namespace {

using torch::jit::Module;

// cuDNN's numbers; the nonlinearity of a plain RNN changes no size.
std::optional<int64_t> cudnn_mode(const Module& m) {
  const auto& name = m.type()->name();
  if (!name || name->qualifiedName().find("torch.nn.modules.rnn") == std::string::npos) {
    return std::nullopt;
  }
  if (name->name() == "LSTM") {
    return 2;
  }
  if (name->name() == "GRU") {
    return 3;
  }
  return name->name() == "RNN" ? std::optional<int64_t>(1) : std::nullopt;
}

bool takes(const at::Tensor& t, const at::Tensor& first) {
  return t.is_cuda() && t.scalar_type() == first.scalar_type() &&
      (t.scalar_type() == at::kFloat || t.scalar_type() == at::kHalf || t.scalar_type() == at::kDouble ||
       t.scalar_type() == at::kBFloat16);
}

} // namespace

void shim::flatten_rnn_weights(const Module& m) {
  auto mode = cudnn_mode(m);
  if (!mode) {
    return;
  }
  std::vector<at::Tensor> weights;
  auto take = [&](const std::string& name) {
    if (!m.hasattr(name) || !m.attr(name).isTensor()) {
      return false;
    }
    weights.push_back(m.attr(name).toTensor());
    return true;
  };
  int64_t layers = 0, per_layer = 0;
  bool bidirectional = false;
  for (; m.hasattr("weight_ih_l" + std::to_string(layers)); layers++) {
    for (const char* direction : {"", "_reverse"}) {
      std::string suffix = "_l" + std::to_string(layers) + direction;
      size_t before = weights.size();
      for (const char* part : {"weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"}) {
        take(part + suffix);
      }
      if (weights.size() > before) {
        per_layer = static_cast<int64_t>(weights.size() - before);
        bidirectional = bidirectional || direction[0] != '\0';
      }
    }
  }
  if (layers == 0 || per_layer < 2) {
    return;
  }
  for (const auto& weight : weights) {
    if (!takes(weight, weights[0])) {
      return;
    }
  }
  int64_t gates = *mode == 2 ? 4 : *mode == 3 ? 3 : 1;
  int64_t hidden = weights[0].size(0) / gates;
  bool projects = m.hasattr("weight_hr_l0");
  at::NoGradGuard no_grad;
  at::_cudnn_rnn_flatten_weight(
      weights, per_layer, weights[0].size(1), *mode, hidden, projects ? weights[1].size(1) : 0, layers,
      /*batch_first=*/false, bidirectional);
}
