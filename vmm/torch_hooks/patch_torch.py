# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Makes the functions of torch.cuda work that throw under a pluggable allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vmm.errors import Unsupported
from vmm.torch_hooks.state import device_number, require


def _stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    from vmm.observe.torch_stats import nested

    state = require()
    return nested(state.allocator.stats(device=device_number(state, device)))


def _reset_peak(device: Any = None) -> None:
    state = require()
    state.allocator.reset_peak(device=device_number(state, device))


def _snapshot_segments(mempool_id: Any = None, include_traces: bool = True) -> Any:
    from vmm.observe.api import snapshot

    return snapshot(allocator=require().allocator)["segments"]


def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    from vmm.observe.api import snapshot

    return snapshot(allocator=require().allocator)


def _dump_snapshot(filename: str = "dump_snapshot.pickle", **_: Any) -> None:
    from vmm.observe import torch_pickle

    torch_pickle.write(filename, _snapshot())


# Module -> name -> what it becomes. The other statistics of torch.cuda are computed from the first.
REPLACED: dict[str, dict[str, Callable[..., Any]]] = {
    "torch.cuda.memory": {
        "memory_stats_as_nested_dict": _stats_as_nested_dict,
        "reset_peak_memory_stats": _reset_peak,
        "memory_snapshot": _snapshot_segments,
        "_snapshot": _snapshot,
        "_dump_snapshot": _dump_snapshot,
    },
    "torch.cuda": {
        "memory_stats_as_nested_dict": _stats_as_nested_dict,
        "reset_peak_memory_stats": _reset_peak,
        "memory_snapshot": _snapshot_segments,
    },
}


@contextmanager
def patch_torch() -> Iterator[None]:
    """``with vmm.patch_torch():`` statistics and snapshots of torch.cuda come from the allocator.

    For the mode ``"plugin"`` of `vmm.enable`; ``"subclass"`` needs no patch. Works for
    ``memory_stats`` and all that torch derives from it, ``memory_snapshot``,
    ``reset_peak_memory_stats``, ``memory._snapshot`` and ``memory._dump_snapshot``. Enter it with
    `contextlib.ExitStack` to leave it on.

    Raises:
        Invalid: nothing is enabled.
        Unsupported: what is enabled does not serve CUDA through a plugin.
    """
    state = require()
    if state.mode != "plugin":
        raise Unsupported(
            f"vmm.patch_torch: is for device='cuda', mode='plugin', but vmm serves "
            f"{state.device_type} by {state.mode!r}"
        )
    import importlib

    old: list[tuple[Any, str, Any]] = []
    for module_name, names in REPLACED.items():
        module = importlib.import_module(module_name)
        old += [(module, name, getattr(module, name)) for name in names]
        for name, function in names.items():
            setattr(module, name, function)
    try:
        yield
    finally:
        for module, name, function in old:
            setattr(module, name, function)
