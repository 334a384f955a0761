"""The estimate from a CPU's run against PyTorch's own CUDA code on the simulated device."""

import statistics

from .core import Bench, benchmark

MAKE = """
import torch, torchvision
torch.manual_seed(0)
torch.jit.script(torchvision.models.{name}(weights=None).eval()).save(path)
"""
ENCODER = """
import torch
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
torch.jit.script(torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()).save(path)
"""
IMAGES = [
    "resnet18",
    "resnet34",
    "resnet50",
    "vgg16",
    "mobilenet_v3_small",
    "densenet121",
    "efficientnet_b0",
    "vit_b_16",
    "swin_t",
    "convnext_tiny",
]
WAYS = {"inference": [], "sgd": ["--train"], "adamw": ["--train", "--optimizer", "adamw"]}


def errors(bench: Bench, name: str, path: str, shape: str) -> list[tuple[str, float, float]]:
    """For each way to run: what it is, and the errors of peak allocated and peak reserved."""
    found = []
    for way, options in WAYS.items():
        for batch in (1, 8):
            arguments = [path, "--input", f"{batch}x{shape}", *options, "--threads", "1"]
            real = bench.report(*arguments, "--device", "cuda-sim")["estimate"]
            if way != "inference" and real is None:
                continue
            report = bench.report(*arguments, "--basis", "cpu-trace")["estimate"]
            if real is None or report is None:
                continue
            assert (real["basis"], report["basis"]) == ("cuda-sim", "cpu-trace")

            def error(key: str) -> float:
                return report[key] / real[key] - 1

            found.append((f"{name} {way} b={batch}", error("peak_allocated_bytes"), error("peak_reserved_bytes")))
    return found


@benchmark
def accuracy_of_cpu_traces(bench: Bench) -> None:
    """Peak allocated and reserved from a CPU's run, as errors against the simulated device."""
    found = []
    for name in IMAGES:
        path = bench.made(f"{name}.pt", MAKE.format(name=name))
        found += errors(bench, name, str(path), "3x224x224")
    path = bench.made("encoder.pt", ENCODER)
    found += errors(bench, "encoder", str(path), "64x256")
    for name, allocated, reserved in found:
        print(f"{name:34} allocated {allocated:+7.1%}  reserved {reserved:+7.1%}")
    for kind, column in (("allocated", 1), ("reserved", 2)):
        sizes = [abs(row[column]) * 100 for row in found]
        bench.limit(f"cpu-trace {kind}, median error", statistics.median(sizes), 5, "%")
        bench.limit(f"cpu-trace {kind}, worst error", max(sizes), 15, "%")
