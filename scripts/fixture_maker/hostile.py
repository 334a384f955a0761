"""Files that are broken, bombs, or made to run code: byte recipes, nothing here is ever loaded by Python."""

import gzip
import io
import struct
import zipfile
from pathlib import Path

from . import archive, truth

STOP = b"."


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def called(module: str, name: str, argument: str) -> bytes:
    """A pickle that calls `module.name(argument)` when it is loaded."""
    return b"\x80\x02" + f"c{module}\n{name}\n".encode() + text(argument) + b"\x85R" + STOP


def tensor_pickle(shape: list[int], strides: list[int], offset: int, numel: int, key: str = "0", kind: str = "FloatStorage") -> bytes:
    """`{"w": tensor}` with whatever sizes."""

    def number(value: int) -> bytes:
        if 0 <= value < 2**31:
            return b"J" + struct.pack("<i", value)
        data = value.to_bytes(9, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data

    def row(values: list[int]) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    persistent = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + number(numel) + b"tQ"
    arguments = b"(" + persistent + number(offset) + row(shape) + row(strides) + b"\x89" + b"ccollections\nOrderedDict\n)Rt"
    return b"\x80\x02}" + text("w") + b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"Rs" + STOP


def deflated(pickle: bytes) -> bytes:
    return archive.build({"archive/data.pkl": pickle, "archive/version": b"3\n"})


def zipped(pickle: bytes, data: dict[str, bytes] | None = None, root: str = "archive") -> bytes:
    content = {f"{root}/data.pkl": pickle, f"{root}/byteorder": b"little"}
    content |= {f"{root}/data/{key}": value for key, value in (data or {}).items()}
    return archive.build(content | {f"{root}/version": b"3\n"}, deflate=False)


def make(folder: Path) -> dict[str, str]:
    made: dict[str, str] = {}
    target = folder / "hostile"
    target.mkdir(exist_ok=True)

    def put(name: str, data: bytes, expected: dict, description: str) -> None:
        assert len(data) < 200_000, (name, len(data))
        (target / name).write_bytes(data)
        truth.write(target / name, expected)
        made[f"hostile/{name}"] = description

    refused, dangerous = {"exit": 2}, {"exit": 2, "verdict": "dangerous"}
    sound = zipped(tensor_pickle([2, 3], [3, 1], 0, 6), {"0": bytes(24)})
    for name, data, expected, description in (
        *code(dangerous), *bombs(refused), *forged(refused), *damaged(sound, refused), *other_files(refused)
    ):
        put(name, data, expected, description)
    return made


def code(expected: dict) -> list[tuple]:
    marker = "touch /tmp/inspect-fixture-must-not-exist"
    hidden = tensor_pickle([2, 3], [3, 1], 0, 6)
    harmless = zipped(hidden, {"0": bytes(24)})
    return [
        ("os_system.pt", zipped(called("os", "system", marker)), expected, "os.system in a zip"),
        ("eval.pkl", called("builtins", "eval", "1 + 1"), expected, "builtins.eval in a bare pickle"),
        ("posix_proto4.pt", zipped(b"\x80\x04" + b"\x8c\x05posix\x8c\x06system\x93" + text(marker) + b"\x85R."), expected, "STACK_GLOBAL"),
        ("named_only.pt", zipped(b"\x80\x02}" + text("f") + b"csubprocess\nPopen\ns."), expected, "a function named, not called"),
        ("inst.pt", zipped(b"(" + text(marker) + b"ios\nsystem\n."), expected, "INST"),
        (
            "second_stream.pt",
            zipped(hidden + called("os", "system", marker), {"0": bytes(24)}),
            {"exit": 0, "verdict": "suspicious"},
            "a second pickle after the first one's end",
        ),
        ("duplicate_pickle.pt", duplicate(harmless, called("os", "system", marker)), {"exit": 2}, "two members called data.pkl"),
    ]


def duplicate(data: bytes, second: bytes) -> bytes:
    """Appends a second `archive/data.pkl`; readers disagree on which one counts."""
    content = list(archive.members(data).items())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, value in [*content, ("archive/data.pkx", second)]:
            target.writestr(zipfile.ZipInfo(name, archive.NO_TIME), value)
    return buffer.getvalue().replace(b"archive/data.pkx", b"archive/data.pkl")


def bombs(expected: dict) -> list[tuple]:
    doubling = b"\x80\x02" + b"K\x01\x85q\x00" + b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(60)) + STOP
    return [
        ("deep_lists.pt", deflated(b"\x80\x02" + b"]" * 60_000 + b"a" * 59_999 + STOP), {"exit": [0, 2]}, "60,000 lists in each other"),
        ("deep_tuples.pt", deflated(b"\x80\x02)" + b"\x85" * 60_000 + STOP), {"exit": [0, 2]}, "60,000 tuples in each other"),
        ("memo_bomb.pt", zipped(doubling), {"exit": [0, 2]}, "2^60 leaves in 300 bytes"),
        ("zip_bomb.pt", archive.build({"archive/data.pkl": b"N" * 100_000_000 + STOP, "archive/version": b"3\n"}), expected, "100 MB of pickle in 100 kB"),
        ("string_2e40.pt", zipped(b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"abc."), expected, "a string of 2^40 bytes, it says"),
    ]


