# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A bare driver in Python, over vmm/csrc/drivers/driver_c_api.h."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_uint64, c_void_p
from typing import Any, NamedTuple

from vmm import native

OK, OUT_OF_MEMORY, INVALID, NOT_READY, DRIVER, DEVICE_LOST, UNSUPPORTED, DEAD = range(8)
CREATE, RELEASE, MAP, UNMAP, ACCESS, RESERVE, EVENT, WAIT, SYNC = range(9)  # Driver::Kind
MiB = 1 << 20

# Name -> types of the arguments behind the driver. Those that are pointers at the end are results.
CALLS = {
    "va_reserve": [c_int, c_uint64, POINTER(c_uint64)],
    "va_free": [c_int, c_uint64, c_uint64],
    "page_create": [c_int, c_uint64, POINTER(c_uint64)],
    "page_release": [c_int, c_uint64, c_uint64],
    "map": [c_int, c_uint64, c_uint64, c_uint64],
    "unmap": [c_int, c_uint64, c_uint64],
    "set_access": [c_int, c_uint64, c_uint64],
    "memory_info": [c_int, POINTER(c_uint64), POINTER(c_uint64)],
    "stream_query": [c_int, c_uint64],
    "stream_wait": [c_int, c_uint64, c_uint64],
    "event_create": [c_int, POINTER(c_uint64)],
    "event_destroy": [c_int, c_uint64],
    "event_record": [c_int, c_uint64, c_uint64],
    "event_query": [c_int, c_uint64],
    "event_sync": [c_int, c_uint64],
    "device_sync": [c_int],
    "copy_out": [c_int, c_void_p, c_uint64, c_uint64],
    "copy_in": [c_int, c_uint64, c_void_p, c_uint64],
    "page_export": [c_int, c_uint64, POINTER(c_int)],
    "clock_set": [c_int, c_uint64],
    "clock_kernel": [c_int, c_uint64, c_uint64],
    "set_capturing": [c_int, c_uint64, c_int],
    "host_kernel": [c_int, c_uint64, c_uint64, c_uint64, c_int, c_uint64, c_uint64],
    "count": [c_int, c_int, POINTER(c_uint64), POINTER(c_uint64)],
}
# Functions that cannot fail: name -> (type of the answer, types of the arguments).
ANSWERS: dict[str, tuple[Any, list[Any]]] = {
    "name": (c_char_p, []),
    "capturing": (c_int, [c_int, c_uint64]),
    "clock_now": (c_uint64, [c_int]),
    "abandon": (None, []),
    "modelled_ns": (c_uint64, [c_int]),
    "violations": (c_char_p, []),
    "leaks": (c_char_p, []),
    "host_violations": (c_char_p, [c_int]),
    "close": (None, []),
}


class Refused(Exception):  # noqa: N818 - not every refusal is an error
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"status {status}: {reason}")
        self.status = status
        self.reason = reason


class Capabilities(ctypes.Structure):
    _fields_ = (
        ("granularity", c_uint64),
        ("max_pages", c_uint64),
        *((name, c_int32) for name in ("devices", "alias", "logical_clock")),
        *((name, c_int32) for name in ("host_access", "rdma", "posix_fd")),
    )


class Memory(NamedTuple):
    free: int
    total: int


@functools.cache
def library() -> ctypes.CDLL:
    core = ctypes.CDLL(str(native.library_path()))
    for name, arguments in CALLS.items():
        getattr(core, f"vmm_driver_{name}").argtypes = [c_void_p, *arguments]
    for name, (answer, arguments) in ANSWERS.items():
        function = getattr(core, f"vmm_driver_{name}")
        function.restype, function.argtypes = answer, [c_void_p, *arguments]
    core.vmm_driver_last_error.restype = c_char_p
    core.vmm_driver_check_failures.argtypes = [c_char_p]
    core.vmm_driver_open.argtypes = [c_char_p, POINTER(c_void_p)]
    core.vmm_driver_get_capabilities.argtypes = [c_void_p, c_int, POINTER(Capabilities)]
    return core


def last_error() -> str:
    return library().vmm_driver_last_error().decode()


class Driver:
    """Every call of the C interface by its name: `status`, or `call`, which raises."""

    def __init__(self, **options: object) -> None:
        lines = [f"{name}={value}" for name, value in options.items()]
        self.pointer = c_void_p()
        status = library().vmm_driver_open("\n".join(lines).encode(), byref(self.pointer))
        if status:
            raise Refused(status, last_error())

    def status(self, name: str, *arguments: object) -> int:
        """What a call without results answers."""
        return getattr(library(), f"vmm_driver_{name}")(self.pointer, *arguments)

    def call(self, name: str, *arguments: object) -> list[int]:
        """The results of a call; raises Refused with its status and reason."""
        types = CALLS[name][len(arguments) :]
        results = [kind._type_() for kind in types]
        status = self.status(name, *arguments, *(byref(result) for result in results))
        if status:
            raise Refused(status, last_error())
        return [result.value for result in results]

    def ask(self, name: str, *arguments: object) -> Any:
        answer = getattr(library(), f"vmm_driver_{name}")(self.pointer, *arguments)
        return answer.decode() if isinstance(answer, bytes) else answer

    def capabilities(self, device: int = 0) -> Capabilities:
        result = Capabilities()
        library().vmm_driver_get_capabilities(self.pointer, device, byref(result))
        return result

    def close(self) -> None:
        if self.pointer:
            self.ask("close")
            self.pointer = c_void_p()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The calls that every test makes.

    def reserve(self, size: int, device: int = 0) -> int:
        return self.call("va_reserve", device, size)[0]

    def create(self, size: int, device: int = 0) -> int:
        return self.call("page_create", device, size)[0]

    def event(self, device: int = 0) -> int:
        return self.call("event_create", device)[0]

    def memory(self, device: int = 0) -> Memory:
        return Memory(*self.call("memory_info", device))

    def map(self, at: int, size: int, page: int, *, access: bool = True, device: int = 0) -> None:
        self.call("map", device, at, size, page)
        if access:
            self.call("set_access", device, at, size)

    def put(self, at: int, content: bytes, device: int = 0) -> None:
        self.call("copy_in", device, at, content, len(content))

    def get(self, at: int, size: int, device: int = 0) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.call("copy_out", device, ctypes.cast(buffer, c_void_p), at, size)
        return buffer.raw
