"""Real networks of torchvision, small enough to commit: their weights are zeros in deflated archives."""

import io
from pathlib import Path

import torch
import torchvision

from . import archive, files, truth

IMAGE = "1x3x224x224"
# Scripted as torchvision builds them. What the published figures say is checked here, not only measured.
SCRIPTED = {
    "resnet18": {"parameters": 11_689_512, "flops": 3_628_146_688},
    "mobilenet_v3_small": {"parameters": 2_542_856, "flops": None},
    "vit_b_16": {"parameters": 86_567_656, "flops": None},
    "vgg16": {"parameters": 138_357_544, "flops": 30_940_528_640},
}
# PyTorch's counter is right about the backward of these: no convolution in them is grouped.
BACKWARD_IS_COUNTED = {"resnet18", "vgg16"}


def make(folder: Path) -> dict[str, str]:
    descriptions = {}
    for name, published in SCRIPTED.items():
        module = zeroed(name)
        image = torch.zeros(1, 3, 224, 224)
        save(folder / f"{name}.pt", torch.jit.script(module), name)
        facts = truth.of_module(module) | {"run": truth.of_run(module, (image,), [IMAGE])}
        if name == "vit_b_16":
            facts["run"] |= attention_truth(module, image, facts["run"]["flops"])
        if name in BACKWARD_IS_COUNTED:
            facts["run"]["backward_flops"] = backward_flops(module, image, facts["run"]["flops"])
        assert facts["totals"]["by_role"]["parameter"]["numel"] == published["parameters"], name
        assert published["flops"] in (None, facts["run"]["flops"]), (name, facts["run"]["flops"])
        truth.write(folder / f"{name}.pt", facts)
        descriptions[f"{name}.pt"] = f"torchvision {name}, scripted; weights are zeros"
        if name == "resnet18":
            save(folder / "resnet18_traced.pt", torch.jit.trace(module, image, check_trace=False), name)
            truth.write(folder / "resnet18_traced.pt", facts)
            descriptions["resnet18_traced.pt"] = "torchvision resnet18, traced; weights are zeros"
            buffer = io.BytesIO()
            torch.save(module.state_dict(), buffer)
            archive.write(folder / "resnet18_state.pth", archive.rename_root(archive.members(buffer.getvalue()), "resnet18"))
            truth.write(folder / "resnet18_state.pth", files.rows_of(module.state_dict(), files.state_role).truth())
            descriptions["resnet18_state.pth"] = "torch.save of resnet18's state_dict; weights are zeros"
    return descriptions


def zeroed(name: str) -> torch.nn.Module:
    module = getattr(torchvision.models, name)(weights=None).eval()
    with torch.no_grad():
        for tensor in list(module.parameters()) + list(module.buffers()):
            tensor.zero_()
    return module


def save(path: Path, script: torch.jit.ScriptModule, root: str) -> None:
    content = archive.without_debug(archive.members(script.save_to_buffer()))
    archive.write(path, archive.rename_root(content, root))
    torch.jit.load(path)  # libtorch reads what was written


def attention_truth(module: torch.nn.Module, image: torch.Tensor, counted: int) -> dict:
    """vit_b_16 by hand, and what a counter says that misses its fused attention."""
    tokens, width, mlp, layers, heads = 197, 768, 3072, 12, 12
    per_layer = (
        2 * tokens * width * 3 * width  # projections of query, key and value
        + 2 * 2 * heads * tokens * tokens * (width // heads)  # scores, and their product with the values
        + 2 * tokens * width * width  # output projection
        + 2 * 2 * tokens * width * mlp  # the two layers of the MLP
    )
    patches = 2 * 196 * width * 3 * 16 * 16
    by_hand = layers * per_layer + patches + 2 * width * 1000
    assert by_hand == counted, (by_hand, counted)
    with torch.no_grad(), truth.FlopCounterMode(display=False) as counter:
        module(image)
    return {"flops_without_fused_attention": counter.get_total_flops()}


def backward_flops(module: torch.nn.Module, image: torch.Tensor, forward: int) -> int:
    """Of a training step: batch norm in training mode, no gradient for the image."""
    module.train()
    with truth.FlopCounterMode(display=False) as counter:
        module(image).mean().backward()
    module.eval()
    return counter.get_total_flops() - forward
