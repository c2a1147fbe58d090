# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Private pools by name: tensors that are born together, sleep and wake together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vmm import native
from vmm.errors import Invalid
from vmm.torch_hooks.arguments import byte_count
from vmm.torch_hooks.state import State, device_number, require


@contextmanager
def pool(
    name: str, *, cap: int = 0, shared_pages: bool = False, device: object = None
) -> Iterator[int]:
    """Tensors that this thread makes inside the block come from a private pool, tagged `name`.

    The pool is made at the first use of its name on a device and stays. Blocks nest. Other threads
    are not routed, also not those of the backward pass on CUDA.

    Args:
        name: the pool is known by it to `sleep` and `wake`.
        cap: a bound on its physical bytes; 0: none of its own.
        shared_pages: whether free pages may move between it and others.
        device: as for `vmm.stats`.

    Yields:
        The number of the pool.

    Raises:
        Invalid: nothing is enabled, an argument breaks its rule, or another `cap` or
            `shared_pages` for a pool that exists.
    """
    state = require()
    number = device_number(state, device)
    made = _pool_of(state, number, name, cap, shared_pages)
    core = native.library()
    old = state.route(number, made)
    old_tag = core.vmm_set_thread_tag(core.vmm_intern_tag(name.encode()))
    try:
        yield made
    finally:
        core.vmm_set_thread_tag(old_tag)
        state.route(number, old)


def sleep(tag: str, keep: bool = False, *, device: object = None) -> int:
    """Gives the physical memory of a pool back; its tensors must not be touched until `wake`.

    Args:
        tag: the name of the pool.
        keep: whether the content comes back at `wake` (it waits in host memory); else it is
            undefined then.

    Returns:
        The bytes given back.

    Raises:
        Invalid: no such pool, it sleeps already, or part of it is pinned.
    """
    state = require()
    number = device_number(state, device)
    return state.allocator.pool_sleep(_existing(state, number, tag), keep, device=number)


def wake(tag: str, *, device: object = None) -> None:
    """Brings the memory of a sleeping pool back, at the same addresses.

    Raises:
        OutOfMemory: there is not enough for all of it; it sleeps on.
        Invalid: no such pool, or it is awake.
    """
    state = require()
    number = device_number(state, device)
    state.allocator.pool_wake(_existing(state, number, tag), device=number)


def _pool_of(state: State, device: int, name: str, cap: int, shared_pages: bool) -> int:
    if not isinstance(name, str) or not name:
        raise Invalid(f"name: must be a text that is not empty, but is {name!r}")
    if not isinstance(shared_pages, bool):
        raise Invalid(f"shared_pages: must be True or False, but is {shared_pages!r}")
    wanted = (byte_count("cap", cap), shared_pages)
    if (device, name) not in state.pools:
        made = state.allocator.pool_create(
            name, cap=wanted[0], shared_pages=shared_pages, device=device
        )
        state.pools[device, name] = made
        state.pool_options[device, name] = wanted
    elif wanted not in ((0, False), state.pool_options[device, name]):
        raise Invalid(
            f"name: the pool {name!r} exists with cap and shared_pages "
            f"{state.pool_options[device, name]}, not {wanted}"
        )
    return state.pools[device, name]


def _existing(state: State, device: int, tag: str) -> int:
    found = state.pools.get((device, tag))
    if found is None:
        known = ", ".join(sorted(name for where, name in state.pools if where == device))
        raise Invalid(f"tag: there is no pool {tag!r} on device {device}; pools: {known or 'none'}")
    return found
