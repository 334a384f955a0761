"""Checkpoints that hold no runnable module: every kind of file and of tensor that torch.save has written."""

import collections
import io
import pickle
import pickletools
import struct
import tarfile
from pathlib import Path

import numpy
import safetensors.torch
import torch
from torch import Tensor, nn

from . import archive, hostile, models, truth

BUFFER_NAMES = ("running_mean", "running_var", "num_batches_tracked")


def make(folder: Path) -> dict[str, str]:
    made: dict[str, str] = {}
    for maker in (state_dicts, tensors, containers, older_formats, byte_level):
        maker(folder, made)
    return made


def state_role(name: str) -> str:
    return "buffer" if name.rsplit(".", 1)[-1] in BUFFER_NAMES else "parameter"


def rows_of(value: object, role: object = None) -> truth.Tensors:
    """Tensors in containers, named by keys and places as the report names them."""
    found = truth.Tensors()

    def walk(item: object, path: str) -> None:
        if isinstance(item, Tensor):
            add(path, item)
        elif isinstance(item, dict):
            for key, inner in item.items():
                walk(inner, f"{path}.{key}" if path else str(key))
        elif isinstance(item, (tuple, list)):
            for index, inner in enumerate(item):
                walk(inner, f"{path}.{index}" if path else str(index))

    def add(path: str, tensor: Tensor) -> None:
        kind = role(path) if callable(role) else role
        for part, inner in parts(tensor):
            grad = inner.requires_grad if inner.layout == torch.strided and not inner.is_quantized else None
            found.add(f"{path}.{part}" if part else path, kind, inner.detach(), grad)

    walk(value, "")
    return found


def parts(tensor: Tensor) -> list[tuple[str, Tensor]]:
    """What a tensor that is no plain strided one is made of."""
    if tensor.layout == torch.sparse_coo:
        return [("indices", tensor._indices()), ("values", tensor._values())]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [("crow_indices", tensor.crow_indices()), ("col_indices", tensor.col_indices()), ("values", tensor.values())]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [("ccol_indices", tensor.ccol_indices()), ("row_indices", tensor.row_indices()), ("values", tensor.values())]
    if tensor.is_quantized and tensor.qscheme() in (torch.per_channel_affine, torch.per_channel_affine_float_qparams):
        return [("", tensor), ("scales", tensor.q_per_channel_scales()), ("zero_points", tensor.q_per_channel_zero_points())]
    return [("", tensor)]


