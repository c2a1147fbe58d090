# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Small programs in plain torch that the recorders can run: training and generation, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vmm.errors import Invalid
from vmm.sim.recorders.fake_tensor import FakeTensorRecorder
from vmm.sim.trace import Trace

Step = Callable[[], None]


@dataclass(frozen=True)
class Scale:
    """Sizes of a program. `lengths` are tokens of the sequences, one step each."""

    layers: int = 4
    hidden: int = 1024
    heads: int = 16
    vocabulary: int = 32000
    batch: int = 4
    lengths: Sequence[int] = (2048, 1333, 1777)
    experts: int = 8
    top: int = 2
    rank: int = 16


class Attention(nn.Module):
    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.heads = scale.heads
        self.qkv = nn.Linear(scale.hidden, 3 * scale.hidden)
        self.out = nn.Linear(scale.hidden, scale.hidden)

    def forward(self, x: Tensor, past: list[Tensor] | None = None) -> Tensor:
        """x: batch, tokens, hidden. `past` is the keys and values so far; it is replaced."""
        batch, tokens, hidden = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self.heads, hidden // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        if past is not None:
            if past:
                k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            past[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1)
        joined: Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, hidden))
        return joined


class Dense(nn.Module):
    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.up = nn.Linear(scale.hidden, 4 * scale.hidden)
        self.down = nn.Linear(4 * scale.hidden, scale.hidden)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


class Experts(nn.Module):
    """Token-choice routing to experts that run one after the other.

    Sizes must not depend on data here, so tokens are dealt out in turn rather than by the scores.
    """

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.top = scale.top
        self.router = nn.Linear(scale.hidden, scale.experts, bias=False)
        self.experts = nn.ModuleList(Dense(scale) for _ in range(scale.experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights = self.router(flat).softmax(-1).topk(self.top)[0]
        rows, count = flat.shape[0] * self.top, len(self.experts)
        order = torch.arange(rows, device=x.device) // self.top
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            # Uneven shares: the first expert gets most.
            first, last = (
                rows * each * (2 * count - each) // count**2 for each in (number, number + 1)
            )
            chosen = order[first:last]
            part = expert(flat[chosen]) * weights.reshape(-1, 1)[first:last]
            result = result.index_add(0, chosen, part)
        return result.view_as(x)


class Adapted(nn.Module):
    """A frozen linear layer beside a trained pair of low rank."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.low = nn.Linear(base.in_features, rank, bias=False)
        self.high = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.high(self.low(x))
        return y


class Block(nn.Module):
    def __init__(self, scale: Scale, experts: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(scale.hidden) for _ in range(2))
        self.attention = Attention(scale)
        self.body = Experts(scale) if experts else Dense(scale)

    def forward(self, x: Tensor, past: list[Tensor] | None = None) -> Tensor:
        x = x + self.attention(self.norms[0](x), past)
        y: Tensor = x + self.body(self.norms[1](x))
        return y


class Model(nn.Module):
    """Tokens to logits. `recompute` checkpoints each block."""

    def __init__(self, scale: Scale, experts: bool = False, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(scale.vocabulary, scale.hidden)
        self.blocks = nn.ModuleList(Block(scale, experts) for _ in range(scale.layers))
        self.head = nn.Linear(scale.hidden, scale.vocabulary, bias=False)

    def forward(self, tokens: Tensor, past: list[list[Tensor]] | None = None) -> Tensor:
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            if self.recompute:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, None if past is None else past[number])
        logits: Tensor = self.head(x)
        return logits


def _train(model: Model, scale: Scale, step: Step, pieces: int = 1) -> None:
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False)
    for length in scale.lengths:
        for _ in range(pieces):
            tokens = torch.zeros(scale.batch, length, dtype=torch.long)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            torch.autograd.backward(loss / pieces)
            del loss, tokens
        optimizer.step()
        optimizer.zero_grad()
        step()


def dense(scale: Scale, step: Step) -> None:
    """A transformer at the first length only."""
    fixed = Scale(**{**vars(scale), "lengths": [scale.lengths[0]] * len(scale.lengths)})
    _train(Model(fixed), fixed, step)


def varlen(scale: Scale, step: Step) -> None:
    """A transformer, every step another length."""
    _train(Model(scale), scale, step)


def moe(scale: Scale, step: Step) -> None:
    """Mixture of experts."""
    _train(Model(scale, experts=True), scale, step)


def lora(scale: Scale, step: Step) -> None:
    """Adapters on the projections of attention, everything else frozen."""
    model = Model(scale).requires_grad_(False)
    for block in model.blocks:
        attention = block.attention
        assert isinstance(attention, Attention)
        for name in ("qkv", "out"):
            setattr(attention, name, Adapted(getattr(attention, name), scale.rank))
    _train(model, scale, step)


def recompute(scale: Scale, step: Step) -> None:
    """Checkpointed blocks."""
    _train(Model(scale, recompute=True), scale, step)


def accumulation(scale: Scale, step: Step) -> None:
    """Two backward passes for one step of the optimizer."""
    _train(Model(scale), scale, step, pieces=2)


@torch.no_grad()
def generation(scale: Scale, step: Step) -> None:
    """Decoding 8 tokens with a cache of keys and values that is concatenated every time."""
    model = Model(scale)
    for length in scale.lengths:
        past: list[list[Tensor]] = [[] for _ in range(scale.layers)]
        tokens = torch.zeros(scale.batch, length, dtype=torch.long)
        for _ in range(8):
            tokens = model(tokens, past)[:, -1:].argmax(-1)
        step()


WORKLOADS: dict[str, Callable[[Scale, Step], None]] = {
    "dense": dense,
    "varlen": varlen,
    "moe": moe,
    "lora": lora,
    "recompute": recompute,
    "accumulation": accumulation,
    "generation": generation,
}


def record(name: str, scale: Scale | None = None) -> Trace:
    """The trace of a program at real sizes, without memory; raises `Invalid` for a bad name."""
    if name not in WORKLOADS:
        raise Invalid(f"there is no program {name!r}; known are {', '.join(WORKLOADS)}")
    with FakeTensorRecorder(name) as recorder:
        WORKLOADS[name](scale or Scale(), recorder.step)
    return recorder.trace()
