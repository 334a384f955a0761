"""Folders that several processes save: torch.distributed.checkpoint of two real processes, and files named and laid out as DeepSpeed's."""

import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from . import truth

PROCESSES = 2


def make(folder: Path) -> dict[str, str]:
    made: dict[str, str] = {}
    checkpoint(folder, made)
    deepspeed(folder, made)
    return made


def numbers(shape: tuple, dtype: torch.dtype = torch.float32, start: float = 0.0) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) / 8 + start).reshape(shape).to(dtype)


class Writer(dcp.FileSystemWriter):
    """Says nothing of this machine, and the same every time."""

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id="checkpoint", save_id="fixture")


def whole() -> dict:
    return {
        "model": {
            "rows.weight": numbers((8, 6)),
            "rows.bias": numbers((8,), start=1),
            "columns.weight": numbers((4, 6), torch.bfloat16),
            "uneven.weight": numbers((5, 3), start=-2),
            "grid.weight": numbers((2, 4, 3), torch.float16),
            "norm.running_mean": numbers((3,)),
            "norm.num_batches_tracked": torch.tensor(7),
        },
        "optimizer": {"state": {"rows.weight": {"step": torch.tensor(10.0), "exp_avg": numbers((8, 6), start=3)}}},
        "epoch": 3,
        "config": {"lr": 0.125, "name": "adamw"},
    }


PLACEMENTS = {"rows.weight": 0, "columns.weight": 1, "uneven.weight": 0, "grid.weight": 1}


def save(rank: int, target: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))

    def place(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in PLACEMENTS:
            return distribute_tensor(tensor, mesh, [Replicate()]) if tensor.dim() else tensor
        return distribute_tensor(tensor, mesh, [Shard(PLACEMENTS[name])])

    state = whole()
    state["model"] = {name: place(name, tensor) for name, tensor in state["model"].items()}
    moments = state["optimizer"]["state"]["rows.weight"]
    moments["exp_avg"] = place("rows.weight", moments["exp_avg"])
    dcp.save(state, storage_writer=Writer(target))
    dist.destroy_process_group()


def checkpoint(folder: Path, made: dict) -> None:
    target = folder / "distributed/dcp"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    torch.multiprocessing.spawn(save, (str(target), 29561), nprocs=PROCESSES)
    names = sorted(path.name for path in target.iterdir())
    sizes = {name: (target / name).stat().st_size for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        dcp_to_torch_save(target, f"{scratch}/whole.pt")
        loaded = torch.load(f"{scratch}/whole.pt", weights_only=False)
    rows = truth.Tensors()
    values = {}
    metadata = dcp.FileSystemReader(target).read_metadata()
    chunks = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not hasattr(entry, "chunks"):
            continue
        tensor = lookup(loaded, metadata.planner_data[name])
        rows.add(name, role(name), tensor, False)
        values[name] = {"min": float(tensor.min()), "max": float(tensor.max()), "mean": float(tensor.double().mean())}
        chunks[name] = sorted([list(chunk.offsets), list(chunk.sizes)] for chunk in entry.chunks)
    objects = [name for name, entry in metadata.state_dict_metadata.items() if not hasattr(entry, "chunks")]
    places = {
        f"{index.fqn}{list(index.offset) if index.offset is not None else ''}": [info.relative_path, info.offset, info.length]
        for index, info in metadata.storage_data.items()
    }
    facts = {"files": sizes, "values": values, "chunks": chunks, "objects": objects, "places": places}
    truth.write(target / ".metadata", rows.truth() | facts)
    # The same numbers as one file, to compare with.
    torch.save(loaded, folder / "distributed/whole.pt")
    made["distributed/whole.pt"] = "what dcp_to_torch_save makes of dcp/"
    for name in names:
        made[f"distributed/dcp/{name}"] = "a distributed checkpoint of two processes"


def lookup(state: object, path: tuple) -> torch.Tensor:
    for key in path:
        state = state[key]
    return state


def role(name: str) -> str:
    if name.startswith("optimizer"):
        return "optimizer"
    return "buffer" if name.rsplit(".", 1)[-1] in ("running_mean", "num_batches_tracked") else "parameter"


def deepspeed(folder: Path, made: dict) -> None:
    """ZeRO stage 2 of two data-parallel ranks, as `save_checkpoint` writes it."""
    root = folder / "distributed/deepspeed"
    shutil.rmtree(root, ignore_errors=True)
    target = root / "global_step10"
    target.mkdir(parents=True)
    model = {"0.weight": numbers((4, 6), torch.bfloat16), "0.bias": numbers((4,), torch.bfloat16)}
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    version = "0.18.0"
    states = {
        "module": model,
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [{name: tensor.shape for name, tensor in model.items()}],
        "frozen_param_shapes": None,
        "shared_params": {},
        "frozen_param_fragments": None,
        "lr_scheduler": {"last_epoch": 10},
        "data_sampler": None,
        "random_ltd": None,
        "sparse_tensor_module_names": set(),
        "skipped_steps": 0,
        "global_steps": 10,
        "global_samples": 80,
        "dp_world_size": PROCESSES,
        "mp_world_size": 1,
        "ds_config": config,
        "ds_version": version,
    }
    torch.save(states, target / "mp_rank_00_model_states.pt")
    part = 28 // PROCESSES
    for rank in range(PROCESSES):
        own = numbers((part,), start=rank * part / 8)
        optimizer = {
            "loss_scaler": None,
            "dynamic_loss_scale": False,
            "overflow": False,
            "clip_grad": 1.0,
            "base_optimizer_state": {
                "state": {0: {"step": torch.tensor(10.0), "exp_avg": own / 2, "exp_avg_sq": own / 4}},
                "param_groups": [{"lr": 0.001, "betas": (0.9, 0.999), "params": [0]}],
            },
            "single_partition_of_fp32_groups": [own],
            "zero_stage": 2,
            "group_paddings": [0],
            "partition_count": [PROCESSES],
            "ds_version": version,
        }
        states = {"optimizer_state_dict": optimizer, "ds_config": config, "ds_version": version}
        torch.save(states, target / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (root / "latest").write_text("global_step10")
    for path in sorted(root.rglob("*")):
        if path.is_file():
            made[path.relative_to(folder).as_posix()] = "ZeRO stage 2 of two ranks, laid out as DeepSpeed's"
