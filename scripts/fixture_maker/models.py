"""Small TorchScript modules, one for each thing that a run must get right. Weights are made without random numbers."""

import io
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import archive, truth


def fill(module: nn.Module) -> nn.Module:
    """Small weights that differ from place to place and from tensor to tensor, the same on every machine.

    Every value is a multiple of 2^-9, so it is exact in float16 and bfloat16 alike.
    """
    with torch.no_grad():
        for index, (name, tensor) in enumerate([*module.named_parameters(), *module.named_buffers()]):
            if not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            places = torch.arange(tensor.numel(), dtype=torch.float64)
            values = ((places * 37 + index * 11) % 101 - 50) / 512
            if name.endswith("running_var"):
                values = values.abs() + 0.5
            tensor.copy_(values.reshape(tensor.shape).to(tensor.dtype))
    return module


class TinyCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.depthwise(self.stem(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class LstmTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(12, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.tags(hidden)


class GruEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 8)

    def forward(self, x: Tensor, h: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        return self.gru(x, h)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TiedDecoder(nn.Module):
    """A language model in small: the embedding's weight is the output layer's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.blocks = nn.ModuleList([DecoderBlock(16, 2) for _ in range(2)])
        self.norm = nn.LayerNorm(16)
        self.lm_head = nn.Linear(16, 40, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


class MultiInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Linear(6, 4)
        self.text = nn.Linear(5, 4)

    def forward(
        self, image: Tensor, text: Tensor, mask: Optional[Tensor] = None, scale: float = 1.0, repeat: int = 1, normalize: bool = False
    ) -> Dict[str, Tensor]:
        a, b = self.image(image), self.text(text)
        if mask is not None:
            b = b.masked_fill(mask.logical_not().unsqueeze(-1), 0.0)
        total = a * scale
        for _ in range(repeat):
            total = total + b
        if normalize:
            total = F.normalize(total, dim=-1)
        return {"image": a, "text": b, "total": total}


class ControlFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)

    def forward(self, x: Tensor, limit: int = 5) -> Tuple[Tensor, List[Tensor]]:
        kept: List[Tensor] = []
        steps = 0
        while steps < limit:
            if steps % 2 == 0:
                x = torch.tanh(self.step(x))
            else:
                x = torch.sigmoid(self.other(x))
            kept.append(x.sum(dim=-1))
            steps += 1
        return x, kept


class SharedModule(nn.Module):
    """One Linear under two parents."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(6, 6)
        self.left = nn.Sequential(shared, nn.ReLU())
        self.right = nn.Sequential(shared, nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


class ManyCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros(x.size(1), 4)
        for step in range(x.size(0)):
            hidden = self.cell(x[step], hidden)
        return self.out(hidden)


class Residual(nn.Module):
    """Functional ops between the modules: add, relu, cat, view, interpolate."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 1)
        self.up = nn.ConvTranspose2d(8, 2, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(x + self.conv1(x))
        y = torch.cat([y, self.conv2(y)], dim=1)
        y = self.up(y)
        return F.interpolate(y, scale_factor=0.5, mode="nearest").flatten(2)


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.size(0) > 0:
            raise ValueError("this model refuses every batch")
        return y


class NoForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 5)

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Attributes(nn.Module):
    """Tensors that are neither parameter nor buffer."""

    table: Dict[str, Tensor]
    steps: List[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.plain = torch.arange(4, dtype=torch.float64)
        self.table = {"a": torch.ones(2), "b": torch.zeros(3, dtype=torch.int16)}
        self.steps = [torch.zeros(1), torch.ones(1)]
        self.name = "attributes"
        self.rate = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.rate + self.table["a"].sum() + self.plain.sum().float() + self.steps[1]


class Spectrum(nn.Module):
    """Complex numbers in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.zeros(9, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=16)


class Nested(nn.Module):
    """Takes and returns containers in containers."""

    def forward(self, pair: Tuple[Tensor, Tensor], many: List[Tensor], named: Dict[str, Tensor]) -> Tuple[Tensor, Dict[str, List[Tensor]]]:
        return pair[0] + pair[1], {"many": [item * 2 for item in many], "named": list(named.values())}


class Scalar(nn.Module):
    """No parameters; a 0-dim input."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + 1


def ramp(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    numel = torch.Size(shape).numel()
    return (torch.arange(numel, dtype=torch.float64) % 7 / 8).reshape(shape).to(dtype)


class Selects(nn.Module):
    """Sizes that depend on values: what a mask keeps, how many ids there are, a number read from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Linear(1, 64)

    def forward(self, x: Tensor, tokens: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        chosen = torch.masked_select(x, x > 0.5)
        classes = F.one_hot(tokens)
        kept = self.widen(x[x > 0].unsqueeze(1))
        places = torch.nonzero(x > 0.02).float()
        kinds = torch.unique(tokens).float().unsqueeze(1).expand(-1, 32).clone()
        count = int(tokens.max().item()) + 1
        table = torch.zeros([count, 128], device=x.device)
        if bool((x.abs().sum() > 1.0).item()):
            table = torch.cat([table, table])
        return kept, places, kinds, table, chosen, classes


def ids(*shape: int, below: int) -> Tensor:
    return (torch.arange(torch.Size(shape).numel()) % below).reshape(shape)


# name: module, arguments, input options that say the same, description
MODELS = [
    ("tiny_cnn", TinyCnn, (ramp(1, 3, 32, 32),), ["1x3x32x32"], "a small convolutional network with a grouped convolution"),
    ("mlp", Mlp, (ramp(2, 16),), ["2x16"], "two linear layers with dropout between"),
    ("lstm_tagger", LstmTagger, (ids(1, 12, below=50),), ["1x12:int64@0..50"], "embedding, two-layer bidirectional LSTM, linear"),
    ("gru", GruEncoder, (ramp(5, 2, 4),), ["5x2x4"], "a GRU with an Optional state; returns a tuple"),
    ("transformer_encoder", Encoder, (ramp(2, 6, 16),), ["2x6x16"], "nn.TransformerEncoder: takes the native fast path"),
    ("tied_decoder", TiedDecoder, (ids(1, 8, below=40),), ["1x8:int64@0..40"], "causal attention; embedding and output share a weight"),
    ("multi_input", MultiInput, (ramp(2, 6), ramp(2, 5)), ["2x6", "2x5"], "two tensors, Optional, float, int, bool; returns a dict"),
    ("control_flow", ControlFlow, (ramp(3, 4),), ["3x4"], "a loop and branches; returns a list in a tuple"),
    ("shared_module", SharedModule, (ramp(2, 6),), ["2x6"], "one module under two parents"),
    ("many_calls", ManyCalls, (ramp(6, 2, 4),), ["6x2x4"], "one module called six times"),
    ("residual", Residual, (ramp(1, 4, 8, 8),), ["1x4x8x8"], "functional ops between modules"),
    ("stateful", Stateful, (ramp(4, 3),), ["4x3"], "a forward that changes buffers; one buffer is not persistent"),
    ("attributes", Attributes, (ramp(2, 3),), ["2x3"], "tensors as plain attributes, in a dict and in a list"),
    ("spectrum", Spectrum, (ramp(2, 16, dtype=torch.float64),), ["2x16:float64"], "complex parameters"),
    ("selects", Selects, (ramp(16, 24), ids(20, below=7)), ["16x24", "20:int64@0..7"], "sizes that depend on values"),
    ("scalar", Scalar, (torch.tensor(0.5),), ["[]:float32"], "no parameters, a 0-dim input"),
]


def make(folder: Path) -> dict[str, str]:
    made: dict[str, str] = {}
    for name, kind, arguments, specs, description in MODELS:
        module = fill(kind()).eval()
        facts = truth.of_module(module)
        if name == "attributes":
            # The same rows, and those that libtorch names neither parameters nor buffers.
            facts = with_attributes(module)
        facts["run"] = run_of(name, module, arguments, specs)
        facts["run"]["values"] = values(fill(kind()).eval(), arguments)
        put(folder, made, f"{name}.pt", torch.jit.script(fill(kind()).eval()), facts, description)
    variants(folder, made)
    cannot_run(folder, made)
    return made


def with_attributes(module: Attributes) -> dict:
    found = truth.Tensors()
    for name, parameter in module.named_parameters():
        found.add(name, "parameter", parameter.detach(), parameter.requires_grad)
    tensors = {"plain": module.plain} | {f"table.{key}": item for key, item in module.table.items()}
    for name, tensor in (tensors | {f"steps.{index}": item for index, item in enumerate(module.steps)}).items():
        found.add(name, "tensor", tensor, False)
    return found.truth()


def run_of(name: str, module: nn.Module, arguments: tuple, specs: list[str]) -> dict:
    facts = truth.of_run(module, arguments, specs)
    if name == "transformer_encoder":
        # The fast path computes a whole layer in one op: nothing below a layer is called.
        for row in facts["modules"]:
            if row["path"].count(".") > 2:
                row |= {"calls": 0, "outputs": [], "flops": 0}
    if name == "shared_module":
        # Hooks know one module, a run sees one call under each parent; the parameters are the first one's.
        rows = facts["modules"]
        left = next(index for index, row in enumerate(rows) if row["path"] == "left.0")
        one = rows[left - 1]["flops"]
        rows[left] |= {"calls": 1, "flops": one}
        right = next(index for index, row in enumerate(rows) if row["path"] == "right")
        rows.insert(right + 1, rows[left] | {"path": "right.0", "parameters": {"numel": 0, "bytes": 0}})
    if name in ("lstm_tagger", "gru", "many_calls"):
        # PyTorch's counter has no formula for the fused recurrent ops; the matrix products in them, by hand.
        gates = {"lstm_tagger": lstm_flops(), "gru": 5 * 2 * (2 * 24 * 4 + 2 * 24 * 8), "many_calls": 6 * 2 * (2 * 12 * 4 + 2 * 12 * 4) + 2 * 2 * 4 * 2}[name]
        facts |= {"flops": gates, "macs": gates // 2, "flops_by_counter": facts["flops"]}
        for row in facts["modules"]:
            row["flops"] = None
    return facts


def lstm_flops() -> int:
    steps, directions, hidden = 12, 2, 6
    first = 2 * 4 * hidden * (8 + hidden)
    second = 2 * 4 * hidden * (2 * hidden + hidden)
    return steps * directions * (first + second) + steps * 2 * 12 * 5


def values(module: nn.Module, arguments: tuple) -> list[dict]:
    """Sum and first elements of every output with these arguments, to see that a run computes the right thing."""
    with torch.no_grad():
        value = module(*arguments)
    found: list[dict] = []

    def walk(item: object, path: str) -> None:
        if isinstance(item, Tensor):
            flat = item.double().flatten()
            found.append({"path": path, "sum": flat.sum().item(), "first": flat[:4].tolist()})
        elif isinstance(item, dict):
            for key, inner in item.items():
                walk(inner, f"{path}.{key}" if path else key)
        elif isinstance(item, (tuple, list)):
            for index, inner in enumerate(item):
                walk(inner, f"{path}.{index}" if path else str(index))

    walk(value, "")
    return found


def put(folder: Path, made: dict, name: str, script: torch.jit.ScriptModule, facts: dict | None, description: str) -> None:
    content = archive.without_debug(archive.members(script.save_to_buffer()))
    path = folder / name
    # Stored as PyTorch writes them, as long as they are small: some have much code.
    archive.write(path, archive.rename_root(content, path.stem), deflate=sum(map(len, content.values())) > 12_000)
    torch.jit.load(path)
    if facts is not None:
        truth.write(path, facts)
    made[name] = description


def variants(folder: Path, made: dict) -> None:
    """Other ways to write and to hold the same networks."""
    image, rows = ramp(1, 3, 32, 32), ramp(2, 16)
    cnn = fill(TinyCnn()).eval()
    facts = truth.of_module(cnn) | {"run": truth.of_run(cnn, (image,), ["1x3x32x32"])}
    facts["run"]["values"] = values(cnn, (image,))
    put(folder, made, "tiny_cnn_traced.pt", torch.jit.trace(cnn, image), facts, "tiny_cnn, traced")
    frozen = torch.jit.freeze(torch.jit.script(cnn))
    put(folder, made, "tiny_cnn_frozen.pt", frozen, {"run": facts["run"] | {"modules": []}}, "tiny_cnn, frozen: its weights are constants")

    for dtype, short in ((torch.bfloat16, "bf16"), (torch.float16, "half")):
        module = fill(Mlp()).to(dtype).eval()
        run = truth.of_run(module, (rows.to(dtype),), [f"2x16:{truth.dtype_name(dtype)}"])
        run["values"] = values(module, (rows.to(dtype),))
        put(folder, made, f"mlp_{short}.pt", torch.jit.script(module), truth.of_module(module) | {"run": run}, f"mlp in {truth.dtype_name(dtype)}")

    torch.backends.quantized.engine = "fbgemm"
    quantized = torch.ao.quantization.quantize_dynamic(fill(Mlp()).eval(), {nn.Linear})
    packed = []
    for index in (0, 3):
        layer = quantized.layers[index]
        packed.append({"path": f"layers.{index}", "weight": tensor_facts(layer.weight()), "bias": tensor_facts(layer.bias())})
    run = {"input": ["2x16"], "outputs": truth.outputs(quantized(rows)), "values": values(quantized, (rows,))}
    put(folder, made, "mlp_quantized.pt", torch.jit.script(quantized), {"packed": packed, "run": run}, "mlp, dynamically quantized: packed int8 weights")

    script = torch.jit.script(fill(Mlp()).eval())
    content = archive.without_debug(archive.members(script._save_to_buffer_for_lite_interpreter()))
    archive.write(folder / "mlp_mobile.ptl", archive.rename_root(content, "mlp_mobile"), deflate=False)
    truth.write(folder / "mlp_mobile.ptl", truth.of_module(fill(Mlp())))
    made["mlp_mobile.ptl"] = "mlp, saved for the mobile interpreter, with bytecode"

    nested = Nested()
    arguments = ((ramp(2), ramp(2)), [ramp(3), ramp(1)], {"k": ramp(4)})
    run = {"input": None, "outputs": truth.outputs(nested(*arguments)), "values": values(nested, arguments)}
    put(folder, made, "nested.pt", torch.jit.script(nested), truth.of_module(nested) | {"run": run}, "tuples, lists and dicts as inputs and outputs")


def tensor_facts(tensor: Tensor) -> dict:
    return {"dtype": truth.dtype_name(tensor.dtype), "shape": list(tensor.shape), "bytes": tensor.numel() * tensor.element_size()}


def cannot_run(folder: Path, made: dict) -> None:
    raises = fill(Raises()).eval()
    facts = truth.of_module(raises) | {"run": {"input": ["2x3"], "error": "this model refuses every batch"}}
    put(folder, made, "raises.pt", torch.jit.script(raises), facts, "a forward that raises")

    silent = fill(NoForward()).eval()
    facts = truth.of_module(silent) | {"run": {"input": ["2x3"], "method": "encode", "outputs": truth.outputs(silent.encode(ramp(2, 3)))}}
    put(folder, made, "no_forward.pt", torch.jit.script(silent), facts, "no forward, but a method `encode`")

    # A file-system op can not be written in TorchScript by hand in Python; it is put into the code of a harmless one.
    content = archive.members(torch.jit.script(Scalar()).save_to_buffer())
    content = archive.without_debug(archive.rename_root(content, "writes_file"))
    code = next(name for name in content if name.endswith("models.py"))
    text = content[code].decode()
    changed = text.replace("    return ", "    ops.aten.save(x, \"inspect-fixture-must-not-exist\")\n    return ", 1)
    assert changed != text, text
    content[code] = changed.encode()
    archive.write(folder / "writes_file.pt", content, deflate=False)
    torch.jit.load(io.BytesIO((folder / "writes_file.pt").read_bytes()))
    truth.write(folder / "writes_file.pt", {"run": {"input": ["[]:float32"], "must_not_exist": "inspect-fixture-must-not-exist"}})
    made["writes_file.pt"] = "a forward that writes a file with aten::save"
