#!/usr/bin/env python3
"""Compares the engine's runs with Python's torch, allocation by allocation.

    scripts/setup --full && scripts/test   # builds engine and stand-ins
    PYTHONPATH=.libtorch python3 scripts/compare_cuda_sim.py [--device cpu] [--cc 8.9] [PATTERN...]

Both run the same TorchScript file: Python with the loop that users write, the engine on the same request. On the
simulated CUDA device (the default) both preload the same stand-in libraries, and what is compared is the sequence of
allocations and frees with their sizes, the segments, and the peaks of allocated and reserved. On the CPU it is the
sequence of allocations and frees. One line a case; the first difference is shown; the exit code is 1 where there is
one. PATTERN limits the run to cases whose name contains it.

`--models FOLDER` adds the networks of scripts/cuda_sim_models.py, which it makes there when they are missing, and runs
of the same networks as eager Python modules, against the engine with the lifetimes of Python's variables: those need
not be the same, their peak may differ by 1 %.
"""

import argparse
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
OPTIMIZERS = ["sgd", "sgd-momentum", "nesterov", "adam", "adamw", "rmsprop", "adagrad"]
LOOP = ["sgd", "sgd-momentum", "adamw", "rmsprop", "adagrad"]
FUSED = ["sgd", "sgd-momentum", "nesterov", "adam", "adamw"]


def case(file: str, spec: str, mode: str = "inference", **options: object) -> dict:
    name = " ".join([file, spec, mode] + [f"{key}={value}" for key, value in options.items()])
    return {"name": name, "file": str(FIXTURES / file), "spec": spec, "mode": mode} | options


def cuda_cases() -> list[dict]:
    image = "8x3x224x224"
    cases = []
    for file, one, eight in [
        ("resnet18.pt", "1x3x224x224", image),
        ("vgg16.pt", "1x3x224x224", image),
        ("mobilenet_v3_small.pt", "1x3x224x224", image),
        ("vit_b_16.pt", "1x3x224x224", image),
        ("lstm_tagger.pt", "1x12:int64", "8x12:int64"),
        ("transformer_encoder.pt", "1x6x16", "8x6x16"),
    ]:
        cases += [case(file, one), case(file, eight)]
        cases += [case(file, eight, optimizer) for optimizer in LOOP]
    small = "train/cnn.pt", "4x3x32x32"
    for implementation, optimizers in [("foreach", OPTIMIZERS), ("loop", OPTIMIZERS), ("fused", FUSED)]:
        cases += [case(*small, optimizer, implementation=implementation) for optimizer in optimizers]
    cases += [case("resnet18.pt", image, "adamw", implementation=how) for how in ("loop", "fused")]
    cases += [case("resnet18.pt", image, "adamw", loss="cross_entropy"), case("resnet18.pt", image, "adamw", loss="sum")]
    cases += [case(file, image, "adamw", autocast="bfloat16") for file in ("resnet18.pt", "vit_b_16.pt")]
    cases += [case(file, image, autocast="bfloat16") for file in ("resnet18.pt", "vit_b_16.pt")]
    cases += [case("resnet18.pt", image, cast="float16"), case("resnet18.pt", image, "adamw", cast="bfloat16")]
    return cases


def model_cases(folder: Path) -> list[dict]:
    """The networks of cuda_sim_models, as TorchScript files and as eager modules."""
    import cuda_sim_models as models

    def one(name: str, batch: int, mode: str = "inference", **options: object) -> dict:
        spec = " ".join(f"{batch}x{dims}" for dims in models.INPUTS[name])
        made = case(f"{name}.pt", spec, mode, **options)
        return made | {"file": str(models.made(name, folder)), "network": name}

    cases = []
    for name in [*models.IMAGES, *models.OWN]:
        cases += [one(name, 1), one(name, 8)]
        cases += [one(name, 8, optimizer) for optimizer in LOOP]
    for name in ["gpt", "resnet50"]:
        cases += [one(name, 8, autocast="bfloat16"), one(name, 8, "adamw", autocast="bfloat16")]
    for name in models.INPUTS:
        cases += [one(name, 1, eager=True), one(name, 8, eager=True), one(name, 8, "adamw", eager=True)]
    return cases


