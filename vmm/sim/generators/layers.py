# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The operators of a pre-norm transformer with rotary embeddings and gated feed-forward.

Activations are bfloat16. Names of values: a layer takes `x` and makes `y`; the head takes `x`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vmm.sim.generators.graph import Op

BF16, FP32, INT64 = 2, 4, 8


@dataclass(frozen=True)
class Shape:
    """Widths in elements. `rank` > 0 freezes the weights and adds adapters of that rank."""

    hidden: int
    heads: int
    kv: int  # width of the keys, and of the values
    ffn: int
    vocabulary: int = 0
    rank: int = 0

    @property
    def qkv(self) -> int:
        return self.hidden + 2 * self.kv

    def attention_weights(self) -> dict[str, int]:
        """Elements of each weight."""
        h = self.hidden
        return {"norm 1": h, "qkv": h * self.qkv, "projection": h * h}

    def ffn_weights(self) -> dict[str, int]:
        h, f = self.hidden, self.ffn
        return {"norm 2": h, "gate": h * f, "up": h * f, "down": f * h}

    def layer_weights(self) -> dict[str, int]:
        return self.attention_weights() | self.ffn_weights()

    def adapter_weights(self) -> dict[str, int]:
        if not self.rank:
            return {}
        return {
            "qkv a": self.hidden * self.rank,
            "qkv b": self.rank * self.qkv,
            "down a": self.ffn * self.rank,
            "down b": self.rank * self.hidden,
        }

    def head_weights(self) -> dict[str, int]:
        v = self.hidden * self.vocabulary
        return {"embedding": v, "norm": self.hidden, "head": v}


def linear(
    name: str, source: str, target: str, rows: int, ins: int, outs: int, trained: bool = True
) -> Op:
    """A matrix product; a frozen weight needs no input for its backward and makes no gradient."""
    return Op(
        name,
        (source,),
        ((target, rows * outs * BF16),),
        saves=(source,) if trained else (),
        weight=ins * outs * BF16 if trained else 0,
        flops=2 * rows * ins * outs,
    )


def norm(name: str, source: str, target: str, rows: int, width: int, trained: bool = True) -> Op:
    stats = f"{target} stats"
    return Op(
        name,
        (source,),
        ((target, rows * width * BF16), (stats, rows * FP32)),
        saves=(source, stats),
        weight=width * BF16 if trained else 0,
    )


def add(source: str, other: str, target: str, size: int) -> Op:
    return Op("add", (source, other), ((target, size),), passes=True)


def projection(
    name: str, source: str, target: str, rows: int, ins: int, outs: int, rank: int
) -> list[Op]:
    """A linear layer; with a rank, a frozen one beside a low-rank adapter."""
    if not rank:
        return [linear(name, source, target, rows, ins, outs)]
    base, low, high = (f"{name} {part}" for part in ("base", "low", "high"))
    return [
        linear(name, source, base, rows, ins, outs, trained=False),
        linear(f"{name} a", source, low, rows, ins, rank),
        linear(f"{name} b", low, high, rows, rank, outs),
        add(base, high, target, rows * outs * BF16),
    ]


def attention(s: Shape, rows: int, source: str = "x", target: str = "mid") -> list[Op]:
    """Norm, attention without a stored score matrix, and the sum with the source."""
    h, size = s.hidden, rows * s.hidden * BF16
    kv = rows * s.kv * BF16
    return [
        norm("norm 1", source, "n1", rows, h, not s.rank),
        *projection("qkv", "n1", "qkv", rows, h, s.qkv, s.rank),
        Op("rotary", ("qkv",), (("q", size), ("k", kv), ("v", kv))),
        Op(
            "attention",
            ("q", "k", "v"),
            (("o", size), ("lse", rows * s.heads * FP32)),
            saves=("q", "k", "v", "o", "lse"),
            flops=2 * rows * rows * h,
        ),
        linear("projection", "o", "p", rows, h, h, trained=not s.rank),
        add(source, "p", target, size),
    ]


def gated(
    prefix: str, s: Shape, rows: int, source: str, target: str, width: int, rank: int = 0
) -> list[Op]:
    """A gated feed-forward of some width."""
    gate, up, silu, product = (f"{prefix}{name}" for name in ("gate", "up", "silu", "product"))
    size, trained = rows * width * BF16, not rank
    return [
        linear(gate, source, gate, rows, s.hidden, width, trained),
        linear(up, source, up, rows, s.hidden, width, trained),
        Op(silu, (gate,), ((silu, size),), saves=(gate,)),
        Op(product, (silu, up), ((product, size),), saves=(silu, up)),
        *projection(f"{prefix}down", product, target, rows, width, s.hidden, rank),
    ]


def feed_forward(s: Shape, rows: int, source: str = "mid", target: str = "y") -> list[Op]:
    return [
        norm("norm 2", source, "n2", rows, s.hidden, not s.rank),
        *gated("", s, rows, "n2", "f", s.ffn, s.rank),
        add(source, "f", target, rows * s.hidden * BF16),
    ]


def layer(s: Shape, rows: int) -> list[Op]:
    """One layer: `x` to `y`, both rows by hidden."""
    return attention(s, rows) + feed_forward(s, rows)


def head(s: Shape, rows: int) -> list[Op]:
    """Logits in bfloat16 and again in float32, log-softmax and the loss, a scalar."""
    wide = rows * s.vocabulary
    return [
        norm("norm", "x", "n", rows, s.hidden, not s.rank),
        linear("head", "n", "logits", rows, s.hidden, s.vocabulary, trained=not s.rank),
        Op("cast", ("logits",), (("logits 32", wide * FP32),)),
        Op("log softmax", ("logits 32",), (("log p", wide * FP32),), saves=("log p",)),
        Op("loss", ("log p",), (("loss", FP32),)),
    ]
