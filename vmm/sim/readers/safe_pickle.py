# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Pickles of plain data from strangers: dict, list, tuple, str, int, float, bool and None only.

Two guards. The opcodes are walked first, and any beyond those that plain data needs is refused
before anything is built; so is a memo number that would make the unpickler reserve memory for it.
Then the unpickler runs with a `find_class` that always refuses.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from vmm.errors import FormatError

MAX_CONTAINERS = 100_000_000

# Opcodes of plain data in protocols 2 to 5, by pickletools' names.
_PLAIN = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT"),
        *("BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINUNICODE", "BINUNICODE"),
        *("MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
        *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "APPEND", "APPENDS", "SETITEM", "SETITEMS"),
        *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "DICT"),
    )
)
_CODES = {op.name: ord(op.code) for op in pickletools.opcodes}
# How many bytes an opcode with its operand takes; those that carry a length are negative: minus the
# size of the length field. 0 is refused.
_OPERANDS = {
    "PROTO": 2,
    "FRAME": 9,
    "BINPUT": 2,
    "LONG_BINPUT": 5,
    "BINGET": 2,
    "LONG_BINGET": 5,
    "BININT": 5,
    "BININT1": 2,
    "BININT2": 3,
    "BINFLOAT": 9,
    "LONG1": -1,
    "SHORT_BINUNICODE": -1,
    "BINUNICODE": -4,
}
_LENGTHS = [0] * 256
for _name in _PLAIN:
    _LENGTHS[_CODES[_name]] = _OPERANDS.get(_name, 1)
_CONTAINERS = frozenset(
    _CODES[name]
    for name in ("EMPTY_DICT", "EMPTY_LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "DICT")
)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside")


def loads(data: bytes) -> Any:
    """The plain data in a pickle. Raises FormatError for anything else, before it is built."""
    end = _walk(data)
    try:
        return _PlainUnpickler(io.BytesIO(data[:end] if end < len(data) else data)).load()
    # A damaged pickle makes the unpickler raise almost anything.
    except Exception as error:
        raise FormatError(f"the pickle is damaged: {type(error).__name__}: {error}") from None


def _walk(data: bytes) -> int:
    """Checks the opcodes; returns where the pickle ends."""
    lengths, stop, put = _LENGTHS, _CODES["STOP"], _CODES["LONG_BINPUT"]
    at, end = 0, len(data)
    containers = 0
    is_container = [code in _CONTAINERS for code in range(256)]
    while at < end:
        code = data[at]
        length = lengths[code]
        if length > 0:
            if code == stop:
                if containers > MAX_CONTAINERS:
                    break
                return at + 1
            containers += is_container[code]
            if code == put:
                number = int.from_bytes(data[at + 1 : at + 5], "little")
                # Real picklers number what they keep from 0 on, so no number is beyond the count
                # of opcodes, each of which has at least a byte.
                if number > at:
                    raise FormatError(f"the pickle keeps an object under the number {number}")
            at += length
        elif length < 0:
            begin = at + 1 - length
            at = begin + int.from_bytes(data[at + 1 : begin], "little")
        else:
            raise FormatError(
                f"the pickle has opcode {_name_of(code)} at byte {at}: only plain data is read"
            )
    if containers > MAX_CONTAINERS:
        raise FormatError(f"the pickle has more than {MAX_CONTAINERS} lists, dicts and tuples")
    raise FormatError("the pickle is cut off")


def _name_of(code: int) -> str:
    return next((name for name, number in _CODES.items() if number == code), f"{code:#04x}")
