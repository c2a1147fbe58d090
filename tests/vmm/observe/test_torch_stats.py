# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Statistics have the names of torch, and torch's own summary can be made of them."""

import re
from itertools import product

import pytest

from vmm import Allocator
from vmm.observe.api import memory_stats
from vmm.observe.torch_stats import flat, nested

MIB = 1 << 20


def documented() -> set[str]:
    """Every name in the docstring of torch.cuda.memory_stats, with braces written out."""
    import torch

    names = set()
    for text in re.findall(r'``"([a-z][a-z_.,{}]+)"``', torch.cuda.memory_stats.__doc__ or ""):
        parts = [part.strip("{}").split(",") for part in text.split(".")]
        names |= {".".join(choice) for choice in product(*parts)}
    # The text says "allocated", torch (and its memory_summary) "allocation".
    return {re.sub(r"^allocated\.", "allocation.", name) for name in names}


def test_every_name_of_torch() -> None:
    names = documented()
    assert len(names) > 100
    # Private pools have rows only if there are any, and names of their own.
    assert names - set(flat({})) == {"reserved_bytes_by_private_pools"}
    assert set(flat({})) <= names


def test_values() -> None:
    one = Allocator(driver="null", device_bytes=1 << 30)
    first = one.alloc(3 * MIB)
    one.alloc(700)
    one.free(first)
    stats = memory_stats(allocator=one)
    assert list(stats) == sorted(stats)
    assert stats["allocation.all.current"] == 1
    assert stats["allocation.large_pool.freed"] == 1
    assert stats["allocated_bytes.small_pool.current"] == 1024
    assert stats["requested_bytes.small_pool.current"] == 700
    assert stats["allocated_bytes.all.peak"] == 3 * MIB + 1024
    assert stats["reserved_bytes.all.current"] == one.stats()["pages.created"] * 2 * MIB
    assert stats["max_split_size"] == -1
    assert stats["oversize_segments.peak"] == 0


def test_nested_is_the_same() -> None:
    tree = nested({"active.small.peak": 7, "num_ooms": 2})
    assert tree["active"]["small_pool"] == {"current": 0, "peak": 7, "allocated": 0, "freed": 0}
    assert tree["num_ooms"] == 2
    assert flat({"active.small.peak": 7})["active.small_pool.peak"] == 7


def test_torch_prints_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    one = Allocator(driver="null", device_bytes=1 << 30)
    one.alloc(3 * MIB)
    memory = torch.cuda.memory
    monkeypatch.setattr(memory, "memory_stats", lambda device: memory_stats(allocator=one))
    monkeypatch.setattr(memory, "_get_device_index", lambda device, optional: 0)
    text = memory.memory_summary()
    row = next(line for line in text.splitlines() if line.startswith("| Allocated memory"))
    assert row.split("|")[2].split() == ["3072", "KiB"]