def forged(expected: dict) -> list[tuple]:
    data = {"0": bytes(24)}
    return [
        ("size_beyond_storage.pt", zipped(tensor_pickle([1000, 1000], [1000, 1], 0, 6), data), expected, "a tensor larger than its storage"),
        ("size_overflow.pt", zipped(tensor_pickle([1 << 33, 1 << 33], [1 << 33, 1], 0, 6), data), expected, "2^66 elements"),
        ("negative_size.pt", zipped(tensor_pickle([-2, 3], [3, 1], 0, 6), data), expected, "a negative size"),
        ("negative_offset.pt", zipped(tensor_pickle([2, 3], [3, 1], -1, 6), data), expected, "a negative storage offset"),
        ("negative_stride.pt", zipped(tensor_pickle([2, 3], [-3, 1], 3, 6), data), expected, "a negative stride"),
        ("strides_missing.pt", zipped(tensor_pickle([2, 3], [3], 0, 6), data), expected, "fewer strides than sizes"),
        ("storage_short.pt", zipped(tensor_pickle([2, 3], [3, 1], 0, 6), {"0": bytes(20)}), expected, "a record shorter than its storage"),
        ("storage_missing.pt", zipped(tensor_pickle([2, 3], [3, 1], 0, 6)), expected, "no record for a storage"),
        ("storage_unknown.pt", zipped(tensor_pickle([2], [1], 0, 2, kind="Float3Storage"), data), expected, "a storage class that does not exist"),
        ("header_2e60.safetensors", struct.pack("<Q", 1 << 60) + b'{"a":1}', expected, "a header of 2^60 bytes, it says"),
        (
            "overlap.safetensors",
            safetensors(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}', 12),
            expected,
            "two tensors over the same bytes",
        ),
        ("duplicate_key.safetensors", safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}', 4), expected, "one name twice"),
    ]


def safetensors(header: bytes, data_bytes: int) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(data_bytes)


def damaged(sound: bytes, expected: dict) -> list[tuple]:
    flipped = bytearray(sound)
    flipped[sound.index(b"_rebuild_tensor_v2")] ^= 1
    return [
        ("truncated.pt", sound[: len(sound) // 2], expected, "the first half of a file"),
        ("truncated_by_one.pt", sound[:-1], expected, "the last byte is missing"),
        ("wrong_crc.pt", bytes(flipped), expected, "a changed byte in data.pkl"),
        ("no_stop.pt", zipped(b"\x80\x02}"), expected, "a pickle without its end"),
        ("underflow.pt", zipped(b"\x80\x02R."), expected, "a pickle that calls nothing"),
        ("empty.pt", b"", expected, "no bytes"),
        ("zeros.pt", bytes(64), expected, "zeros"),
    ]


def other_files(expected: dict) -> list[tuple]:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 46830571\n"
    onnx = b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:\x10\n\x0e\n\x01x\x12\x01y\"\x04Relu:\x00"
    return [
        ("page.pt", b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n", expected | {"named": "html"}, "a web page"),
        ("pointer.pt", pointer, expected | {"named": "lfs"}, "a Git LFS pointer"),
        ("packed.pt.gz", gzip.compress(b"something", mtime=0), expected | {"named": "gzip"}, "gzip"),
        ("array.npy", b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n" + bytes(4), expected | {"named": "numpy"}, "a numpy array"),
        ("graph.onnx", onnx, expected | {"named": "onnx"}, "an ONNX graph"),
        ("notes.txt", b"These are the weights.\n", expected | {"named": "text"}, "plain text"),
    ]
