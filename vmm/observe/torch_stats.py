# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Statistics under the names that torch.cuda.memory_stats uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_POOLS = {"all": "all", "small_pool": "small", "large_pool": "large"}
_KINDS = ("current", "peak", "allocated", "freed")
_BY_POOL = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_COUNTERS = (
    "num_alloc_retries",
    "num_ooms",
    "num_oom_rejections",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
)
# Of a bound that this allocator does not have.
_OVERSIZE = ("oversize_allocations", "oversize_segments")


def nested(stats: Mapping[str, int]) -> dict[str, Any]:
    """The dictionary of `torch.cuda.memory_stats_as_nested_dict`; bytes and counts.

    A segment is a physical page. There is no bound beyond which blocks are not split, so
    ``max_split_size`` is -1 and nothing is oversize.
    """
    result: dict[str, Any] = {
        name: {
            pool: {kind: stats.get(f"{name}.{ours}.{kind}", 0) for kind in _KINDS}
            for pool, ours in _POOLS.items()
        }
        for name in _BY_POOL
    }
    result |= {name: stats.get(name, 0) for name in _COUNTERS}
    result |= {name: dict.fromkeys(_KINDS, 0) for name in _OVERSIZE}
    result["max_split_size"] = -1
    return result


def flat(stats: Mapping[str, int]) -> dict[str, int]:
    """The dictionary of `torch.cuda.memory_stats`: names with dots, in order."""
    rows: dict[str, int] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                add(f"{prefix}.{name}" if prefix else name, inner)
        else:
            rows[prefix] = value

    add("", nested(stats))
    return dict(sorted(rows.items()))
