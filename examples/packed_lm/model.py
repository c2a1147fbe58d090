# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A small transformer of today's kind: RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from packed_lm.attention import Attend, Mask
from packed_lm.data import VOCABULARY


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the model; the default has about 10 million parameters."""

    layers: int = 4
    width: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    hidden: int = 1024


class Cache:
    """Keys and values of the tokens a layer has already seen, for writing one token at a time."""

    def __init__(self) -> None:
        self.kept: tuple[Tensor, Tensor] | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.kept is not None:
            key, value = torch.cat((self.kept[0], key), 1), torch.cat((self.kept[1], value), 1)
        self.kept = key, value
        return self.kept


class Attention(nn.Module):
    def __init__(self, shape: Shape, attend: Attend) -> None:
        super().__init__()
        self.shape, self.attend = shape, attend
        values = shape.kv_heads * shape.head_dim
        rows = shape.heads * shape.head_dim + 2 * values
        # A bias lets a head ask for a distance, such as the byte before, whatever the bytes are.
        self.qkv = nn.Linear(shape.width, rows)
        query_key, value = self.qkv.bias.split((rows - values, values))
        nn.init.normal_(query_key)
        nn.init.zeros_(value)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.width, bias=False)
        # Normalized queries and keys keep the scores tame at a high learning rate.
        self.query_norm = nn.RMSNorm(shape.head_dim)
        self.key_norm = nn.RMSNorm(shape.head_dim)

    def forward(self, x: Tensor, turn: Tensor, mask: Mask, cache: Cache | None) -> Tensor:
        shape = self.shape
        # [B, S, H, D] throughout: this is the layout of flashmask_attention, and what a linear
        # layer gives.
        qkv = self.qkv(x).unflatten(-1, (-1, shape.head_dim))
        query, key, value = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=2)
        query = rotate(self.query_norm(query.float()), turn).to(value.dtype)
        key = rotate(self.key_norm(key.float()), turn).to(value.dtype)
        if cache is not None:
            key, value = cache.extend(key, value)
        return self.out(self.attend(query, key, value, mask).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, shape: Shape, attend: Attend) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.attention, self.mlp = Attention(shape, attend), SwiGLU(shape)

    def forward(self, x: Tensor, turn: Tensor, mask: Mask, cache: Cache | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turn, mask, cache)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Bytes in, scores of the next byte out; or the mean loss, if the next bytes are given."""

    def __init__(self, shape: Shape, attend: Attend) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape, attend) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        # Embeddings keep size 1, and what is added to them begins small. Small but not zero: else
        # the gradients of queries and keys would grow by orders of magnitude within a few steps,
        # and Adam would overshoot.
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and parameter is not self.embedding.weight:
                added = name.endswith(("attention.out.weight", "mlp.down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5 if added else 0.02)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Mask,
        targets: Tensor | None = None,
        caches: list[Cache] | None = None,
    ) -> Tensor:
        turn = turns(positions, self.shape.head_dim)
        x = self.embedding(tokens)
        for index, block in enumerate(self.blocks):
            x = block(x, turn, mask, None if caches is None else caches[index])
        scores = self.head(self.norm(x)).float()
        if targets is None:
            return scores
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def turns(positions: Tensor, head_dim: int) -> Tensor:
    """Return cosine and sine of the rotary angles, `[2, B, S, 1, head_dim / 2]`.

    Positions count from the start of each document, so a document is read the same wherever it
    lies in a packed sequence.
    """
    steps = torch.arange(0, head_dim, 2, device=positions.device) / head_dim
    angle = positions[..., None].float() * 10_000.0**-steps
    return torch.stack((angle.cos(), angle.sin()))[..., None, :]


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn each pair of channels by the angle of its position."""
    (cosine, sine), (left, right) = turn, x.float().chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, left * sine + right * cosine), dim=-1)
