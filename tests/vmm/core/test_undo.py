# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A scripted sequence with each call of the driver failing in turn: all of a plan, or nothing."""

from __future__ import annotations

import pytest

from tests.vmm.core.small import PAGE, opened
from vmm.errors import VmmError


def scripted(fail: str) -> tuple[list[bool], dict[str, int]]:
    """Which requests were served, and the statistics at the end."""
    with opened(limit=12 * PAGE, **({"fail": fail} if fail else {})) as allocator:
        live: list[int] = []
        served: list[bool] = []
        said: list[str] = []

        def alloc(size: int, stream: int = 0) -> None:
            try:
                live.append(allocator.alloc(size, stream=stream))
                served.append(True)
            except VmmError as error:
                served.append(False)
                said.append(str(error))

        for _ in range(8):
            alloc(PAGE)
        for at in live[::2]:
            allocator.free(at)
        del live[::2]
        allocator.clock_kernel(0, 1000)
        alloc(6 * PAGE)  # two created, four by alias
        alloc(PAGE, stream=1)
        allocator.clock_set(5000)
        alloc(PAGE)
        for at in live:
            allocator.free(at)
        assert all("driver null" in text or "out of memory" in text for text in said)
        stats = allocator.stats()
        assert stats["allocation.all.current"] == 0
        assert stats["pages.created"] <= 12
        allocator.check()
        return served, stats


CALLS = {"create": "create", "map": "map", "set_access": "access", "event_record": "event"}


@pytest.mark.parametrize("call", CALLS)
def test_one_failure_costs_one_request_at_most(call: str) -> None:
    whole, stats = scripted("")
    calls = stats[f"driver.{CALLS[call]}.calls"]
    assert calls > 0
    for number in range(1, calls + 1):
        served, after = scripted(f"{call}@{number}:perm")
        assert served.count(False) <= whole.count(False) + 1
        assert after["pages.quarantined"] == 0


def test_what_cannot_be_undone_is_put_aside() -> None:
    with opened(limit=8 * PAGE, fail="map@10;unmap@1") as allocator:
        parts = [allocator.alloc(PAGE) for _ in range(8)]
        for at in parts[::2]:
            allocator.free(at)
        with pytest.raises(VmmError, match="all but 1 pages, which are never used again"):
            allocator.alloc(4 * PAGE)
        allocator.check()
        # The page is at home where it was. It hangs at the lost address too: it must be kept.
        assert allocator.stats()["pages.quarantined"] == 0
        at = allocator.alloc(4 * PAGE)
        assert at > parts[-1] + PAGE
        for part in [*parts[1::2], at]:
            allocator.free(part)
        allocator.compact(release=True)
        assert allocator.stats()["pages.created"] == 1
