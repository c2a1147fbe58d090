# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A driver of the allocator without the allocator: address ranges, pages and mappings by hand."""

from __future__ import annotations

import ctypes
from typing import Any

STATUS = (
    "ok",
    "out of memory",
    "invalid",
    "not ready",
    "driver",
    "device lost",
    "unsupported",
    "dead",
)
OK, NOT_READY = 0, 3

U64, INT, POINTER = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p
OUT = ctypes.POINTER(ctypes.c_uint64)

# Call -> its arguments after the driver and the device. OUT is what the method returns.
CALLS: dict[str, tuple[Any, ...]] = {
    "va_reserve": (U64, OUT),
    "va_free": (U64, U64),
    "page_create": (U64, OUT),
    "page_release": (U64, U64),
    "map": (U64, U64, U64),
    "unmap": (U64, U64),
    "set_access": (U64, U64),
    "stream_query": (U64,),
    "stream_wait": (U64, U64),
    "event_create": (OUT,),
    "event_destroy": (U64,),
    "event_record": (U64, U64),
    "event_query": (U64,),
    "event_sync": (U64,),
    "device_sync": (),
    "clock_set": (U64,),
    "clock_kernel": (U64, U64),
    "host_kernel": (U64, U64, U64, INT, U64, U64),
}
PLAIN_NUMBER = {"clock_now": U64, "host_violations": ctypes.c_char_p}


class RefusedError(Exception):
    """A call of the driver failed; the text is its sentence."""

    def __init__(self, call: str, status: int, why: str) -> None:
        super().__init__(f"{call}: {STATUS[status]}{': ' + why if why else ''}")
        self.status = status


class Capabilities(ctypes.Structure):
    _fields_ = [
        ("granularity", U64),
        ("max_pages", U64),
        ("devices", ctypes.c_int32),
        ("alias", ctypes.c_int32),
        ("logical_clock", ctypes.c_int32),
        ("host_access", ctypes.c_int32),
        ("rdma", ctypes.c_int32),
        ("posix_fd", ctypes.c_int32),
    ]


class RawDriver:
    """`RawDriver("driver=cuda").page_create(bytes)` and so on: the calls of driver.h on device 0.

    Every size and address is in bytes. A call that fails raises `RefusedError`; `event_query` and
    `stream_query` return whether the work is done.
    """

    def __init__(self, options: str) -> None:
        from vmm import native

        self._library = native.library()
        self._library.vmm_driver_last_error.restype = ctypes.c_char_p
        handle = ctypes.c_void_p()
        status = self._library.vmm_driver_open(options.encode(), ctypes.byref(handle))
        if status != OK:
            raise RefusedError("open", status, self._why())
        self._handle = handle

    def _why(self) -> str:
        return (self._library.vmm_driver_last_error() or b"").decode()

    def close(self) -> None:
        if self._handle:
            self._library.vmm_driver_close(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> RawDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def capabilities(self) -> Capabilities:
        result = Capabilities()
        call = self._library.vmm_driver_get_capabilities
        status = call(self._handle, INT(0), ctypes.byref(result))
        if status != OK:
            raise RefusedError("capabilities", status, self._why())
        return result

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the device."""
        free, total = U64(), U64()
        call = self._library.vmm_driver_memory_info
        status = call(self._handle, INT(0), ctypes.byref(free), ctypes.byref(total))
        if status != OK:
            raise RefusedError("memory_info", status, self._why())
        return free.value, total.value

    def __getattr__(self, name: str) -> Any:
        if name in PLAIN_NUMBER:
            function = getattr(self._library, f"vmm_driver_{name}")
            function.restype = PLAIN_NUMBER[name]
            return lambda: function(self._handle, INT(0))
        if name not in CALLS:
            raise AttributeError(f"a driver has no call {name!r}")
        kinds = CALLS[name]
        function = getattr(self._library, f"vmm_driver_{name}")
        function.argtypes = (POINTER, INT, *kinds)
        function.restype = INT
        answers = kinds[-1:] == (OUT,)

        def call(*arguments: int) -> int | bool | None:
            out = U64()
            extra = (ctypes.byref(out),) if answers else ()
            status = function(self._handle, 0, *arguments, *extra)
            if name.endswith("_query") and status in (OK, NOT_READY):
                return status == OK
            if status != OK:
                raise RefusedError(name, status, self._why())
            return out.value if answers else None

        setattr(self, name, call)  # the next use finds it without this function
        return call
