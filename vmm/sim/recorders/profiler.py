# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The allocations of a program on the CPU, with the operators that made them.

Read from the events of torch.profiler: every allocation and free of the CPU allocator is there,
workspaces inside kernels included, with its address, size and the operator it happened in.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from vmm.errors import Invalid
from vmm.sim.trace import Trace

STEP = "vmm step"


class ProfilerRecorder:
    """Records what runs inside ``with``; `trace` afterwards, `step` between.

    Tags are operators ("aten::mm"), "" outside of any. What is freed inside and was made before
    stands at the beginning, tagged "existing"; the profiler knows of it only if an earlier profile
    saw it made. `device` is a name without a number.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._profile: Any = None
        self._done = False

    def __enter__(self) -> ProfilerRecorder:
        from torch.profiler import ProfilerActivity, profile

        if self._profile is not None:
            raise Invalid("a ProfilerRecorder records once")
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of cycles that it will not record
            self._profile.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._profile.__exit__(kind, error, traceback)
        self._done = True

    def step(self) -> None:
        """The end of a step."""
        from torch.profiler import record_function

        with record_function(STEP):
            pass

    def trace(self) -> Trace:
        """What was recorded. Raises `vmm.errors.Invalid` before the end of the recording."""
        if not self._done:
            raise Invalid("the recording is not over; ask for the trace after the with block")
        return from_profile(self._profile, self._device)


def from_profile(profile: Any, device: str = "cpu") -> Trace:
    """The trace of a torch.profiler.profile that ran with `profile_memory=True`.

    Raises `Invalid` if it holds no allocation of the device: then it ran without, or has not run.
    """
    inner = getattr(profile, "profiler", None)
    results = getattr(inner, "kineto_results", None)
    if results is None:
        raise Invalid("the profile has no results; it has to be over")
    found = []
    for node in _nodes(results.experimental_event_tree()):
        if node.name == STEP:
            found.append((int(node.start_time_ns), 0, 0, ""))
        elif str(node.tag).endswith("Allocation"):
            fields = node.extra_fields
            if str(fields.device).split(":")[0] == device and fields.alloc_size:
                parent = node.parent.name if node.parent is not None else ""
                row = (int(node.start_time_ns), int(fields.ptr), int(fields.alloc_size), parent)
                found.append(row)
    if not any(size for _, _, size, _ in found):
        raise Invalid(f"the profile has no allocation on {device}; it takes profile_memory=True")
    return _trace(sorted(found, key=lambda row: row[0]))


def _nodes(roots: Any) -> Iterator[Any]:
    """All nodes, a parent before its children, in order of time."""
    waiting = list(reversed(roots))
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


def _trace(found: list[tuple[int, int, int, str]]) -> Trace:
    import numpy as np

    tags: dict[str, int] = {"": 0}
    live: dict[int, tuple[int, int]] = {}
    before: list[tuple[int, ...]] = []
    rows: list[tuple[int, ...]] = []
    start, count = found[0][0], 0
    for time, address, size, name in found:
        now = time - start
        if size > 0:
            live[address] = (count, size)
            tag = tags.setdefault(name, len(tags))
            rows.append((now, ord("a"), count, size, 0, 0, tag, address))
            count += 1
        elif size < 0:
            if address not in live:
                tag = tags.setdefault("existing", len(tags))
                before.append((0, ord("a"), count, -size, 0, 0, tag, address))
                live[address] = (count, -size)
                count += 1
            id, known = live.pop(address)
            rows.append((now, ord("f"), id, known, 0, 0, 0, address))
        else:
            rows.append((now, ord("m"), -1, 0, 0, 0, 0, 0))
    columns = np.array(before + rows, dtype=np.int64).T
    header = {"source": "torch.profiler", "tags": list(tags)}
    t_ns, op, id, size_, stream, pool, tag_, addr = columns
    extra = {"addr": addr}
    return Trace(header, t_ns, op, id, size_, stream, pool, tag_, extra).validate()
