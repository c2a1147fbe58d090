# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""G5: traces replayed in real allocators: torch's default, its expandable segments, and ours.

Each pair of trace and allocator has a process of its own, which allocates real tensors in the order
of the trace, on real streams, with the recorded kernels as sleeps (shortened to fit the time).
Fragmentation is 1 - max allocated / max reserved, once without a limit and once with 3 % more than
the most that is live.
"""

from __future__ import annotations

import json
import time
from typing import Any

from benchmarks.vmm.gpu.child import TimeLimitError, call_in_process
from benchmarks.vmm.gpu.context import Context, FailedError, SkippedError
from benchmarks.vmm.gpu.settings import TORCH_SETTINGS, allocator_variables
from benchmarks.vmm.gpu.traces import TRACES, build

TIGHT = 1.03


def run(context: Context) -> dict[str, Any]:
    """Rows of all that fits the device and the time; what was left out is named."""
    from vmm.sim import trace_file

    began = time.perf_counter()
    kinds = ["ours"] if context.rehearse else list(TORCH_SETTINGS)
    rows, left_out = [], []
    for name in TRACES:
        trace = build(name)
        path = context.folder / f"{name.replace(' ', '_')}.vmmtrace.gz"
        trace_file.write(path, trace)
        live = int(trace.live(512).max())
        for capacity in (None, int(live * TIGHT)):
            for kind in kinds:
                left = context.seconds * 0.95 - (time.perf_counter() - began)
                label = f"{name}, {kind}{', tight' if capacity else ''}"
                if left < 5:
                    left_out.append(f"{label}: no time was left")
                    continue
                words = [kind, str(path), capacity, min(left / 4, 2.0), context.rehearse]
                target = "benchmarks.vmm.gpu.replay_one:run"
                try:
                    figures = call_in_process(target, words, allocator_variables(kind), left)
                except (SkippedError, TimeLimitError, FailedError) as why:
                    left_out.append(f"{label}: {why}")
                    continue
                rows.append(
                    {
                        "trace": name,
                        "allocator": kind,
                        "tight": "yes" if capacity else "no",
                        **figures,
                    }
                )
    if not rows:
        raise FailedError(f"no replay ran: {json.dumps(left_out)}")
    return {"rows": rows, "left_out": left_out}
