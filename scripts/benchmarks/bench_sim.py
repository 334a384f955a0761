"""The simulated CUDA device: whole processes, against the run on the CPU and against limits of its own."""

import os
import subprocess
import sys
from pathlib import Path

from .core import Bench, benchmark

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# A decoder-only language model of 3.2 billion parameters, all zero: in the file they are holes.
LARGE = """
import sys
sys.path.insert(0, {scripts!r})
import torch
import cuda_sim_models
from torch.nn import init
for name in ("kaiming_uniform_", "uniform_", "normal_", "ones_"):
    setattr(init, name, lambda tensor, *_, **__: tensor)
torch.jit.script(cuda_sim_models.Gpt(32_000, 2560, 32, 40).eval()).save(path)
"""


def networks():
    """The networks of the comparison with Python; naming the benchmarks needs no torch."""
    import cuda_sim_models

    return cuda_sim_models


def arguments(name: str, batch: int) -> list[str]:
    return [argument for dims in networks().INPUTS[name] for argument in ("--input", f"{batch}x{dims}")]


def reserved(bench: Bench, *command: str) -> int:
    return bench.report(*command)["estimate"]["peak_reserved_bytes"]


@benchmark
def sim_networks(bench: Bench) -> None:
    """Every network of the comparison with Python at batch 8: simulated, and really run on the CPU."""
    for name in networks().INPUTS:
        command = [str(networks().made(name, bench.work)), *arguments(name, 8)]
        reserved(bench, *command, "--device", "cuda-sim")
        found = bench.compare(
            {
                "sim": [bench.inspect, *command, "--device", "cuda-sim"],
                "cpu": [bench.inspect, *command, "--no-sim"],
            },
            3,
        )
        bench.time(f"simulate {name}, batch 8 / CPU run", found["sim"], found["cpu"])
        bench.memory(f"simulate {name}, batch 8 / CPU run", found["sim"], found["cpu"])


def within(bench: Bench, what: str, command: list[str], seconds: float, megabytes: float | None) -> None:
    reserved(bench, *command)
    found = bench.compare({"sim": [bench.inspect, *command]}, 5)["sim"]
    bench.limit(f"simulate {what}", found.wall_ms / 1000, seconds, "s")
    if megabytes is not None:
        bench.limit(f"simulate {what}, peak RSS", found.rss_mb, megabytes, "MB")


@benchmark
def sim_resnet18(bench: Bench) -> None:
    """resnet18: under half a second."""
    path = str(networks().made("resnet18", bench.work))
    within(bench, "resnet18", [path, "--input", "1x3x224x224", "--device", "cuda-sim"], 0.5, None)


@benchmark
def sim_large_batch(bench: Bench) -> None:
    """resnet50, training at batch 256: under 2 s and 1 GB of host memory."""
    path = str(networks().made("resnet50", bench.work))
    command = [path, "--input", "256x3x224x224", "--device", "cuda-sim", "--train", "--optimizer", "adamw"]
    within(bench, "resnet50 training, batch 256", command, 2, 1000)


@benchmark
def sim_large_model(bench: Bench) -> None:
    """A transformer with 3.2 billion parameters: under 2 s and 1 GB of host memory."""
    holes = bench.work / "holes.so"
    source = Path(__file__).with_name("holes.c")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", holes, source, "-ldl"], check=True)
    os.environ["LD_PRELOAD"] = str(holes)
    try:
        path = bench.made("transformer_3b.pt", LARGE.format(scripts=str(Path(__file__).resolve().parent.parent)))
    finally:
        del os.environ["LD_PRELOAD"]
    command = [str(path), "--input", "1x512:int64", "--device", "cuda-sim", "--profile", "h100"]
    within(bench, "3.2 billion parameters", command, 2, 1000)
    within(bench, "3.2 billion parameters, training", [*command, "--train", "--optimizer", "adamw"], 2, 1000)
