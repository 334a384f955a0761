"""Numbers of every dtype, with their statistics as Python's torch tells them."""

from pathlib import Path

import torch
from torch import Tensor

from . import files, truth

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def make(folder: Path) -> dict[str, str]:
    made: dict[str, str] = {}
    (folder / "numbers").mkdir(exist_ok=True)
    values = tensors()
    facts = files.rows_of(values).truth()
    for row in facts["tensors"]:
        tensor = values.get(row["name"])
        row["stats"] = None if tensor is None else statistics(tensor)
    files.put_saved(folder, made, "numbers/values.pt", values, "numbers of every dtype, some of them not finite")
    truth.write(folder / "numbers/values.pt", facts)
    return made


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    plain = torch.randn(7, 9) * 3 + 1
    plain[0, :3] = 0
    odd = plain.clone()
    odd[1, 1], odd[2, 2], odd[3, 3] = float("nan"), float("inf"), float("-inf")
    found = {"transposed": odd.t(), "strided": odd[::2, 1::3], "expanded": odd[:1].expand(5, 9), "empty": odd[:0]}
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, *FLOAT8):
        found[truth.dtype_name(dtype)] = odd.to(dtype)
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        found[truth.dtype_name(dtype)] = (plain * 9).to(dtype)
    for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        found[truth.dtype_name(dtype)] = (plain.abs() * 9).to(torch.int64).to(dtype)
    found["bool"] = plain > 0
    found["extremes"] = torch.tensor([-(2**63), 2**63 - 1, 0])
    found["offset"] = torch.arange(1000, dtype=torch.float64) % 7 + 1e9
    found["one"] = torch.tensor(5.0)
    found["nothing_finite"] = torch.tensor([float("nan"), float("inf")])
    for dtype in (torch.complex64, torch.complex128, torch.complex32):
        found[truth.dtype_name(dtype)] = torch.complex(odd, plain.flip(0)).to(dtype)
    # More items than there are patterns of a byte: a reader may look them up.
    found["many_int8"] = (torch.arange(300) * 7 % 251 - 125).to(torch.int8)
    found["many_float8"] = (torch.arange(300, dtype=torch.float32) - 150).to(torch.float8_e5m2)
    found["by_tensor"] = torch.quantize_per_tensor(plain, 0.25, 7, torch.quint8)
    found["by_tensor_32"] = torch.quantize_per_tensor(plain, 0.125, -3, torch.qint32)
    return found


def statistics(tensor: Tensor) -> dict:
    integer = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and not tensor.is_quantized
    if tensor.is_quantized:
        # The scale times the integer in double precision; `dequantize` rounds to float32.
        numbers = (tensor.int_repr().double() - tensor.q_zero_point()) * tensor.q_scale()
    elif tensor.is_complex():
        wide = tensor.to(torch.complex128)
        nan, inf = wide.isnan(), wide.isinf() & ~wide.isnan()
        counts = {"nan": int(nan.sum()), "inf": int(inf.sum()), "zero": int((wide == 0).sum())}
        return {"min": None, "max": None, "mean": None, "std": None} | counts
    else:
        numbers = tensor.double()
    finite = numbers[numbers.isfinite()]
    some, several = finite.numel() > 0, finite.numel() > 1
    exact = [int(value) for value in tensor.flatten().tolist()] if integer else finite.tolist()
    return {
        "min": min(exact) if some else None,
        "max": max(exact) if some else None,
        "mean": finite.mean().item() if some else None,
        "std": finite.std().item() if several else None,
        "nan": int(numbers.isnan().sum()),
        "inf": int(numbers.isinf().sum()),
        "zero": int((numbers == 0).sum()),
    }
