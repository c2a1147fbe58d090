# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Opens the core library and says what its C functions take. The names are those of csrc/vmm.h."""

from __future__ import annotations

import ctypes
import functools
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, NoReturn

from vmm.errors import Dead, DriverError, Invalid, OutOfMemory, Unsupported, VmmError

PIN_REASONS = ("ipc", "registered", "graph", "user")
BLOCK_STATES = ("active", "pending", "free", "unmapped")
FITS = ("fits", "fits_after_steal", "does_not_fit")

# Status -> error class; 0 is success.
_ERRORS: dict[int, type[VmmError]] = {
    1: OutOfMemory,
    2: Invalid,
    3: DriverError,
    4: DriverError,
    5: DriverError,
    6: Unsupported,
    7: Dead,
}


class Request(ctypes.Structure):
    """``vmm_request``."""

    _fields_ = [
        ("size", c_uint64),
        ("stream", c_uint64),
        ("device", c_int32),
        ("pool", c_uint32),
        ("tag", c_uint32),
        ("stack", c_uint32),
    ]


class BlockInfo(ctypes.Structure):
    """``vmm_block_info``."""

    _fields_ = [
        ("address", c_uint64),
        ("size", c_uint64),
        ("requested", c_uint64),
        ("stream", c_uint64),
        ("arena", c_uint32),
        ("pool", c_uint32),
        ("tag", c_uint32),
        ("stack", c_uint32),
        ("state", c_int32),
        ("asleep", c_uint32),
        ("fence", c_uint64),
    ]


class SlotInfo(ctypes.Structure):
    """``vmm_slot_info``."""

    _fields_ = [
        ("address", c_uint64),
        ("page", c_int64),
        ("arena", c_uint32),
        ("stale", c_int32),
        ("pins", c_uint32 * len(PIN_REASONS)),
    ]


class ArenaInfo(ctypes.Structure):
    """``vmm_arena_info``."""

    _fields_ = [
        ("base", c_uint64),
        ("reserved", c_uint64),
        ("used", c_uint64),
        ("page_size", c_uint64),
        ("arena", c_uint32),
        ("pool", c_uint32),
        ("small", c_int32),
        ("asleep", c_int32),
        ("pool_name", c_char * 64),
    ]


class Event(ctypes.Structure):
    """``vmm_event``."""

    _fields_ = [
        ("t_ns", c_uint64),
        ("address", c_uint64),
        ("size", c_uint64),
        ("aux", c_uint64),
        ("stream", c_uint16),
        ("pool", c_uint16),
        ("device", c_uint8),
        ("action", c_uint8),
        ("thread", c_uint16),
        ("tag", c_uint32),
        ("stack", c_uint32),
    ]


class ReplayEvent(ctypes.Structure):
    """``vmm_replay_event``."""

    _fields_ = [
        ("t_ns", c_uint64),
        ("bytes", c_uint64),
        ("id", c_uint32),
        ("stream", c_uint32),
        ("pool", c_uint32),
        ("op", c_uint8),
        ("reserved", c_uint8 * 3),
    ]


class ReplayCounts(ctypes.Structure):
    """``vmm_replay_result``."""

    _fields_ = [
        ("done", c_uint64),
        ("ooms", c_uint64),
        ("first_oom", c_uint64),
        ("elapsed_ns", c_uint64),
    ]


OomCallback = CFUNCTYPE(c_int, c_void_p, c_int, c_uint64)
StackHook = CFUNCTYPE(c_uint32, c_uint64)

_U64 = POINTER(c_uint64)
_SIZE = POINTER(c_size_t)

