"""Listing a file: `inspect FILE` against loading it in Python, and against only reading the same bytes."""

import struct
import zipfile
from pathlib import Path

from .core import Bench, benchmark

STATE = """
import torch
torch.save({{f"layers.{{i // 4}}.part{{i % 4}}.weight": torch.full(({size},), float(i)) for i in range({count})}}, path)
"""
# 24 tensors of 256 MiB whose bytes are holes in the file.
SPARSE = """
import torch
with torch.serialization.skip_data():
    torch.save({f"layers.{i}.weight": torch.empty(8192, 8192) for i in range(24)}, path)
"""
SAFETENSORS = """
import torch, safetensors.torch
safetensors.torch.save_file({f"layers.{i}.weight": torch.full((300, 500), float(i)) for i in range(150)}, path)
"""
LOAD = "import torch; torch.load({path!r}, mmap=True, weights_only=True)"
JIT_LOAD = "import torch; torch.jit.load({path!r})"
SAFE_OPEN = """
from safetensors import safe_open
with safe_open({path!r}, framework="pt") as file:
    for name in file.keys():
        file.get_slice(name).get_shape()
"""


def zip_ranges(path: Path) -> list[tuple[int, int]]:
    """What must be read to list the tensors safely: the end of the archive from its directory on, the pickle, and the
    header before every record, which must not contradict the directory."""
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        directory = archive.start_dir
    size = path.stat().st_size
    ranges = [(directory, size - directory)]
    for info in infos:
        more = info.compress_size + 64 if info.filename.endswith("/data.pkl") else 0
        ranges.append((info.header_offset, 30 + len(info.filename.encode()) + more))
    return ranges


def safetensors_ranges(path: Path) -> list[tuple[int, int]]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
    return [(0, 8 + length)]


def listing(
    bench: Bench, what: str, path: Path, tensors: int, python: str, ranges: list[tuple[int, int]] | None, *, runs: int = 25
) -> None:
    found_tensors = len(bench.report(str(path))["tensors"])
    if found_tensors != tensors:
        raise RuntimeError(f"inspect lists {found_tensors} tensors in {path.name}, there are {tensors}")
    commands = {"ours": [bench.inspect, str(path)], "python": bench.python(python.format(path=str(path)))}
    if ranges is not None:
        packed = path.with_suffix(".ranges")
        packed.write_bytes(b"".join(struct.pack("<QQ", *pair) for pair in ranges))
        commands["floor"] = [str(bench.work / "read_ranges"), str(path), str(packed)]
    found = bench.compare(commands, runs)
    loader = "safe_open" if "safe_open" in python else "torch.jit.load" if "jit" in python else "torch.load"
    bench.time(f"list {what} / {loader}", found["ours"], found["python"], at_least=100)
    bench.memory(f"list {what} / {loader}", found["ours"], found["python"])
    if ranges is not None:
        bench.time(f"list {what} / reading the bytes", found["ours"], found["floor"], at_most=3)
    bench.limit(f"list {what}", found["ours"].wall_ms, 10, "ms")


@benchmark
def list_resnet18(bench: Bench) -> None:
    """`inspect resnet18.pt` without an input against torch.jit.load."""
    from .bench_run import MAKE

    listing(bench, "resnet18.pt", bench.made("resnet18.pt", MAKE.format(name="resnet18")), 122, JIT_LOAD, None)


@benchmark
def list_1000(bench: Bench) -> None:
    """A state_dict with 1,000 tensors."""
    path = bench.made("state_1000.pt", STATE.format(count=1000, size=1024))
    listing(bench, "1,000 tensors", path, 1000, LOAD, zip_ranges(path))


@benchmark
def list_50000(bench: Bench) -> None:
    """A state_dict with 50,000 tensors."""
    path = bench.made("state_50000.pt", STATE.format(count=50_000, size=16))
    listing(bench, "50,000 tensors", path, 50_000, LOAD, zip_ranges(path), runs=10)


@benchmark
def list_sparse_6gb(bench: Bench) -> None:
    """A 6 GB file, most of it holes."""
    path = bench.made("sparse_6gb.pt", SPARSE)
    listing(bench, "6 GB", path, 24, LOAD, zip_ranges(path))


@benchmark
def list_safetensors(bench: Bench) -> None:
    """A 90 MB safetensors file against safe_open."""
    path = bench.made("state.safetensors", SAFETENSORS)
    listing(bench, "90 MB safetensors", path, 150, SAFE_OPEN, safetensors_ranges(path))
