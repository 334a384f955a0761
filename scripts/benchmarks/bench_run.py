"""Running a model: `inspect FILE --input ...` against torchinfo, whole processes."""

import os
import statistics
import subprocess
import time

from .core import Bench, Measured, benchmark

MAKE = """
import torch, torchvision
torch.manual_seed(0)
torch.jit.script(torchvision.models.{name}(weights=None).eval()).save(path)
"""
TORCHINFO = """
import torchvision, torchinfo
module = torchvision.models.{name}(weights=None).eval()
print(torchinfo.summary(module, (1, 3, 224, 224), verbose=0))
"""


def against_torchinfo(bench: Bench, name: str, flops: int, runs: int, faster: float, smaller: float | None) -> None:
    path = bench.made(f"{name}.pt", MAKE.format(name=name))
    run = bench.report(str(path), "--input", "1x3x224x224")["run"]
    if run["totals"]["flops"] != flops or run["outputs"][0]["shape"] != [1, 1000]:
        raise RuntimeError(f"{name} gave {run['totals']['flops']} FLOPs, {flops} are right")
    found = bench.compare(
        {
            "ours": [bench.inspect, str(path), "--input", "1x3x224x224"],
            "torchinfo": bench.python(TORCHINFO.format(name=name)),
        },
        runs,
    )
    bench.time(f"run {name} / torchinfo", found["ours"], found["torchinfo"], at_least=faster)
    bench.memory(f"run {name} / torchinfo", found["ours"], found["torchinfo"], at_least=smaller)


@benchmark
def run_resnet18(bench: Bench) -> None:
    """`inspect resnet18.pt --input 1x3x224x224` against torchinfo on the same model."""
    against_torchinfo(bench, "resnet18", 3_628_146_688, 10, 5, 2)


@benchmark
def run_resnet50(bench: Bench) -> None:
    """The same with resnet50."""
    against_torchinfo(bench, "resnet50", 8_178_368_512, 10, 3, None)


UNTRACED = """
import time, torch
torch._C._jit_set_profiling_executor(False)
torch._C._jit_set_profiling_mode(False)
torch._C._set_graph_executor_optimize(False)
module = torch.jit.load({path!r}).eval()
image = torch.randn(1, 3, 224, 224)
with torch.no_grad():
    start = time.perf_counter_ns()
    module(image)
    print(time.perf_counter_ns() - start)
"""


def traced(bench: Bench, name: str, runs: int) -> None:
    """The first forward in the engine, traced, against the first one of the same libtorch without a trace."""
    path = bench.made(f"{name}.pt", MAKE.format(name=name))
    found: dict[str, list[float]] = {"ours": [], "other": []}
    for turn in range(runs + 1):
        run = bench.report(str(path), "--input", "1x3x224x224", "--no-sim")["run"]
        # As the engine's threads wait, so that the trace is the only difference: spinning ones are faster on an idle machine.
        environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
        code = bench.python(UNTRACED.format(path=str(path)))
        plain = subprocess.run(code, check=True, capture_output=True, env=environment)
        if turn > 0:
            found["ours"].append(run["totals"]["time_ns"] / 1e6)
            found["other"].append(int(plain.stdout) / 1e6)
    ours, other = (Measured(statistics.median(found[side]), 0, 0) for side in ("ours", "other"))
    bench.time(f"forward {name}, traced / untraced", ours, other, at_most=1.10)


@benchmark
def trace_resnet50(bench: Bench) -> None:
    """A traced forward of resnet50 in the engine against an untraced one."""
    traced(bench, "resnet50", 3 if bench.quick else 9)


@benchmark
def trace_vit_b_16(bench: Bench) -> None:
    """The same with vit_b_16."""
    traced(bench, "vit_b_16", 3 if bench.quick else 9)


MANY = """
import torch
class Many(torch.nn.Module):
    def forward(self, x, n: int):
        for _ in range(n):
            x = (x * 1.0).relu()
        return x
torch.jit.script(Many()).save(path)
"""


@benchmark
def many_operators(bench: Bench) -> None:
    """From the trace of 100,000 operators to the report: what a whole run takes beyond its forward and a short run."""
    path = bench.made("many.pt", MANY)
    beyond = []
    for _ in range(3 if bench.quick else 7):
        walls = []
        for count in (1, 50_000):
            start = time.perf_counter()
            run = bench.report(str(path), "--input", "2", "--input", f"n={count}", "--no-sim")["run"]
            walls.append(time.perf_counter() - start - run["totals"]["time_ns"] / 1e9)
            if run["ops"]["total"] != 2 * count:
                raise RuntimeError(f"{run['ops']['total']} operators, {2 * count} are right")
        beyond.append(walls[1] - walls[0])
    bench.limit("report on 100,000 operators, beyond the run", statistics.median(beyond), 1.0, "s")