def saved(value: object, root: str, **options: object) -> bytes:
    """torch.save under a chosen top folder, which it otherwise takes from the path."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    content = archive.rename_root(archive.members(buffer.getvalue()), root)
    return archive.build(content, deflate=False)


def put(folder: Path, made: dict, name: str, data: bytes, facts: truth.Tensors | dict | None, description: str) -> None:
    path = folder / name
    path.write_bytes(data)
    if facts is not None:
        truth.write(path, facts if isinstance(facts, dict) else facts.truth())
    made[name] = description


def put_saved(folder: Path, made: dict, name: str, value: object, description: str, role: object = None, **options: object) -> None:
    # The file itself as PyTorch lays it out, alignment padding included.
    path = folder / name
    torch.save(value, path, **options)
    put(folder, made, name, path.read_bytes(), rows_of(value, role), description)
    loaded = torch.load(path, weights_only=False)
    assert type(loaded) is type(value), name


def state_dicts(folder: Path, made: dict) -> None:
    mlp = models.fill(models.Mlp())
    put_saved(folder, made, "state_mlp.pt", mlp.state_dict(), "a state_dict with its _metadata", state_role)
    cnn = models.fill(models.TinyCnn())
    put_saved(folder, made, "state_cnn.pt", cnn.state_dict(), "a state_dict with buffers", state_role)
    tied = models.fill(models.TiedDecoder())
    put_saved(folder, made, "state_tied.pt", tied.state_dict(), "two names for one weight", state_role)
    wrapped = collections.OrderedDict((f"module._orig_mod.{name}", tensor) for name, tensor in mlp.state_dict().items())
    put_saved(folder, made, "state_prefixed.pt", wrapped, "names with the prefixes of DataParallel and torch.compile", state_role)
    for protocol in (2, 3, 4, 5):
        put_saved(folder, made, f"protocol_{protocol}.pt", mlp.state_dict(), f"pickle protocol {protocol}", state_role, pickle_protocol=protocol)

    optimizer = torch.optim.AdamW(mlp.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    mlp.eval()(models.ramp(2, 16)).mean().backward()
    optimizer.step()
    scheduler.step()
    checkpoint = {
        "epoch": 3,
        "model": mlp.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": {key: value for key, value in scheduler.state_dict().items() if not callable(value)},
        "config": {"lr": 1e-3, "name": "mlp", "layers": [16, 32, 4]},
    }

    def role(path: str) -> str:
        if path.startswith("optimizer."):
            return "optimizer"
        return state_role(path)

    put_saved(folder, made, "checkpoint_adamw.pt", checkpoint, "a training checkpoint: model, AdamW's state, scheduler, config", role)

    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    models.fill(module)
    torch.save(module, folder / "whole_module.pt")
    put(folder, made, "whole_module.pt", (folder / "whole_module.pt").read_bytes(), truth.of_module(module), "a whole pickled module")


def tensors(folder: Path, made: dict) -> None:
    every = {}
    for name in ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64"):
        every[name] = torch.ones(3, dtype=getattr(torch, name))
    for name in ("complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
        every[name] = torch.zeros(3, dtype=torch.uint8 if name.startswith("float8") else torch.complex64)
        every[name] = every[name].view(getattr(torch, name)) if name.startswith("float8") else every[name].to(getattr(torch, name))
    put_saved(folder, made, "dtypes.pt", every, "a tensor of every dtype that torch.save writes")

    base = torch.arange(100, dtype=torch.float32)
    views = {
        "slice": base[10:20],
        "matrix": base[20:60].view(5, 8).t(),
        "expanded": torch.tensor([1.0]).expand(4, 5),
        "overlapping": base.as_strided((3, 3), (1, 1), 90),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
    }
    put_saved(folder, made, "views.pt", views, "views of one storage: strides, offsets, slack, expanded, overlapping")
    slack = {"row": torch.zeros(1000, 4)[3]}
    put_saved(folder, made, "slack.pt", slack, "4 elements saved with the whole storage that they are a slice of")
    bits = {"conj": torch.tensor([1 + 2j]).conj(), "neg": torch.tensor([1 + 2j]).conj().imag}
    put_saved(folder, made, "conj_neg.pt", bits, "conjugate and negative bits")

    dense = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 4.0, 0.0]])
    sparse = {
        "coo": dense.to_sparse_coo(),
        "csr": dense.to_sparse_csr(),
        "csc": dense.to_sparse_csc(),
        "bsr": dense.to_sparse_bsr((2, 2)),
        "bsc": dense.to_sparse_bsc((2, 2)),
    }
    put_saved(folder, made, "sparse.pt", sparse, "every sparse layout")

    weights = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 8
    quantized = {
        "per_tensor": torch.quantize_per_tensor(weights, 0.1, 3, torch.quint8),
        "per_channel": torch.quantize_per_channel(weights, torch.tensor([0.1, 0.2, 0.3]).double(), torch.tensor([0, 1, 2]), 0, torch.qint8),
        "int32": torch.quantize_per_tensor(weights, 0.1, 0, torch.qint32),
    }
    put_saved(folder, made, "quantized.pt", quantized, "quantized tensors, per tensor and per channel")
    meta = {"meta": torch.empty(3, 5, device="meta"), "real": torch.ones(2)}
    put_saved(folder, made, "meta.pt", meta, "a tensor on the meta device, without data")


def containers(folder: Path, made: dict) -> None:
    put_saved(folder, made, "tensor.pt", torch.arange(6, dtype=torch.int64).reshape(2, 3), "a bare tensor")
    put_saved(folder, made, "tuple.pt", (torch.ones(2), [torch.zeros(3), {"a": torch.ones(1)}]), "tuple, list and dict in each other")
    odd = {"a.b": torch.ones(1), "": torch.ones(1), "ä \u202eß": torch.ones(1), "tab\tand\nline": torch.ones(1), 7: torch.ones(1), (1, 2): torch.ones(1)}
    put_saved(folder, made, "names.pt", odd, "names with dots, control characters, of other types, and none")
    put_saved(folder, made, "no_tensors.pt", {"epoch": 3, "history": [0.5, 0.25]}, "no tensor at all")
    mixed = {"weights": torch.ones(4), "array": numpy.arange(3.0), "scalar": numpy.float64(0.5), "when": None}
    path = folder / "numpy.pt"
    torch.save(mixed, path)
    put(folder, made, "numpy.pt", path.read_bytes(), None, "numpy arrays and scalars beside a tensor")
    inputs = {"image": models.ramp(2, 6), "text": models.ramp(2, 5)}
    put_saved(folder, made, "inputs_multi.pt", inputs, "inputs for multi_input.pt, by name")


def older_formats(folder: Path, made: dict) -> None:
    mlp = models.fill(models.Mlp()).state_dict()
    put(folder, made, "legacy.pt", legacy(mlp), rows_of(mlp, state_role), "the stream format before 1.6")
    base = torch.arange(20, dtype=torch.float32)
    views = {"all": base, "part": base[4:9], "turned": base.view(4, 5).t()}
    put(folder, made, "legacy_views.pt", legacy(views), rows_of(views), "views in the stream format")
    data, value = tar_checkpoint()
    put(folder, made, "tar.pt", data, rows_of(value), "the tar format before 0.1.10")
    loaded = torch.load(folder / "tar.pt", weights_only=False)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in value.items()), loaded
    state = {name: tensor.clone() for name, tensor in models.fill(models.TinyCnn()).state_dict().items()}
    rows = rows_of(dict(sorted(state.items())), state_role)
    put(folder, made, "cnn.safetensors", safetensors.torch.save(state, {"format": "pt"}), rows, "safetensors with metadata")


def legacy(value: dict) -> bytes:
    """The stream format, for float32 alone; storages are numbered, where PyTorch takes their addresses in memory."""
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=False)
    stream = io.BytesIO(buffer.getvalue())
    for _ in range(3):  # magic number, protocol, system
        pickle.load(stream)
    start = stream.tell()
    skip_pickle(stream)
    head, body = buffer.getvalue()[:start], buffer.getvalue()[start : stream.tell()]
    blobs = {}
    for key in pickle.load(stream):
        (numel,) = struct.unpack("<q", count := stream.read(8))
        blobs[key] = count + stream.read(4 * numel)
    order = sorted(blobs, key=lambda key: body.index(key.encode()))
    assert len(order) < 10
    for index, key in enumerate(order):
        body = body.replace(hostile.text(key), hostile.text(str(index)))
    data = head + body + pickle.dumps([str(index) for index in range(len(order))], 2) + b"".join(blobs[key] for key in order)
    loaded = torch.load(io.BytesIO(data))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in value.items())
    return data


def skip_pickle(stream: io.BytesIO) -> None:
    """Moves behind the pickle that starts here, without loading it."""
    for _ in pickletools.genops(stream):
        pass


def tar_checkpoint() -> tuple[bytes, dict]:
    """Members `sys_info`, `pickle`, `storages`, `tensors`, as PyTorch before 0.1.10 wrote them."""
    storage = torch.arange(6, dtype=torch.float32)
    value = {"weight": storage.view(2, 3), "tail": storage[4:]}

    storages = pickle.dumps(1, 2) + pickle.dumps((1, "cpu", torch.FloatStorage), 2)
    storages += struct.pack("<q", storage.numel()) + storage.numpy().tobytes() + pickle.dumps([], 2)
    tensors = pickle.dumps(2, 2)
    for key, tensor in ((10, value["weight"]), (11, value["tail"])):
        tensors += pickle.dumps((key, 1, torch.FloatTensor), 2)
        tensors += struct.pack("<i4x", tensor.dim())
        tensors += struct.pack(f"<{tensor.dim()}q", *tensor.shape) + struct.pack(f"<{tensor.dim()}q", *tensor.stride())
        tensors += struct.pack("<q", tensor.storage_offset())

    class Reference(pickle.Pickler):
        def persistent_id(self, item: object) -> str | None:
            return item.key if isinstance(item, Key) else None

    class Key:
        def __init__(self, key: str) -> None:
            self.key = key

    stream = io.BytesIO()
    Reference(stream, 2).dump({"weight": Key("10"), "tail": Key("11")})
    system = pickle.dumps({"protocol_version": 1000, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}, 2)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in (("sys_info", system), ("pickle", stream.getvalue()), ("storages", storages), ("tensors", tensors)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue(), value


def byte_level(folder: Path, made: dict) -> None:
    """The same state_dict, in archives that other writers and other machines make."""
    state = models.fill(models.Mlp()).state_dict()
    facts = rows_of(state, state_role)
    content = archive.members(saved(state, "mlp"))

    swapped = {name: data for name, data in content.items()}
    for name in swapped:
        if "/data/" in name:
            swapped[name] = torch.frombuffer(bytearray(swapped[name]), dtype=torch.float32).numpy().byteswap().tobytes()
    swapped["mlp/byteorder"] = b"big"
    loaded = torch.load(io.BytesIO(archive.build(swapped, deflate=False)))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    put(folder, made, "zip_big_endian.pt", archive.build(swapped, deflate=False), facts, "written on a big-endian machine")

    bare = {name: data for name, data in content.items() if name.endswith(("/data.pkl", "/version")) or "/data/" in name}
    put(folder, made, "zip_1_6.pt", archive.build(archive.rename_root(bare, "archive"), deflate=False), facts, "as PyTorch 1.6: no byteorder, no alignment record")
    put(folder, made, "zip_deflated.pt", archive.build(content), facts, "deflated members")
    last = dict(sorted(content.items(), key=lambda item: item[0].endswith("data.pkl")))
    put(folder, made, "zip_pickle_last.pt", archive.build(last, deflate=False), facts, "data.pkl after the data")
