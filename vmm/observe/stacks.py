# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Python stacks, each kept once and named by a number.

What a stack is looked up by costs two numbers per frame, the code object and the instruction in it;
files and lines are worked out only the first time that a stack is seen.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from vmm import native
from vmm.errors import Invalid

Frame = tuple[str, int, str]  # file, line, function
KINDS = ("none", "python", "all")

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The number lies in 32 bits, and nobody reads millions of stacks.
_MOST = 1 << 20


class Stacks:
    """The table of stacks of this process.

    ``table[number]`` is a tuple of frames, innermost first; number 0 is "no stack". Frames of this
    package are left out; with `skip_torch`, those of the installed torch as well.
    """

    def __init__(self) -> None:
        self.table: list[tuple[Frame, ...]] = [()]
        self.skip_torch = True
        self._numbers: dict[tuple[Frame, ...], int] = {(): 0}
        self._by_place: dict[tuple[Any, ...], int] = {}
        self._codes: dict[int, CodeType] = {}  # keeps them, so that no id is used again
        self._lock = threading.Lock()
        self._adding: int | None = None  # the thread that holds the lock
        self._torch: str | None = None

    def of_caller(self, depth: int = 1) -> int:
        """The number of the stack `depth` frames above this function."""
        try:
            frame: FrameType | None = sys._getframe(depth)
        except ValueError:
            return 0
        first = frame
        place: list[int | bool] = [self.skip_torch]
        add = place.append
        while frame is not None:
            add(id(frame.f_code))
            add(frame.f_lasti)
            frame = frame.f_back
        key = tuple(place)
        known = self._by_place.get(key)
        return self._add(key, first) if known is None else known

    def _add(self, key: tuple[Any, ...], frame: FrameType | None) -> int:
        skip = (_OWN, self._torch_folder()) if self.skip_torch else (_OWN,)
        frames: list[Frame] = []
        # Garbage collection may run code here that allocates.
        if self._adding == threading.get_ident():
            return 0
        with self._lock, self._marked():
            while frame is not None:
                code = frame.f_code
                self._codes[id(code)] = code
                if not code.co_filename.startswith(skip):
                    frames.append((code.co_filename, frame.f_lineno or 0, code.co_name))
                frame = frame.f_back
            stack = tuple(frames)
            number = self._numbers.get(stack)
            if number is None:
                if len(self.table) >= _MOST:
                    return 0
                number = self._numbers[stack] = len(self.table)
                self.table.append(stack)
            self._by_place[key] = number
            return number

    @contextmanager
    def _marked(self) -> Iterator[None]:
        self._adding = threading.get_ident()
        try:
            yield
        finally:
            self._adding = None

    def _torch_folder(self) -> str:
        if self._torch is None:
            file = getattr(sys.modules.get("torch"), "__file__", None)
            if file is None:
                return _OWN
            self._torch = os.path.dirname(os.path.abspath(file)) + os.sep
        return self._torch


STACKS = Stacks()


def _number(size: int) -> int:
    # An error must not reach the C caller; no stack is the honest answer then.
    try:
        return STACKS.of_caller(2)
    except Exception:
        return 0
    except BaseException as error:  # somebody pressed Ctrl-C just now; `_watch` sees the rest
        _raise_later(threading.get_ident(), type(error))
        return 0


def _raise_later(thread: int, kind: type[BaseException]) -> None:
    """Raises an exception in a thread once it is, most likely, out of the C code it is in."""

    def raise_there() -> None:
        time.sleep(0.001)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))

    _thread.start_new_thread(raise_there, ())


def _watch() -> None:
    """An interrupt that comes before the first line of `_number` reaches the program as well.

    A signal that arrives in a long call of C code is seen there: it is the first Python that runs.
    """
    previous = sys.unraisablehook
    if getattr(previous, "of_vmm", False):
        return

    def hook(unraisable: sys.UnraisableHookArgs, /) -> None:
        at, kind = unraisable.exc_traceback, unraisable.exc_type
        inside = at is not None and at.tb_frame.f_code is _number.__code__
        if inside and not issubclass(kind, Exception):
            _raise_later(threading.get_ident(), kind)
        else:
            previous(unraisable)

    hook.of_vmm = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook


# Kept for good: the core may be on its way to it while a recording ends.
_HOOK = native.StackHook(_number)


def check_kind(kind: str) -> str:
    """`kind` itself; raises `Invalid` if it is not one of `KINDS`."""
    if kind not in KINDS:
        raise Invalid(f"stacks: must be one of {', '.join(KINDS)}, but is {kind!r}")
    return kind


def _remove() -> None:
    native.library().vmm_set_stack_hook(None)


def install(kind: str) -> bool:
    """Makes recordings ask for stacks of this kind. Returns whether they have any."""
    if check_kind(kind) == "none":
        return False
    STACKS.skip_torch = kind == "python"
    _watch()
    # Threads of others may allocate while the interpreter goes away.
    atexit.unregister(_remove)
    atexit.register(_remove)
    native.library().vmm_set_stack_hook(_HOOK)
    return True
