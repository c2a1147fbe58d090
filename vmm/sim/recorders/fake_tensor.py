# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Allocations of a program at its real sizes, without the memory and without the arithmetic.

The program runs under torch's FakeTensorMode; every new storage is an allocation and its end is
the free. Times come from a roofline over the bytes and, where torch's FLOP counter knows the
operator, its operations. Workspaces inside kernels are not seen.
"""

from __future__ import annotations

import contextlib
import weakref
from types import TracebackType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from vmm.errors import Invalid
from vmm.sim.generators.parameters import Parameters
from vmm.sim.generators.tape import Tape
from vmm.sim.trace import Trace

EXISTING = "existing"


class FakeTensorRecorder:
    """Records what runs inside ``with``; `trace` afterwards, `step` between.

    Build the model inside. Make tensors on 'cpu' or 'meta' as you like: sizes are the same, but the
    two choose different kernels of attention. Tags are operators ("aten::mm"); a tensor that was
    there before its first use is tagged "existing". `machine` has the figures of the roofline.
    """

    def __init__(self, name: str = "program", machine: Parameters | None = None) -> None:
        self._tape = Tape(name, machine or Parameters(), "recorder fake_tensor")
        self._watch = _Watch(self._tape)
        self._modes = contextlib.ExitStack()
        self._state = "new"

    def __enter__(self) -> FakeTensorRecorder:
        if self._state != "new":
            raise Invalid("a FakeTensorRecorder records once")
        self._state = "running"
        self._modes.enter_context(FakeTensorMode())
        self._modes.enter_context(self._watch)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watch.stop()
        self._modes.__exit__(kind, error, traceback)
        self._state = "over"

    def step(self) -> None:
        """The end of a step, where the host waits for the device."""
        self._tape.sync()
        self._tape.step()

    def trace(self) -> Trace:
        """What was recorded. Raises `vmm.errors.Invalid` before the end of the recording."""
        if self._state != "over":
            raise Invalid("the recording is not over; ask for the trace after the with block")
        return self._tape.trace()


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self._known: dict[int, weakref.finalize[Any, Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        reads = sum(self._see(each, EXISTING) for each in tree_leaves((args, kwargs)))
        result = func(*args, **kwargs)
        name = func._schema.name
        writes = sum(self._see(each, name) for each in tree_leaves(result))
        if not func.is_view:
            count = flop_registry.get(func._overloadpacket)
            flops = count(*args, **kwargs, out_val=result) if count else 0
            self._tape.compute(flops, reads + writes)
        return result

    def _see(self, value: Any, tag: str) -> int:
        """The bytes of a tensor, whose storage is watched from now on."""
        if not isinstance(value, torch.Tensor):
            return 0
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if size and key not in self._known:
            id = self._tape.alloc(size, tag)
            self._known[key] = weakref.finalize(storage, self._gone, key, id)
        return value.numel() * value.element_size()

    def _gone(self, key: int, id: int) -> None:
        del self._known[key]
        self._tape.free(id)

    def stop(self) -> None:
        for finalizer in self._known.values():
            finalizer.detach()
        self._known.clear()
