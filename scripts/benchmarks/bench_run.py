"""Running a model: `inspect FILE --input ...` against torchinfo, whole processes."""

from .core import Bench, benchmark

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
