"""What three training steps do to small models, with each optimizer of torch.optim in its default settings.

Each model is a TorchScript file in train/; the truth holds, for every optimizer and step, the loss and every parameter
as its sum and its first two elements. Nothing is random: dropout is off, the input is ones (token 0 where the model
takes tokens), the loss is the mean of the output.
"""

from pathlib import Path

import torch
from torch import nn

from . import models, truth

STEPS = 3
# As `--optimizer` names them. Momentum has no default in torch.optim that would be one: 0.9 is what everybody takes.
OPTIMIZERS = {
    "sgd": lambda parameters, **how: torch.optim.SGD(parameters, **how),
    "sgd-momentum": lambda parameters, **how: torch.optim.SGD(parameters, momentum=0.9, **how),
    "nesterov": lambda parameters, **how: torch.optim.SGD(parameters, momentum=0.9, nesterov=True, **how),
    "adam": lambda parameters, **how: torch.optim.Adam(parameters, **how),
    "adamw": lambda parameters, **how: torch.optim.AdamW(parameters, **how),
    "rmsprop": lambda parameters, **how: torch.optim.RMSprop(parameters, **how),
    "adagrad": lambda parameters, **how: torch.optim.Adagrad(parameters, **how),
}
# Name, class, input option, input.
MODELS = [
    ("mlp", models.Mlp, "2x16@ones", torch.ones(2, 16)),
    ("cnn", models.TinyCnn, "1x3x32x32@ones", torch.ones(1, 3, 32, 32)),
    ("lstm", models.LstmTagger, "1x12:int64@zeros", torch.zeros(1, 12, dtype=torch.int64)),
    ("transformer", models.Encoder, "2x6x16@ones", torch.ones(2, 6, 16)),
]


def make(folder: Path) -> dict[str, str]:
    made: dict[str, str] = {}
    target = folder / "train"
    target.mkdir(exist_ok=True)
    for name, kind, spec, value in MODELS:
        facts = truth.of_module(fresh(kind))
        facts["train"] = {"input": [spec], "loss": "mean", "steps": STEPS}
        facts["train"]["optimizers"] = {optimizer: runs(kind, optimizer, value) for optimizer in OPTIMIZERS}
        inner: dict[str, str] = {}
        models.put(target, inner, f"{name}.pt", torch.jit.script(fresh(kind)), facts, f"three training steps of a small {name}")
        made |= {f"train/{path}": text for path, text in inner.items()}
    return made


def fresh(kind: type) -> nn.Module:
    module = models.fill(kind())
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
        if isinstance(child, nn.MultiheadAttention):
            child.dropout = 0.0
    return module.train()


def runs(kind: type, optimizer: str, value: torch.Tensor) -> dict:
    """The default implementation of the CPU (a loop over tensors), and how far the multi-tensor one is from it."""
    module = fresh(kind)
    stepper = OPTIMIZERS[optimizer](module.parameters())
    steps = [step(module, stepper, value) for _ in range(STEPS)]
    precise = fresh(kind).double()
    precise_stepper = OPTIMIZERS[optimizer](precise.parameters())
    exact = value.double() if value.is_floating_point() else value
    for _ in range(STEPS):
        step(precise, precise_stepper, exact)
    rounding = distance(module, precise)
    other = fresh(kind)
    other_stepper = OPTIMIZERS[optimizer](other.parameters(), foreach=True)
    for _ in range(STEPS):
        step(other, other_stepper, value)
    return {
        "defaults": {key: item for key, item in stepper.defaults.items() if isinstance(item, (int, float, tuple)) or item is None},
        "state": state_of(stepper),
        "steps": steps,
        "rounding": rounding,
        "foreach_distance": max(distance(module, other).values()),
    }


def step(module: nn.Module, optimizer: torch.optim.Optimizer, value: torch.Tensor) -> dict:
    optimizer.zero_grad(set_to_none=True)
    loss = module(value).mean()
    loss.backward()
    optimizer.step()
    parameters = {name: summary(tensor) for name, tensor in module.named_parameters()}
    return {"loss": loss.item(), "parameters": parameters}


def summary(tensor: torch.Tensor) -> list[float]:
    flat = tensor.detach().double().flatten()
    return [flat.sum().item(), *flat[:2].tolist()]


def state_of(optimizer: torch.optim.Optimizer) -> dict:
    """Kinds of state with their tensors: what the optimizer adds to the memory."""
    kinds: dict[str, dict] = {}
    for state in optimizer.state.values():
        for kind, tensor in state.items():
            if isinstance(tensor, torch.Tensor):
                line = kinds.setdefault(kind, {"tensors": 0, "bytes": 0, "dtype": truth.dtype_name(tensor.dtype)})
                line["tensors"] += 1
                line["bytes"] += tensor.numel() * tensor.element_size()
    return kinds


def distance(left: nn.Module, right: nn.Module) -> dict[str, float]:
    """The largest difference of any element, by parameter."""
    pairs = zip(left.named_parameters(), right.named_parameters(), strict=True)
    return {name: float((a.double() - b.double()).abs().max()) for (name, a), (_, b) in pairs}
