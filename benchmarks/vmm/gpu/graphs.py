# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""G6: a CUDA graph captured while the allocator serves torch replays right, on pages that stay."""

from __future__ import annotations

from typing import Any

from benchmarks.vmm.gpu.context import Context, FailedError, SkippedError

REPLAYS = 5


def run(context: Context) -> dict[str, Any]:
    """Captures a forward pass, fragments memory around it, replays and compares with eager."""
    if context.rehearse:
        raise SkippedError("CUDA graphs need a GPU")
    from vmm.torch_hooks.enable import enable

    allocator = enable("cuda", check=2)
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)
    ).cuda()
    given = torch.randn(512, 1024, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        answer = model(given)
    address = answer.data_ptr()
    pinned = allocator.stats()["pages.pinned_graph"]
    worst = 0.0
    for number in range(REPLAYS):
        # Free memory moves between the replays; what the graph names must not.
        blocks = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(64)]
        del blocks[::2]
        allocator.compact()
        given.copy_(torch.randn_like(given))
        graph.replay()
        with torch.no_grad():
            expected = model(given)
        worst = max(worst, float((answer - expected).abs().max()))
        if answer.data_ptr() != address or worst > 1e-3:
            raise FailedError(f"replay {number} differs from the eager result by {worst}")
        del blocks
    allocator.check()
    if not pinned:
        raise FailedError("no page was pinned for the graph")
    return {"replays": REPLAYS, "largest_difference": worst, "pages_pinned_for_graphs": pinned}
