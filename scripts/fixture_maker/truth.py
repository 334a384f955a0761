"""What Python's torch says about tensors, modules and runs, in the words of the JSON report."""

import json
from collections import Counter
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Tensors:
    """Rows for tensors; equal `storage` numbers mean shared memory, numbered as they are first met."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.storages: dict[int, dict] = {}
        self._kept: list = []

    def add(self, name: str, role: str | None, tensor: torch.Tensor, requires_grad: bool | None = None) -> None:
        row = {
            "name": name,
            "role": role,
            "dtype": dtype_name(tensor.dtype),
            "shape": list(tensor.shape),
            "numel": tensor.numel(),
            "bytes": tensor.numel() * tensor.element_size(),
            "requires_grad": requires_grad,
        }
        if tensor.layout == torch.strided and tensor.device.type != "meta":
            storage = tensor.untyped_storage()
            # Empty storages have no address, and are nobody's but their own.
            key = storage._cdata if storage.nbytes() == 0 else storage.data_ptr()
            self._kept.append(storage)
            known = self.storages.setdefault(key, {"id": len(self.storages), "bytes": storage.nbytes(), "tensors": 0})
            known["tensors"] += 1
            row |= {
                "strides": list(tensor.stride()),
                "storage": known["id"],
                "storage_offset": tensor.storage_offset(),
            }
        else:
            row |= {"strides": None, "storage": None, "storage_offset": None}
        self.rows.append(row)

    def truth(self) -> dict:
        by_role: dict[str, dict] = {}
        by_dtype: dict[str, dict] = {}
        for row in self.rows:
            for table, key in ((by_role, row["role"]), (by_dtype, row["dtype"])):
                if key is None:
                    continue
                line = table.setdefault(key, {"tensors": 0, "numel": 0, "bytes": 0})
                line["tensors"] += 1
                line["numel"] += row["numel"]
                line["bytes"] += row["bytes"]
        return {
            "tensors": self.rows,
            "storages": list(self.storages.values()),
            "totals": {
                "tensors": len(self.rows),
                "numel": sum(row["numel"] for row in self.rows),
                "tensor_bytes": sum(row["bytes"] for row in self.rows),
                "storage_bytes": sum(storage["bytes"] for storage in self.storages.values()),
                "by_role": None if any(row["role"] is None for row in self.rows) else by_role,
                "by_dtype": by_dtype,
            },
        }


def of_module(module: torch.nn.Module) -> dict:
    """Parameters and buffers under every name they have, in the order of `named_parameters` and `named_buffers`."""
    tensors = Tensors()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        tensors.add(name, "parameter", parameter.detach(), parameter.requires_grad)
    for name, buffer in module.named_buffers(remove_duplicate=False):
        tensors.add(name, "buffer", buffer, False)
    return tensors.truth()


def outputs(value: object, path: str = "") -> list[dict]:
    """Every tensor in what a module returned, named by its place: `0`, `out`, `1.hidden`."""
    if isinstance(value, torch.Tensor):
        size = value.numel() * value.element_size()
        return [{"path": path, "dtype": dtype_name(value.dtype), "shape": list(value.shape), "bytes": size}]
    if isinstance(value, dict):
        places = list(value.items())
    elif isinstance(value, (tuple, list)):
        places = list(enumerate(value))
    else:
        return []
    return [row for key, item in places for row in outputs(item, f"{path}.{key}" if path else str(key))]


def count_flops(module: torch.nn.Module, arguments: tuple) -> tuple[int, dict[str, int]]:
    """FLOPs of a forward, in all and per module (its children's included).

    PyTorch's counter knows no formula for the fused attention of the CPU, so that is switched off here and counted as
    the matrix products that it stands for.
    """
    torch.backends.mha.set_fastpath_enabled(False)
    counter = FlopCounterMode(display=False, depth=None)
    try:
        with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), counter:
            module(*arguments)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    counts = counter.get_flop_counts()
    top = type(module).__name__
    per_module = {}
    for name, kinds in counts.items():
        if name.startswith(top + "."):
            per_module[name.removeprefix(top + ".")] = sum(kinds.values())
    return counter.get_total_flops(), per_module


def of_run(module: torch.nn.Module, arguments: tuple, specs: list[str], *, flops: bool = True) -> dict:
    """One forward of the eager module in eval mode without gradients: calls, shapes, FLOPs."""
    module.eval()
    calls: Counter = Counter()
    shapes: dict[str, list] = {}
    names: dict[int, str] = {}
    for name, child in module.named_modules():
        names[id(child)] = name

    def hook(child: torch.nn.Module, _arguments: object, value: object) -> None:
        path = names[id(child)]
        calls[path] += 1
        rows = [{key: row[key] for key in ("dtype", "shape", "bytes")} for row in outputs(value)]
        if shapes.setdefault(path, rows) != rows:
            shapes[path] = rows  # a module called with several shapes: the last one

    handles = [child.register_forward_hook(hook) for child in module.modules()]
    with torch.no_grad():
        value = module(*arguments)
    for handle in handles:
        handle.remove()
    total, per_module = count_flops(module, arguments) if flops else (None, {})
    seen: set[int] = set()
    rows = []
    for path, child in module.named_modules():
        own = [p for p in child.parameters(recurse=False) if id(p) not in seen and not seen.add(id(p))]
        rows.append(
            {
                "path": path,
                "class": type(child).__name__,
                "calls": calls[path],
                "outputs": shapes.get(path, []),
                "parameters": {"numel": sum(p.numel() for p in own), "bytes": sum(p.numel() * p.element_size() for p in own)},
                "flops": per_module.get(path, 0) if flops and path else total,
            }
        )
    return {"input": specs, "outputs": outputs(value), "modules": rows, "flops": total, "macs": None if total is None else total // 2}


def write(path: Path, truth: dict) -> None:
    """Compact, yet one row a line, so that a change can be read in a diff."""
    path.with_name(path.name + ".truth.json").write_text(dump(truth) + "\n")


def dump(value: object, indent: int = 0) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    if indent >= 4 or len(flat) < 100 or not value:
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        inner = f",\n{pad}".join(f"{json.dumps(key, ensure_ascii=False)}: {dump(item, indent + 1)}" for key, item in value.items())
        return f"{{\n{pad}{inner}\n{' ' * indent}}}"
    if isinstance(value, list):
        inner = f",\n{pad}".join(dump(item, indent + 4) for item in value)
        return f"[\n{pad}{inner}\n{' ' * indent}]"
    return flat