# Function -> (result, arguments). A status is an int.
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "vmm_create": (c_int, [c_char_p, POINTER(c_void_p)]),
    "vmm_destroy": (None, [c_void_p]),
    "vmm_last_error": (c_char_p, []),
    "vmm_allocate": (c_int, [c_void_p, POINTER(Request), POINTER(c_void_p)]),
    "vmm_deallocate": (c_int, [c_void_p, c_int, c_void_p]),
    "vmm_record_stream": (c_int, [c_void_p, c_int, c_void_p, c_uint64]),
    "vmm_block_of": (c_int, [c_void_p, c_int, c_void_p, POINTER(c_void_p), _U64, _U64]),
    "vmm_set_thread_tag": (c_uint32, [c_uint32]),
    "vmm_set_stack_hook": (None, [c_void_p]),
    "vmm_pool_create": (
        c_int,
        [c_void_p, c_int, c_char_p, c_uint64, c_int, POINTER(c_uint32)],
    ),
    "vmm_pool_release": (c_int, [c_void_p, c_int, c_uint32]),
    "vmm_pool_sleep": (c_int, [c_void_p, c_int, c_uint32, c_int, _U64]),
    "vmm_pool_wake": (c_int, [c_void_p, c_int, c_uint32]),
    "vmm_pin": (c_int, [c_void_p, c_int, c_void_p, c_uint64, c_int]),
    "vmm_unpin": (c_int, [c_void_p, c_int, c_void_p, c_uint64, c_int]),
    "vmm_compact": (c_int, [c_void_p, c_int, c_uint64, c_int, c_int, _U64]),
    "vmm_trim": (c_int, [c_void_p, c_int, c_uint64, _U64]),
    "vmm_mark_step": (c_int, [c_void_p, c_int]),
    "vmm_set_limit": (c_int, [c_void_p, c_int, c_uint64]),
    "vmm_plan": (c_int, [c_void_p, c_int, _U64, c_size_t, c_uint64, POINTER(c_int)]),
    "vmm_prefetch": (c_int, [c_void_p, c_int, _U64, c_size_t, c_uint64]),
    "vmm_on_oom": (c_int, [c_void_p, OomCallback, c_void_p]),
    "vmm_remove_on_oom": (c_int, [c_void_p, OomCallback, c_void_p]),
    "vmm_stat_count": (c_size_t, []),
    "vmm_stat_name": (c_char_p, [c_size_t]),
    "vmm_stats": (c_int, [c_void_p, c_int, _U64, c_size_t]),
    "vmm_reset_peak": (c_int, [c_void_p, c_int]),
    "vmm_blocks": (c_int, [c_void_p, c_int, POINTER(BlockInfo), c_size_t, _SIZE]),
    "vmm_slots": (c_int, [c_void_p, c_int, POINTER(SlotInfo), c_size_t, _SIZE]),
    "vmm_arenas": (c_int, [c_void_p, c_int, POINTER(ArenaInfo), c_size_t, _SIZE]),
    "vmm_check": (c_int, [c_void_p, c_int]),
    "vmm_record_start": (c_int, [c_void_p, c_uint64, c_uint64, c_int]),
    "vmm_record_stop": (c_int, [c_void_p]),
    "vmm_record_read": (c_int, [c_void_p, c_void_p, c_size_t, _SIZE, _U64]),
    "vmm_note": (c_int, [c_void_p, c_int, c_uint32]),
    "vmm_intern_tag": (c_uint32, [c_char_p]),
    "vmm_tag_text": (c_char_p, [c_uint32]),
    "vmm_streams": (c_int, [c_void_p, _U64, c_size_t, _SIZE]),
    "vmm_replay": (
        c_int,
        [c_void_p, c_void_p, c_size_t, c_size_t, c_int, c_void_p, POINTER(ReplayCounts)],
    ),
    "vmm_clock_set": (c_int, [c_void_p, c_int, c_uint64]),
    "vmm_clock_kernel": (c_int, [c_void_p, c_int, c_uint64, c_uint64]),
    "vmm_get_table": (c_void_p, [c_uint32]),
}


def library_path() -> Path:
    """Where the core library is, for those who open it themselves (torch, other backends).

    Raises:
        Unsupported: it was not built.
    """
    found = sorted(Path(__file__).parent.glob("_core*.so"))
    if not found:
        raise Unsupported(
            "vmm: the core library was not built; install the package without BUILD_NATIVE=0"
        )
    return found[0]


@functools.cache
def library() -> ctypes.CDLL:
    """The core library with its signatures set.

    Raises:
        Unsupported: it was not built.
    """
    core = ctypes.CDLL(str(library_path()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(core, name)
        function.restype = result
        function.argtypes = arguments
    return core


def raise_error(status: int) -> NoReturn:
    """Raises the error of a status with the sentence of this thread."""
    text = library().vmm_last_error().decode(errors="replace")
    raise _ERRORS[status](text or f"the core returned status {status}")


def check(status: int) -> None:
    """Raises unless the status is success."""
    if status != 0:
        raise_error(status)
