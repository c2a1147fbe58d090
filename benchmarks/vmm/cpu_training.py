# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The time of a CPU training step with the allocator under torch, and without.

Two processes train the same model on the same batches. They take turns step by step, so that drift
of the machine hits both; which one goes first alternates. What is reported is the median over pairs
of the ratio of their times, with the quartiles.

    python -m benchmarks.vmm.cpu_training
    python -m benchmarks.vmm.cpu_training --hidden 64 --out result.json
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import statistics
import time
from typing import Any

import torch

import vmm
from benchmarks import timing
from examples.train_moe_vmm import Training

WARM_UP = 4


def serve(pipe: Any, ours: bool, sizes: dict[str, int], config: dict[str, Any]) -> None:
    """Does a step whenever it is told to, and answers with seconds and loss."""
    torch.set_num_threads(1)
    if ours:
        vmm.enable(device="cpu", **config)
    training = Training(**sizes, workers=0)
    while pipe.recv():
        start = time.perf_counter()
        loss = training.step()
        if ours:
            vmm.step()
        pipe.send((time.perf_counter() - start, loss))
    pipe.send(vmm.stats() if ours else None)


def measure(pairs: int, sizes: dict[str, int], config: dict[str, Any]) -> dict[str, Any]:
    """Seconds per step of both, and the ratio of each pair."""
    spawn = mp.get_context("spawn")
    pipes, processes = {}, []
    for name in ("vmm", "torch"):
        pipes[name], far = spawn.Pipe()
        process = spawn.Process(target=serve, args=(far, name == "vmm", sizes, config))
        process.start()
        processes.append(process)

    seconds: dict[str, list[float]] = {"vmm": [], "torch": []}
    for turn in range(WARM_UP + pairs):
        losses = {}
        for name in ("vmm", "torch") if turn % 2 else ("torch", "vmm"):
            pipes[name].send(True)
            taken, losses[name] = pipes[name].recv()
            if turn >= WARM_UP:
                seconds[name].append(taken)
        assert losses["vmm"] == losses["torch"], f"step {turn}: the losses differ: {losses}"
    for pipe in pipes.values():
        pipe.send(False)
    stats = pipes["vmm"].recv()
    for process in processes:
        process.join()

    ratios = [a / b for a, b in zip(seconds["vmm"], seconds["torch"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        **sizes,
        "pairs": pairs,
        "torch_ms": 1e3 * statistics.median(seconds["torch"]),
        "vmm_ms": 1e3 * statistics.median(seconds["vmm"]),
        "ratio": middle,
        "ratio_quartiles": [low, high],
        "allocations_per_step": stats["allocation.all.allocated"] / (WARM_UP + pairs),
        "peak_alive_bytes": stats["allocated_bytes.all.peak"],
        "peak_held_bytes": stats["reserved_bytes.all.peak"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--cpu-min", type=int, default=0, help="smaller tensors stay with torch")
    parser.add_argument("--out")
    args = parser.parse_args()
    config = {"cpu_min": args.cpu_min} if args.cpu_min else {}
    sizes = {"layers": 2, "experts": 8, "longest": 256}
    rows = [measure(args.pairs, sizes | {"hidden": hidden}, config) for hidden in args.hidden]
    timing.write(args.out, {"environment": timing.environment(), "config": config, "rows": rows})


if __name__ == "__main__":
    main()