def cpu_cases() -> list[dict]:
    cases = []
    for file, spec in [
        ("train/mlp.pt", "2x16"),
        ("train/cnn.pt", "1x3x32x32"),
        ("train/lstm.pt", "1x12:int64"),
        ("train/transformer.pt", "2x6x16"),
    ]:
        cases.append(case(file, spec))
        for implementation in ("loop", "foreach", "fused"):
            for optimizer in OPTIMIZERS:
                if implementation != "fused" or optimizer != "rmsprop":
                    cases.append(case(file, spec, optimizer, implementation=implementation))
    cases += [case("train/mlp.pt", "2x16", autocast="bfloat16"), case("train/mlp.pt", "2x16", "adamw", autocast="bfloat16")]
    cases += [case("train/mlp.pt", "2x16", cast="float64"), case("train/mlp.pt", "2x16", "adamw", cast="bfloat16")]
    return cases


# ---- the engine's side


def tensor_specs(one: dict) -> list[dict]:
    return [tensor_spec(spec, one.get("cast")) for spec in one["spec"].split()]


def tensor_spec(spec: str, cast: str | None) -> dict:
    dims, _, dtype = spec.partition(":")
    dtype = dtype or cast
    return {"text": spec, "dims": [int(size) for size in dims.split("x")], "dtype": dtype or None, "fill": "zeros"}


def request(one: dict, device: str) -> dict:
    arguments = []
    for tensor in tensor_specs(one):
        text = tensor.pop("text")
        arguments.append({"name": None, "value": {"spec": {"text": text, "tensor": tensor, "scalar": None}}})
    mode: object = "inference"
    if one["mode"] != "inference":
        mode = {
            "training": {
                "optimizer": one["mode"],
                "implementation": one.get("implementation"),
                "loss": one.get("loss", "mean"),
                "steps": one.get("steps", 2),
            }
        }
    run = {
        "do": "run",
        "file": one["file"],
        "weights": None,
        "method": "forward",
        "inputs": {"arguments": arguments},
        "mode": mode,
        "device": "cuda-sim" if device == "cuda" else "cpu",
        "cast": one.get("cast"),
        "autocast": one.get("autocast"),
        "seed": 0,
        "alloc_conf": None,
        "lifetimes": "python" if one.get("eager") else "torchscript",
    }
    return {"protocol": 1, "task": run, "threads": 1}


