# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Attributes and flag words as data: the values they take and what may stand together."""

import re
from collections.abc import Callable
from functools import lru_cache

from flexckpt.lang.tree import Attribute, Misplaced, Name, Value

MAX_COUNT = 65536  # of names, heads or parts that one statement may ask for
DTYPES = ("float16", "bfloat16", "float32")

_LIST = re.compile(r"\s*[\[(]\s*((?:-?\d{1,18}\s*,\s*)*(?:-?\d{1,18}\s*)?)[\])]\s*", re.ASCII)


def _integer(value: Value) -> Value:
    if not isinstance(value, int):
        raise ValueError("an integer")
    return value


def _count(value: Value) -> Value:
    if not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
        raise ValueError(f"an integer from 1 to {MAX_COUNT}")
    return value


def _length(value: Value) -> Value:
    if not isinstance(value, int) or value < 0:
        raise ValueError("a length")
    return value


def _dtype(value: Value) -> Value:
    if value not in DTYPES:
        raise ValueError(f"in quotes, one of {', '.join(DTYPES)}")
    return value


def _integers(value: Value) -> tuple[int, ...]:
    if isinstance(value, str):
        match = _LIST.fullmatch(value)
        if match:
            value = tuple(int(n) for n in match[1].split(",") if n.strip())
    if not isinstance(value, tuple):
        raise ValueError("a list of integers like '[1,0]'")
    return value


def _permutation(value: Value) -> Value:
    numbers = _integers(value)
    if sorted(numbers) != list(range(len(numbers))):
        raise ValueError("a list that names every axis once, from 0")
    return numbers


def _sizes(value: Value) -> Value:
    if value == "equal":
        return value
    try:
        numbers = _integers(value)
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 0:
        raise ValueError("a list of lengths like [4,2,2], or 'equal'")
    return numbers


def _shape(value: Value) -> Value:
    numbers = _integers(value)
    if any(n < -1 for n in numbers) or numbers.count(-1) > 1:
        raise ValueError("a list of lengths like [4,8], of which one may be -1")
    return numbers


def _degrees(value: Value) -> Value:
    if isinstance(value, int):
        return _count(value)
    numbers = _integers(value)
    if len(numbers) != 2 or not all(1 <= n <= MAX_COUNT for n in numbers):
        raise ValueError("a number of parts, or those of source and destination like [2,4]")
    return numbers


# Attribute -> its value, or ValueError with what it must be.
_VALUES: dict[str, Callable[[Value], Value]] = {
    "axis": _integer,
    "num_heads": _count,
    "num_key_value_groups": _count,
    "num_kv_heads": _count,
    "tp": _degrees,
    "permute": _permutation,
    "dtype": _dtype,
    "src_dtype": _dtype,
    "dst_dtype": _dtype,
    "sizes": _sizes,
    "stack": _integer,
    "unstack": _integer,
    "reshape": _shape,
    "pad": _length,
    "unpad": _length,
}

# Flag word -> the attributes it takes.
FLAGS: dict[str, frozenset[str]] = {
    "fused_qkv": frozenset({"axis", "num_heads", "num_key_value_groups", "num_kv_heads"}),
    "fused_qkv_old": frozenset({"axis", "num_heads", "num_key_value_groups", "num_kv_heads", "tp"}),
    "fused_ffn": frozenset({"axis", "tp"}),
    "stack": frozenset({"axis"}),
    "unstack": frozenset({"axis"}),
}

# What may stand together where there is no flag word.
_TOGETHER = (
    {"axis", "sizes"},
    {"permute"},
    {"dtype"},
    {"src_dtype", "dst_dtype"},
    {"stack"},
    {"unstack"},
    {"reshape"},
    {"pad", "axis"},
    {"unpad", "axis"},
)


def checked(attributes: tuple[Attribute, ...], flag: str | None) -> tuple[Attribute, ...]:
    """Attributes with their values read.

    Raises:
        Misplaced: AOA103 or AOA104.
    """
    try:
        values = _read(tuple([(a.key, a.value, a.raw) for a in attributes]), flag)
    except _Wrong as wrong:
        span = attributes[wrong.position].span
        raise Misplaced(wrong.code, wrong.message, span) from None
    return tuple(
        [
            Attribute(a.key, value, a.span, a.raw)
            for a, value in zip(attributes, values, strict=True)
        ]
    )


class _Wrong(Exception):  # noqa: N818 (it becomes a Misplaced)
    def __init__(self, code: str, message: str, position: int) -> None:
        self.code = code
        self.message = message
        self.position = position


@lru_cache(4096)
def _read(given: tuple[tuple[str, Value, str], ...], flag: str | None) -> tuple[Value, ...]:
    """The values of attributes: few programs have many different ones."""
    seen: set[str] = set()
    values = []
    for i, (key, value, raw) in enumerate(given):
        if key not in _VALUES:
            known = ", ".join(sorted(_VALUES))
            raise _Wrong("AOA103", f"there is no attribute {key!r}; there are {known}", i)
        if key in seen:
            raise _Wrong("AOA103", f"{key} is given twice", i)
        seen.add(key)
        if flag is not None and key not in FLAGS[flag]:
            taken = ", ".join(sorted(FLAGS[flag]))
            raise _Wrong("AOA103", f"{flag} takes {taken}, not {key}", i)
        try:
            values.append(_VALUES[key](value))
        except ValueError as error:
            raise _Wrong("AOA104", f"{key} must be {error}, not {raw[:80]}", i) from None
    last = len(given) - 1
    if flag is None and not any(seen <= together for together in _TOGETHER):
        raise _Wrong(
            "AOA103",
            f"{' and '.join(key for key, _, _ in given)} do not go together: one statement, one "
            f"operation",
            last,
        )
    if ("src_dtype" in seen) != ("dst_dtype" in seen):
        raise _Wrong("AOA103", "src_dtype and dst_dtype are given together or not at all", last)
    return tuple(values)


_RESERVED = frozenset({"fused_qkv", "fused_qkv_old", "fused_ffn"})


def flag_of(names: tuple[Name, ...]) -> tuple[tuple[Name, ...], str | None]:
    """The names on the right without the flag word, and that.

    Raises:
        Misplaced: AOA102, where a flag word stands among the names.
    """
    flag = None
    if len(names) > 1 and names[-1].text in FLAGS and not names[-1].quoted:
        flag, names = names[-1].text, names[:-1]
    for name in names:
        if name.text in _RESERVED and not name.quoted:
            message = f"the word {name.text} stands once, behind names; quote it if it is a name"
            raise Misplaced("AOA102", message, name.span)
    return names, flag
