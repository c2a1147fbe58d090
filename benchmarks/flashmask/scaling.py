# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Does work grow with visible pairs, and memory with the sequence?

    python -m benchmarks.flashmask.scaling [--json FILE] [--plot FILE]

A sliding window of 1024 keys, one head, D = 64, bf16, S = 1K .. 128K: forward and backward time,
time to plan, and the memory above inputs and outputs that forward + backward take at their highest
(resident set of a process of its own).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import environment, interleaved, write
from flashmask import flashmask_attention, masks

LENGTHS = tuple(1024 << i for i in range(8))
WINDOW, DIM = 1024, 64


def inputs(seqlen: int) -> list[torch.Tensor]:
    """query, key, value and the gradient of the output."""
    torch.manual_seed(0)
    return [torch.randn(1, seqlen, 1, DIM).to(torch.bfloat16) for _ in range(4)]


def measure(seqlen: int) -> dict[str, Any]:
    """Times of one length."""
    *qkv, grad = inputs(seqlen)
    qkv = [x.requires_grad_() for x in qkv]
    window = min(WINDOW, seqlen)
    mask = masks.sliding_window(seqlen, window=window)
    planned = mask.prepared()
    out = flashmask_attention(*qkv, planned)

    def forward() -> None:
        with torch.no_grad():
            flashmask_attention(*qkv, planned)

    seconds = interleaved(
        {
            "forward": forward,
            "backward": lambda: torch.autograd.grad(out, qkv, grad, retain_graph=True),
            "plan": lambda: torch.ops.flashmask.plan(
                mask.startend_row_indices, None, seqlen, seqlen, True
            ),
        },
        budget_s=5,
    )
    pairs = window * (window + 1) // 2 + (seqlen - window) * window
    return {
        "seqlen": seqlen,
        "visible_pairs": pairs,
        **{f"{name}_ms": round(value * 1e3, 4) for name, value in seconds.items()},
        "forward_gflops": round(4 * pairs * DIM / seconds["forward"] / 1e9, 1),
        "backward_gflops": round(10 * pairs * DIM / seconds["backward"] / 1e9, 1),
    }


def peak_memory(seqlen: int, family: str) -> dict[str, Any]:
    """Extra memory of one forward + backward, measured in a fresh process."""
    script = f"from benchmarks.flashmask.scaling import _peak; _peak({seqlen}, {family!r})"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def _peak(seqlen: int, family: str) -> None:
    """Prints what forward + backward add to the highest resident set, in MiB, as JSON."""
    *qkv, grad = inputs(seqlen)
    qkv = [x.requires_grad_() for x in qkv]
    mask = (
        masks.causal(seqlen) if family == "causal" else masks.sliding_window(seqlen, window=WINDOW)
    )

    def run(tensors: list[torch.Tensor], mask: Any, grad: torch.Tensor) -> list[torch.Tensor]:
        out = flashmask_attention(*tensors, mask)
        return [out, *torch.autograd.grad(out, tensors, grad)]

    small = [torch.randn(1, 256, 1, DIM).to(torch.bfloat16).requires_grad_() for _ in range(3)]
    run(
        small, masks.causal(256), torch.randn(1, 256, 1, DIM).to(torch.bfloat16)
    )  # loads code, starts threads
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before = _status_kib("VmRSS")
    results = run(qkv, mask, grad)
    outputs = sum(x.numel() * x.element_size() for x in results)
    extra = (_status_kib("VmHWM") - before) / 1024 - outputs / 2**20
    print(json.dumps({"seqlen": seqlen, "family": family, "extra_mib": round(extra, 1)}))


def _status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1])


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Time against visible pairs, both logarithmic, beside a line of slope one."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 5), layout="constrained")
    pairs = [row["visible_pairs"] for row in rows]
    for name, marker in (("forward", "o"), ("backward", "s")):
        axes.loglog(pairs, [row[f"{name}_ms"] for row in rows], marker=marker, label=name)
    anchor = rows[-1]["forward_ms"] / pairs[-1]
    axes.loglog(
        pairs,
        [p * anchor for p in pairs],
        "--",
        color="gray",
        label="proportional to visible pairs",
    )
    for row in rows:
        axes.annotate(
            f"{row['seqlen'] // 1024}K",
            (row["visible_pairs"], row["forward_ms"]),
            textcoords="offset points",
            xytext=(4, -12),
            fontsize=8,
        )
    axes.set(
        xlabel="visible (query, key) pairs",
        ylabel="milliseconds",
        title=f"Sliding window of {WINDOW} keys, 1 head, D = {DIM}, bf16",
    )
    axes.legend()
    axes.grid(True, which="major", alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs all lengths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write the JSON there instead of to stdout")
    parser.add_argument("--plot", metavar="FILE", help="draw time against visible pairs")
    args = parser.parse_args()
    rows = []
    for seqlen in LENGTHS:
        rows.append(measure(seqlen))
        print(rows[-1], file=sys.stderr, flush=True)
    memory = [peak_memory(LENGTHS[-1], family) for family in ("sliding_window", "causal")]
    print(memory, file=sys.stderr)
    result = {
        "benchmark": "flashmask.scaling",
        "environment": environment(),
        "lengths": rows,
        "memory": memory,
    }
    if args.plot:
        plot(rows, args.plot)
    write(args.json, result)


if __name__ == "__main__":
    main()
