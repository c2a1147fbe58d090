# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Numbers of heads, as the attention macros take them."""

from collections.abc import Mapping
from typing import Any

from flexckpt.errors import AoaError


def heads_of(values: Mapping[str, Any], flag: str) -> tuple[int, int]:
    """Heads of queries, and of keys and values; the latter have an old name, too."""
    if "num_heads" not in values:
        raise AoaError("AOA103", f"{flag} needs num_heads=")
    queries = int(values["num_heads"])
    kv = values.get("num_kv_heads", values.get("num_key_value_groups"))
    if kv is None:
        raise AoaError("AOA103", f"{flag} needs num_kv_heads=")
    if values.get("num_key_value_groups", kv) != kv:
        raise AoaError("AOA103", "num_kv_heads and num_key_value_groups say different things")
    if queries % kv:
        raise AoaError("AOA203", f"{queries} query heads are no multiple of {kv} key-value heads")
    return queries, int(kv)
