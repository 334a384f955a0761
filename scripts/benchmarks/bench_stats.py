"""Reading all data: `--stats`, `--verify` and `--hash` against only hashing the same bytes with `sha256sum`."""

from .core import Bench, benchmark

MAKE = """
import torch
torch.manual_seed(0)
torch.save({{f"layers.{{i}}.weight": torch.randn(2048, 2048).to(torch.{dtype}) for i in range(32)}}, path)
"""


def against_sha256sum(bench: Bench, dtype: str) -> None:
    path = bench.made(f"stats_{dtype}.pt", MAKE.format(dtype=dtype))
    tensors = bench.report(str(path), "--stats")["tensors"]
    if len(tensors) != 32 or any(tensor["stats"]["std"] is None for tensor in tensors):
        raise RuntimeError(f"inspect has no statistics of some tensors in {path.name}")
    commands = {"ours": [bench.inspect, str(path), "--stats"], "sha256sum": ["sha256sum", str(path)]}
    found = bench.compare(commands, 10)
    bench.time(f"--stats of {dtype} / sha256sum", found["ours"], found["sha256sum"], at_most=1)


@benchmark
def stats_float32(bench: Bench) -> None:
    """Statistics of 512 MiB of float32 against sha256sum."""
    against_sha256sum(bench, "float32")


@benchmark
def stats_bfloat16(bench: Bench) -> None:
    """Statistics of 256 MiB of bfloat16 against sha256sum."""
    against_sha256sum(bench, "bfloat16")


@benchmark
def stats_float16(bench: Bench) -> None:
    """Statistics of 256 MiB of float16 against sha256sum."""
    against_sha256sum(bench, "float16")


def whole_file(bench: Bench, option: str) -> None:
    path = bench.made("stats_float32.pt", MAKE.format(dtype="float32"))
    report = bench.report(str(path), option)
    if option == "--verify" and report["verified"]["damaged"] != 0:
        raise RuntimeError("the file is damaged")
    if option == "--hash" and any(storage["hash"] is None for storage in report["storages"]):
        raise RuntimeError("inspect has no hash of some storages")
    commands = {"ours": [bench.inspect, str(path), option], "sha256sum": ["sha256sum", str(path)]}
    found = bench.compare(commands, 10)
    bench.time(f"{option} / sha256sum", found["ours"], found["sha256sum"], at_most=1)


@benchmark
def data_verify(bench: Bench) -> None:
    """Checksums of 512 MiB against sha256sum."""
    whole_file(bench, "--verify")


@benchmark
def data_hash(bench: Bench) -> None:
    """Content hashes of 512 MiB against sha256sum."""
    whole_file(bench, "--hash")
