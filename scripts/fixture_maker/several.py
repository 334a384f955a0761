"""Checkpoints that are several files: an index with its shards, as safetensors and as torch.save writes them."""

import json
from pathlib import Path

import safetensors.torch
import torch

from . import files, models, truth


def make(folder: Path) -> dict[str, str]:
    made: dict[str, str] = {}
    sharded(folder, made, "sharded/safetensors", "model", "safetensors")
    sharded(folder, made, "sharded/bin", "pytorch_model", "bin")
    return made


def sharded(folder: Path, made: dict, where: str, stem: str, ending: str) -> None:
    """Two shards and their index, laid out and named as `save_pretrained` does."""
    target = folder / where
    target.mkdir(parents=True, exist_ok=True)
    state = dict(models.fill(models.TinyCnn()).state_dict())
    names = sorted(state)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    weight_map = {}
    rows = truth.Tensors()
    sizes = {}
    for number, half in enumerate(halves, start=1):
        shard = f"{stem}-{number:05}-of-{len(halves):05}.{ending}"
        part = {name: state[name] for name in half}
        if ending == "safetensors":
            safetensors.torch.save_file(part, target / shard, metadata={"format": "pt"})
            part = safetensors.torch.load_file(target / shard)
        else:
            torch.save(part, target / shard)
            part = torch.load(target / shard, weights_only=True)
        for name, tensor in part.items():
            weight_map[name] = shard
            grad = tensor.requires_grad if ending == "bin" else None
            rows.add(name, files.state_role(name), tensor, grad)
        sizes[shard] = (target / shard).stat().st_size
        made[f"{where}/{shard}"] = f"shard {number} of {len(halves)}"
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    name = f"{stem}.{ending}.index.json"
    (target / name).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    sizes[name] = (target / name).stat().st_size
    truth.write(target / name, rows.truth() | {"files": sizes})
    made[f"{where}/{name}"] = "an index of two shards"