def engine_side(engine: Path, one: dict, device: str, environment: dict) -> dict:
    run = subprocess.run([engine], input=json.dumps(request(one, device)) + "\n", capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    last = lines[-1] if lines else {}
    if last.get("type") != "done":
        return {"error": last.get("message") or f"exit code {run.returncode}: {run.stderr[-300:]}"}
    events: list[tuple] = []
    end = 0
    peaks = {"allocated": 0, "reserved": 0}
    for line in lines:
        if "alloc" in line:
            events.append(("alloc", line["alloc"]["bytes"], line["alloc"]["id"]))
        elif "free" in line:
            events.append(("free", None, line["free"]["id"]))
        elif "segment" in line:
            events.append((f"segment_{line['segment']['action']}", line["segment"]["bytes"], None))
        elif "phase" in line and device == "cpu" and line["phase"]["name"] == "inputs":
            events.clear()  # Python's side begins after loading
        elif "phase_end" in line:
            end = len(events)  # what is freed later is freed by leaving, in whatever order
            for key, peak in peaks.items():
                stats = line["phase_end"].get("stats") or {}
                peaks[key] = max(peak, stats.get(f"{key}_bytes", {}).get("peak", 0))
    return {"events": events[:end], "peaks": peaks}


# ---- Python's side


def python_side(one: dict, device: str) -> dict:
    """In a process of its own: CUDA has not been touched yet."""
    import torch

    torch._C._jit_set_profiling_mode(False)
    torch._C._jit_set_profiling_executor(False)
    torch._C._set_graph_executor_optimize(False)
    torch.set_num_threads(1)
    training = one["mode"] != "inference"

    def load() -> torch.nn.Module:
        if one.get("eager"):
            import cuda_sim_models as models

            module = models.build(one["network"])
        else:
            module = torch.jit.load(one["file"])
        if one.get("cast"):
            module = module.to(getattr(torch, one["cast"]))
        if device == "cuda":
            module.cuda()
        return module.train(training)

    def run(module: torch.nn.Module) -> tuple:
        """Returns what is alive at the end, so that it is alive when the events are read."""
        x = [
            torch.zeros(spec["dims"], device=device, dtype=getattr(torch, spec["dtype"] or "float32"))
            for spec in tensor_specs(one)
        ]
        autocast = torch.autocast(device, dtype=getattr(torch, one.get("autocast", "bfloat16")), enabled="autocast" in one)
        if not training:
            with torch.no_grad(), autocast:
                y = module(*x)
            return module, x, y
        optimizer = make_optimizer(one, module)
        for _ in range(one.get("steps", 2)):
            optimizer.zero_grad()
            with autocast:
                y = module(*x)
                loss = make_loss(one.get("loss", "mean"), y)
            loss.backward()
            optimizer.step()
        return module, x, y, loss, optimizer

    if device == "cuda":
        torch.cuda.init()
        torch.cuda.memory._record_memory_history(context=None)
        alive = run(load())
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        del alive
        return {"events": cuda_events(trace), "peaks": peaks}
    module = load()
    with torch.profiler.profile(profile_memory=True, record_shapes=False) as profile:
        alive = run(module)
    del alive
    return {"events": cpu_events(profile), "peaks": {"allocated": 0, "reserved": 0}}


def make_optimizer(one: dict, module: object) -> object:
    import torch

    how = {}
    if one.get("implementation"):
        how = {"foreach": one["implementation"] == "foreach"}
        if one["mode"] != "rmsprop":
            how["fused"] = one["implementation"] == "fused"
    kinds = {
        "sgd": (torch.optim.SGD, {}),
        "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9}),
        "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        "adam": (torch.optim.Adam, {}),
        "adamw": (torch.optim.AdamW, {}),
        "rmsprop": (torch.optim.RMSprop, {}),
        "adagrad": (torch.optim.Adagrad, {}),
    }
    kind, options = kinds[one["mode"]]
    return kind(module.parameters(), **options, **how)


def make_loss(kind: str, y: object) -> object:
    import torch

    if kind == "cross_entropy":
        shape = [size for index, size in enumerate(y.shape) if index != (1 if y.dim() > 1 else 0)]
        return torch.nn.functional.cross_entropy(y, torch.zeros(shape, dtype=torch.int64, device=y.device))
    return y.sum() if kind == "sum" else y.mean()


def cuda_events(trace: list[dict]) -> list[tuple]:
    events, live, count = [], {}, 0
    for entry in trace:
        action, address = entry["action"], entry["addr"]
        if action == "alloc":
            live[address] = count
            events.append(("alloc", entry["size"], count))
            count += 1
        elif action == "free_requested":
            events.append(("free", None, live.pop(address, -1)))
        elif action.startswith("segment_"):
            events.append((action, entry["size"], None))
    return events


def cpu_events(profile: object) -> list[tuple]:
    found = []

    def walk(nodes: list) -> None:
        for node in nodes:
            fields = node.extra_fields
            if hasattr(fields, "alloc_size") and hasattr(fields, "ptr"):
                found.append((node.start_time_ns, fields.ptr, fields.alloc_size))
            walk(node.children)

    walk(profile.profiler.kineto_results.experimental_event_tree())
    found.sort(key=lambda item: item[0])
    events, live, count = [], {}, 0
    for _, address, size in found:
        if size >= 0:
            live[address] = count
            events.append(("alloc", size, count))
            count += 1
        elif address in live:
            events.append(("free", None, live.pop(address)))
    return events


# ---- both


def in_order(events: list[tuple]) -> list[tuple]:
    """Frees with nothing between them in the order of their allocations: any order leaves the allocator in the same
    state, and autocast clears its cache of weights in the order of a hash of addresses."""
    result, run = [], []
    for event in events:
        if event[0] == "free":
            run.append(event)
        else:
            result += sorted(run, key=lambda one: one[2]) + [event]
            run = []
    return result + sorted(run, key=lambda one: one[2])


def renumbered(events: list[tuple]) -> list[tuple]:
    """Allocations counted from 0 in order; frees of what was there before are left out."""
    numbers: dict[int, int] = {}
    result = []
    for action, size, number in events:
        if action == "alloc":
            numbers[number] = len(numbers)
            result.append((action, size, numbers[number]))
        elif action == "free":
            if number in numbers:
                result.append((action, None, numbers[number]))
        else:
            result.append((action, size, None))
    return result


def in_child(function: object, *arguments: object) -> dict:
    """Calls in a forked process, so that every case meets an untouched allocator."""
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            try:
                result = function(*arguments)
            except Exception as error:  # told to the parent
                result = {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
            pickle.dump(result, file)
            file.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        file.seek(0)
        return pickle.load(file) if status == 0 else {"error": f"Python ended with status {status}"}


def first_difference(left: list[tuple], right: list[tuple]) -> int | None:
    for index, (a, b) in enumerate(zip(left, right)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def compare(one: dict, engine: Path, device: str, environment: dict, verbose: bool) -> bool:
    python = in_child(python_side, one, device)
    ours = engine_side(engine, one, device, environment)
    if "error" in python or "error" in ours:
        same = "error" in python and "error" in ours
        print(f"{'both fail' if same else 'DIFFERS':10} {one['name']}: Python: {python.get('error', 'runs')}; engine: {ours.get('error', 'runs')}", flush=True)
        return same
    if one.get("eager"):
        return compare_eager(one, python, ours, verbose)
    theirs, mine = renumbered(python["events"]), renumbered(ours["events"])
    exact = theirs == mine
    if "autocast" in one:
        theirs, mine = in_order(theirs), in_order(mine)
    at = first_difference(theirs, mine)
    same = at is None and python["peaks"] == ours["peaks"]
    peaks = "" if device == "cpu" else f"  {python['peaks']['allocated']:,} / {python['peaks']['reserved']:,}"
    verdict = ("same" if exact else "same*") if same else "order" if python["peaks"] == ours["peaks"] and device == "cuda" else "DIFFERS"
    print(f"{verdict:10} {one['name']}  {len(theirs)} events{peaks}", flush=True)
    if not same:
        if python["peaks"] != ours["peaks"]:
            print(f"           peaks: Python {python['peaks']}, engine {ours['peaks']}")
        show_difference(theirs, mine, 12 if verbose else 2)
    return same


def compare_eager(one: dict, python: dict, ours: dict, verbose: bool) -> bool:
    """What is not in a TorchScript archive (`del`, code that is not scripted) may show: peaks within 1 %."""
    peaks = python["peaks"]
    error = {key: ours["peaks"][key] / peaks[key] - 1 for key in peaks}
    close = all(abs(value) <= 0.01 for value in error.values())
    texts = [f"{key} {peaks[key]:,} ({error[key]:+.3%})" for key in peaks]
    verdict = "same" if peaks == ours["peaks"] else "close" if close else "DIFFERS"
    print(f"{verdict:10} {one['name']}  {', '.join(texts)}", flush=True)
    if verbose and verdict != "same":
        show_difference(in_order(renumbered(python["events"])), in_order(renumbered(ours["events"])), 12)
    return close


def show_difference(theirs: list[tuple], mine: list[tuple], around: int) -> None:
    at = first_difference(theirs, mine)
    if at is not None:
        print(f"           first difference at event {at} of {len(theirs)} and {len(mine)}")
        print(f"           Python: {theirs[max(0, at - around) : at + around + 1]}")
        print(f"           engine: {mine[max(0, at - around) : at + around + 1]}")


def stand_ins(folder: Path | None) -> list[Path]:
    """The driver first, then the runtime, then the rest, as the front preloads them."""
    if folder is None:
        built = sorted((ROOT / "target/release/build").glob("inspect-checkpoint-*/out/cuda_sim"), key=lambda path: path.stat().st_mtime)
        if not built:
            sys.exit("error: no stand-in libraries under target/release/build\n\nhint: build with `scripts/test`, or give --stand-ins FOLDER")
        folder = built[-1]
    files = [path for path in sorted(folder.iterdir()) if re.search(r"\.so(\.\d+)*$", path.name)]
    first = ["libcuda.so", "libcudart.so"]
    return sorted(files, key=lambda path: next((i for i, stem in enumerate(first) if path.name.startswith(stem)), len(first)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cuda is the simulated device")
    parser.add_argument("--engine", type=Path, default=ROOT / "target/release/inspect-torch")
    parser.add_argument("--stand-ins", type=Path, help="folder of stand-in libraries")
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="also networks made there, scripted and eager")
    parser.add_argument("--cc", default="8.9", help="compute capability of the simulated device")
    parser.add_argument("--verbose", action="store_true", help="more events around a difference")
    options = parser.parse_args()
    environment = dict(os.environ)
    if options.device == "cuda" and "INSPECT_COMPARE_CHILD" not in environment:
        environment["LD_PRELOAD"] = ":".join(str(path) for path in stand_ins(options.stand_ins))
        environment["INSPECT_CUDA_SIM_CC"] = options.cc
        environment["FAKECUDA_CC"] = options.cc.replace(".", "")
        environment["INSPECT_CUDA_SIM_TOTAL_BYTES"] = environment["FAKECUDA_TOTAL_BYTES"] = str(80 << 30)
        environment["INSPECT_COMPARE_CHILD"] = "1"
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    import torch  # once, before the forks

    cases = cuda_cases() if options.device == "cuda" else cpu_cases()
    if options.models and options.device == "cuda":
        cases += model_cases(options.models.resolve())
    wanted = [one for one in cases if not options.patterns or any(pattern in one["name"] for pattern in options.patterns)]
    same = sum([compare(one, options.engine, options.device, environment, options.verbose) for one in wanted])
    print(f"{same} of {len(wanted)} cases are the same (torch {torch.__version__}); *: up to the order of frees that follow each other")
    sys.exit(0 if same == len(wanted) else 1)


if __name__ == "__main__":
    main()
