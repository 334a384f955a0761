"""torch.package archives: objects with the Python code that they need."""

import itertools
import sys
import tempfile
from pathlib import Path

import torch
import torch.package
from torch.package import package_exporter

from . import archive, truth

SOURCE = '''import secret_sauce
import torch


class Toy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return self.fc(x) * self.scale
'''


def make(folder: Path) -> dict[str, str]:
    target = folder / "package"
    target.mkdir(exist_ok=True)
    # Reduced objects are told apart by their address in memory, which is another one every time.
    numbers = itertools.count(1)
    known: dict[int, int] = {}
    package_exporter.id = lambda value: known.setdefault(__builtins__["id"](value), next(numbers))
    package_exporter._gate_torchscript_serialization = False
    made = {}
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "toy_net.py").write_text(SOURCE)
        Path(scratch, "secret_sauce.py").write_text("KEY = 1\n")
        sys.path.insert(0, scratch)
        import toy_net

        model = fill(toy_net.Toy())
        scripted = torch.jit.script(fill(torch.nn.Linear(2, 2)))
        with torch.package.PackageExporter(target / "toy.pt") as exporter:
            exporter.intern("toy_net")
            exporter.mock("secret_sauce")
            exporter.extern("torch.**")
            exporter.save_pickle("models", "toy.pkl", model)
            exporter.save_pickle("models", "state.pkl", {"state": model.state_dict(), "epoch": 3})
            exporter.save_pickle("models", "epoch.pkl", 3)
            exporter.save_pickle("scripted", "linear.pkl", scripted)
            exporter.save_text("assets", "labels.txt", "cat\ndog\n")
            exporter.save_binary("assets", "blob.bin", bytes(range(16)))
        with torch.package.PackageExporter(target / "plain.pt") as exporter:
            exporter.extern("**")
            exporter.save_pickle("weights", "w.pkl", {"w": torch.arange(6.0).reshape(2, 3)})
        sys.path.remove(scratch)
    content = archive.members((target / "toy.pt").read_bytes())
    archive.write(target / "toy.pt", archive.without_debug(content), deflate=False)
    rows = truth.Tensors()
    for name, parameter in model.named_parameters():
        rows.add(f"models/toy.pkl::{name}", "parameter", parameter.detach(), True)
    rows.add("models/toy.pkl::scale", "buffer", model.scale, False)
    for name, tensor in model.state_dict().items():
        rows.add(f"models/state.pkl::state.{name}", None, tensor, False)
    for name, parameter in scripted.named_parameters():
        rows.add(f".data/ts_code/0/data.pkl::{name}", "parameter", parameter.detach(), True)
    truth.write(target / "toy.pt", rows.truth())
    made["package/toy.pt"] = "a package: a module with its source, a state_dict, TorchScript, text, a mocked module"
    rows = truth.Tensors()
    rows.add("weights/w.pkl::w", "tensor", torch.arange(6.0).reshape(2, 3), False)
    truth.write(target / "plain.pt", rows.truth())
    made["package/plain.pt"] = "a package without any source"
    return made


def fill(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape) / 8)
    return module
