# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How fast is FlashMask attention on this CPU, beside everything torch itself offers there?

    python -m benchmarks.flashmask.cpu [--quick] [--json FILE]

Per cell (mask family x shape x dtype): forward of FlashMask, compiled FlexAttention, SDPA with a
dense mask and, for the causal family, SDPA is_causal; forward + backward of all but FlexAttention,
which has no CPU backward. A torch.matmul runs in every round and is the yardstick. Rates count
visible pairs only: 4 D flops a pair forward, 10 D backward (five products). Building masks and
plans is timed apart. Outputs and gradients are checked against float64 on sampled rows and columns
in the same run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.flashmask.check import Check
from benchmarks.flashmask.families import FAMILIES, QUICK, Family, MaskMod
from benchmarks.timing import environment, gemm, interleaved, write
from flashmask import flashmask_attention

SHAPES = ((4096, 4, 128), (8192, 2, 128), (4096, 8, 64), (16384, 2, 128))
DTYPES = (torch.bfloat16, torch.float32)


def block_mask_of(mask_mod: MaskMod, seqlen: int) -> BlockMask:
    """What FlexAttention wants to know of a mask."""
    return create_block_mask(mask_mod, None, None, seqlen, seqlen, device="cpu")


def measure(
    family: Family, shape: tuple[int, int, int], dtype: torch.dtype, quick: bool
) -> dict[str, Any]:
    """All numbers of one cell."""
    seqlen, heads, dim = shape
    torch.manual_seed(0)
    query, key, value, grad = (torch.randn(1, seqlen, heads, dim).to(dtype) for _ in range(4))
    bhsd = [x.transpose(1, 2) for x in (query, key, value)]
    mask = family.build(seqlen).prepared()
    mask_mod = family.mask_mod(seqlen)
    dense = mask.to_dense(max_elements=seqlen**2)[0, 0]
    bias = torch.zeros(seqlen, seqlen, dtype=dtype).masked_fill_(~dense, float("-inf"))
    pairs = int(dense.sum()) * heads
    del dense

    torch.compiler.reset()  # a ninth mask closure would silently run FlexAttention unfused
    compiled = torch.compile(flex_attention, dynamic=False)
    block_mask = block_mask_of(mask_mod, seqlen)
    matmul, matmul_flops = gemm(dtype)
    forward = {
        "gemm": matmul,
        "flashmask": lambda: flashmask_attention(query, key, value, mask),
        "sdpa_dense": lambda: scaled_dot_product_attention(*bhsd, attn_mask=bias),
        "flex": lambda: compiled(*bhsd, block_mask=block_mask),
    }
    if family.name == "causal":
        forward["sdpa_causal"] = lambda: scaled_dot_product_attention(*bhsd, is_causal=True)
    with torch.no_grad():
        seconds = interleaved(forward)
        unplanned = family.build(seqlen)
        build = interleaved(
            {
                "mask": lambda: family.build(seqlen),
                "plan": unplanned.prepared,
                "block_mask": lambda: block_mask_of(mask_mod, seqlen),
            }
        )

    training = {}
    inputs = [x.clone().requires_grad_() for x in (query, key, value)]
    views = [x.transpose(1, 2) for x in inputs]
    bhsd_grad = grad.transpose(1, 2)
    training["flashmask"] = lambda: torch.autograd.grad(
        flashmask_attention(*inputs, mask), inputs, grad
    )
    training["sdpa_dense"] = lambda: torch.autograd.grad(
        scaled_dot_product_attention(*views, attn_mask=bias), inputs, bhsd_grad
    )
    if family.name == "causal":
        training["sdpa_causal"] = lambda: torch.autograd.grad(
            scaled_dot_product_attention(*views, is_causal=True), inputs, bhsd_grad
        )
    out = flashmask_attention(*inputs, mask)
    training["flashmask_backward"] = lambda: torch.autograd.grad(
        out, inputs, grad, retain_graph=True
    )
    both = interleaved({"gemm": matmul, **training})

    check = Check(query, key, value, grad, mask, mask_mod)
    rate = matmul_flops / seconds["gemm"] / 1e9
    return {
        "family": family.name,
        "shape": f"{seqlen}x{heads}x{dim}",
        "dtype": str(dtype).removeprefix("torch."),
        "density": round(pairs / heads / seqlen**2, 4),
        "forward_ms": _ms(seconds),
        "forward_backward_ms": _ms(
            {k: v for k, v in both.items() if k not in ("gemm", "flashmask_backward")}
        ),
        "backward_ms": round(both["flashmask_backward"] * 1e3, 3),
        "build_ms": _ms(build),
        "gflops": {
            "gemm": round(rate, 1),
            **{k: round(4 * pairs * dim / v / 1e9, 1) for k, v in seconds.items() if k != "gemm"},
            "flashmask_backward": round(10 * pairs * dim / both["flashmask_backward"] / 1e9, 1),
        },
        "of_gemm": {
            "forward": round(4 * pairs * dim / seconds["flashmask"] / 1e9 / rate, 3),
            "backward": round(
                10 * pairs * dim / both["flashmask_backward"] * both["gemm"] / matmul_flops, 3
            ),
        },
        "speedup": {
            **{
                f"forward_vs_{k}": round(seconds[k] / seconds["flashmask"], 2)
                for k in seconds
                if k[0] in "sf" and k != "flashmask"
            },
            "forward_with_plan_vs_flex_with_block_mask": round(
                (seconds["flex"] + build["block_mask"])
                / (seconds["flashmask"] + build["mask"] + build["plan"]),
                2,
            ),
            **{
                f"training_vs_{k}": round(both[k] / both["flashmask"], 2)
                for k in both
                if k.startswith("sdpa")
            },
        },
        "max_error_vs_float64": check.errors(quick),
    }


