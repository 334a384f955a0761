"""Networks that scripts/compare_cuda_sim.py runs besides the fixtures: torchvision's and a few of our own, too large to
commit. Each is made as a scripted TorchScript file once; `build` gives the eager module."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


class Decoder(nn.Module):
    """Embedding, `nn.TransformerDecoder` over a memory, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8000, 256)
        layer = nn.TransformerDecoderLayer(256, 8, 1024, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 4)
        self.head = nn.Linear(256, 8000)

    def forward(self, ids: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return self.head(self.decoder(self.embed(ids), memory))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.size(0), x.size(1), x.size(2)
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """A decoder-only language model with a tied head."""

    def __init__(self, vocabulary: int = 8000, width: int = 512, heads: int = 8, blocks: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(512, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Tagger(nn.Module):
    """Two bidirectional LSTM layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10_000, 128)
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.out = nn.Linear(512, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embed(ids))[0])


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(64, 128, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0]


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


OWN = {"decoder": Decoder, "encoder": encoder, "gpt": Gpt, "tagger": Tagger, "gru": Gru}
IMAGES = ["resnet50", "efficientnet_b0", "densenet121", "convnext_tiny", "swin_t"]
# Inputs without the batch, which comes first in each.
INPUTS = {name: ["3x224x224"] for name in [*IMAGES, "resnet18", "vgg16", "mobilenet_v3_small", "vit_b_16"]} | {
    "decoder": ["64:int64", "96x256"],
    "encoder": ["128x512"],
    "gpt": ["256:int64"],
    "tagger": ["40:int64"],
    "gru": ["50x64"],
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name in OWN:
        return OWN[name]()
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def made(name: str, folder: Path) -> Path:
    """The TorchScript file of a network, made when it is missing."""
    path = folder / f"{name}.pt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        torch.jit.script(build(name)).save(str(partial))
        partial.rename(path)
    return path
