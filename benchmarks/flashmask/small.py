# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Small problems, the cost of a call, and fp16 beside bf16.

python -m benchmarks.flashmask.small [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.timing import environment, interleaved, write
from flashmask import FlashMask, flashmask_attention, masks

SHORT = ((8, 128, 8, 64), (8, 128, 12, 64), (8, 128, 8, 128), (32, 64, 8, 64))


def short(shape: tuple[int, int, int, int], dtype: torch.dtype) -> dict[str, Any]:
    """Full attention over a batch of short sequences, against SDPA."""
    inputs = [torch.randn(shape).to(dtype).requires_grad_() for _ in range(3)]
    views = [x.transpose(1, 2) for x in inputs]
    grad = torch.randn(shape).to(dtype)
    turned = grad.transpose(1, 2)

    def ours() -> Tensor:
        return flashmask_attention(*inputs)

    def sdpa() -> Tensor:
        return scaled_dot_product_attention(*views)

    with torch.no_grad():
        forward = interleaved({"flashmask": ours, "sdpa": sdpa}, rounds=15)
    training = interleaved(
        {
            "flashmask": lambda: torch.autograd.grad(ours(), inputs, grad),
            "sdpa": lambda: torch.autograd.grad(sdpa(), inputs, turned),
        },
        rounds=15,
    )
    return {
        "shape": "x".join(map(str, shape)),
        "dtype": str(dtype).removeprefix("torch."),
        "forward_us": {k: round(v * 1e6, 1) for k, v in forward.items()},
        "training_us": {k: round(v * 1e6, 1) for k, v in training.items()},
        "forward_speedup": round(forward["sdpa"] / forward["flashmask"], 2),
        "training_speedup": round(training["sdpa"] / training["flashmask"], 2),
    }


def overhead() -> dict[str, float]:
    """Microseconds of a call whose kernel has nothing to do: no rows, so no tile and no thread."""
    query, key = torch.randn(1, 0, 4, 64), torch.randn(1, 16, 4, 64)
    grad = torch.randn(1, 0, 4, 64)
    trained = [x.clone().requires_grad_() for x in (query, key, key)]
    mask = masks.causal(16, seqlen_q=0).prepared()
    bounds = torch.full((1, 1, 16, 1), 0, dtype=torch.int32)
    out = flashmask_attention(*trained)
    op = torch.ops.flashmask.forward.default
    turned = [x.transpose(1, 2) for x in (query, key, key)]
    seconds = interleaved(
        {
            "public call": lambda: flashmask_attention(query, key, key),
            "public call with bounds": lambda: flashmask_attention(
                query, key, key, bounds, causal=True
            ),
            "public call with a FlashMask": lambda: flashmask_attention(query, key, key, mask),
            "public call that records a gradient": lambda: flashmask_attention(*trained),
            "backward": lambda: torch.autograd.grad(out, trained, grad, retain_graph=True),
            "op alone": lambda: op(query, key, key, None, None, None, False, 0.125),
            "scaled_dot_product_attention": lambda: scaled_dot_product_attention(*turned),
        },
        rounds=25,
    )
    return {name: round(value * 1e6, 2) for name, value in seconds.items()}


def half(seqlen: int, heads: int, dim: int, mask: FlashMask) -> dict[str, Any]:
    """Forward in fp16 beside bf16."""
    inputs = torch.randn(3, 1, seqlen, heads, dim)
    bf16, fp16 = inputs.to(torch.bfloat16), inputs.to(torch.float16)
    seconds = interleaved(
        {
            "bfloat16": lambda: flashmask_attention(*bf16, mask),
            "float16": lambda: flashmask_attention(*fp16, mask),
        },
        rounds=11,
    )
    return {
        "shape": f"{seqlen}x{heads}x{dim}",
        "causal": mask.causal,
        "forward_ms": {k: round(v * 1e3, 2) for k, v in seconds.items()},
        "fp16_over_bf16": round(seconds["float16"] / seconds["bfloat16"], 3),
    }


def main() -> None:
    """Runs the three tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the JSON there instead of to stdout")
    args = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "flashmask.small", "environment": environment()}
    result["overhead_us"] = overhead()
    print(result["overhead_us"], file=sys.stderr, flush=True)
    result["short_sequences"] = []
    for shape in SHORT:
        for dtype in (torch.bfloat16, torch.float32):
            result["short_sequences"].append(short(shape, dtype))
            print(result["short_sequences"][-1], file=sys.stderr, flush=True)
    result["half"] = []
    for seqlen, heads, dim in ((4096, 4, 128), (4096, 8, 64)):
        for mask in (masks.full(seqlen), masks.causal(seqlen)):
            result["half"].append(half(seqlen, heads, dim, mask.prepared()))
            print(result["half"][-1], file=sys.stderr, flush=True)
    write(args.json, result)


if __name__ == "__main__":
    main()