def _ms(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value * 1e3, 4) for name, value in seconds.items()}


COLUMNS = (
    ("shape", 12, lambda c: c["shape"]),
    ("dtype", 9, lambda c: c["dtype"]),
    ("family", 22, lambda c: c["family"]),
    ("density", 8, lambda c: f"{c['density']:.3f}"),
    ("fwd ms", 8, lambda c: f"{c['forward_ms']['flashmask']:.2f}"),
    ("fwd/gemm", 9, lambda c: f"{c['of_gemm']['forward']:.2f}"),
    ("bwd/gemm", 9, lambda c: f"{c['of_gemm']['backward']:.2f}"),
    ("x flex", 7, lambda c: _times(c, "forward_vs_flex")),
    ("x dense", 8, lambda c: _times(c, "forward_vs_sdpa_dense")),
    ("x causal", 9, lambda c: _times(c, "forward_vs_sdpa_causal")),
    ("f+b x dense", 12, lambda c: _times(c, "training_vs_sdpa_dense")),
    ("f+b x causal", 13, lambda c: _times(c, "training_vs_sdpa_causal")),
    ("plan ms", 8, lambda c: f"{c['build_ms']['plan']:.3f}"),
    ("max error", 10, lambda c: f"{max(c['max_error_vs_float64'].values()):.1e}"),
)


def _times(cell: dict[str, Any], name: str) -> str:
    return f"{cell['speedup'][name]:.1f}" if name in cell["speedup"] else "-"


def _line(values: Iterable[str]) -> str:
    return "".join(f"{v:>{width}}" for v, (_, width, _) in zip(values, COLUMNS, strict=True))


def main() -> None:
    """Runs the cells, prints a table to stderr and JSON to stdout or a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one shape and three families")
    parser.add_argument("--json", metavar="FILE", help="write the JSON there instead of to stdout")
    parser.add_argument("--shape", action="append", help="only this shape, as in 4096x4x128")
    parser.add_argument("--family", action="append", help="only this family (may be repeated)")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), help="only this dtype"
    )
    args = parser.parse_args()

    shapes = SHAPES[:1] if args.quick else SHAPES
    if args.shape:
        shapes = [tuple(map(int, shape.split("x"))) for shape in args.shape]
    names = args.family or (QUICK if args.quick else [f.name for f in FAMILIES])
    dtypes = (getattr(torch, args.dtype),) if args.dtype else DTYPES
    cells = []
    print(_line(name for name, _, _ in COLUMNS), file=sys.stderr)
    for dtype in dtypes:
        for shape in shapes:
            for family in FAMILIES:
                if family.name in names:
                    cells.append(measure(family, shape, dtype, args.quick))
                    cell = cells[-1]
                    print(_line(f(cell) for _, _, f in COLUMNS), file=sys.stderr, flush=True)
    write(args.json, {"benchmark": "flashmask.cpu", "environment": environment(), "cells": cells})


if __name__ == "__main__":
    main()
