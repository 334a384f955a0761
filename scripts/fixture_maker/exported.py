"""Exported programs, in today's layout and in those of earlier torch."""

import zipfile
from pathlib import Path

import torch
from torch import nn
from torch._export.serde.serialize import serialize

from . import models, truth


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn(self.conv(x))) + x


class Net(nn.Module):
    """A module called twice, tied weights, a buffer that is not saved, a constant, outputs in a dict and a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.layers = nn.Sequential(Block(), nn.Identity())
        self.fc = nn.Linear(8, 4)
        self.head = nn.Linear(8, 4)
        self.head.weight = self.fc.weight
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("shift", torch.full((4,), 0.5), persistent=False)
        self.constant = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: torch.Tensor, gain: float = 0.5) -> dict:
        x = self.layers(self.layers(self.stem(x)))
        x = x.mean((2, 3))
        first, second = torch.split(x, 4, dim=1)
        y = self.fc(x) * gain * self.scale + self.constant + self.shift
        return {"y": y, "z": (self.head(x), first, second.argmax(1))}


class Counter(nn.Module):
    """Changes a buffer, and computes with the size that is open."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        rows = x.shape[0] * 2
        grown = torch.cat([x, x]).reshape(rows, 6)
        return self.fc(grown).sum(0) / rows + self.calls


class Attention(nn.Module):
    """What transformers are made of, with an index and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(1))
        self.register_buffer("mask", torch.triu(torch.full((8, 8), float("-inf")), diagonal=1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, src_mask=self.mask)
        return x[:, torch.tensor([0, 3])]


def numbers(shape: tuple) -> torch.Tensor:
    """Values between -1 and 1 that differ from place to place."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
    return (((places * 37) % 101 - 50) / 50).reshape(shape)


def make(folder: Path) -> dict[str, str]:
    made: dict[str, str] = {}
    (folder / "exported").mkdir(exist_ok=True)
    batch = torch.export.Dim("batch", min=1, max=64)
    net = models.fill(Net()).eval()
    image = numbers((2, 3, 16, 16))
    program = torch.export.export(net, (image,), dynamic_shapes={"x": {0: batch}})
    save(folder, made, "net", program, (image,), "tied weights, constants, a module called twice, an open batch")
    counter = models.fill(Counter()).eval()
    rows = numbers((4, 6))
    program = torch.export.export(counter, (rows,), dynamic_shapes={"x": {0: batch}})
    save(folder, made, "counter", program, (rows,), "a buffer that changes, arithmetic with an open size")
    attention = models.fill(Attention()).eval()
    tokens = torch.arange(16).reshape(2, 8) * 3
    program = torch.export.export(attention, (tokens,))
    save(folder, made, "attention", program, (tokens,), "a transformer")
    cnn = models.fill(models.TinyCnn()).eval()
    image = numbers((1, 3, 8, 8))
    save(folder, made, "tiny_cnn", torch.export.export(cnn, (image,)), (image,), "the network of tiny_cnn.pt")
    decomposed = torch.export.export(cnn, (image,)).run_decompositions()
    save(folder, made, "tiny_cnn_core", decomposed, (image,), "the same network in core ATen operators")
    earlier(folder, made, torch.export.export(cnn, (image,)))
    return made


def save(folder: Path, made: dict, name: str, program, inputs: tuple, text: str) -> None:
    forget_sources(program)
    path = folder / "exported" / f"{name}.pt2"
    torch.export.save(program, path)
    describe(path, program, program.module()(*inputs))
    made[f"exported/{name}.pt2"] = f"torch.export.save: {text}"


def forget_sources(program) -> None:
    """Where in which file on this machine each operator was written."""
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)


def describe(path: Path, program, outputs) -> None:
    rows = truth.Tensors()
    signature = program.graph_signature
    names = list(program.state_dict)
    for name in names:
        tensor = program.state_dict[name]
        role = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        rows.add(name, role, tensor, tensor.requires_grad)
    others = {**program.constants}
    for name in others:
        role = "buffer" if name in signature.non_persistent_buffers else "constant"
        rows.add(name, role, others[name], others[name].requires_grad)
    flat = torch.utils._pytree.tree_leaves(outputs)
    facts = {
        "nodes": sum(node.op == "call_function" and "getitem" not in str(node.target) for node in program.graph.nodes),
        "outputs": [[round(float(value), 4) for value in output.detach().flatten().tolist()] for output in flat],
    }
    truth.write(path, rows.truth() | {"program": facts})


def earlier(folder: Path, made: dict, program) -> None:
    """The layouts of torch 2.5 to 2.7, and of 2.8, around what today's torch serializes."""
    forget_sources(program)
    artifact = serialize(program)
    path = folder / "exported" / "torch_2_5.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {
            "serialized_exported_program.json": artifact.exported_program,
            "serialized_state_dict.pt": artifact.state_dict,
            "serialized_constants.pt": artifact.constants,
            "serialized_example_inputs.pt": artifact.example_inputs,
            "version": b"8.4",
        }.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    made["exported/torch_2_5.pt2"] = "an exported program as torch 2.5 to 2.7 laid it out"
    path = folder / "exported" / "torch_2_8.pt2"
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, data in {
        "archive_format": b"pt2",
        "archive_version": b"0",
        "models/model.json": artifact.exported_program,
        "data/weights/model.pt": artifact.state_dict,
        "data/constants/model.pt": artifact.constants,
        "data/sample_inputs/model.pt": artifact.example_inputs,
    }.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    made["exported/torch_2_8.pt2"] = "an exported program as torch 2.8 laid it out"
