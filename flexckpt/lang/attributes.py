# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Attributes and flag words as data: the values they take and what may stand together."""

import re
from collections.abc import Callable

from flexckpt.lang.tree import Attribute, Misplaced, Statement, Value

MAX_COUNT = 65536  # of names, heads or parts that one statement may ask for
DTYPES = ("float16", "bfloat16", "float32", "float64")

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
    numbers = _integers(value)
    if not numbers or min(numbers) < 0:
        raise ValueError("a list of lengths like [4,2,2]")
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
    seen: set[str] = set()
    out = []
    for attribute in attributes:
        key = attribute.key
        if key not in _VALUES:
            known = ", ".join(sorted(_VALUES))
            raise Misplaced(
                "AOA103", f"there is no attribute {key!r}; there are {known}", attribute.span
            )
        if key in seen:
            raise Misplaced("AOA103", f"{key} is given twice", attribute.span)
        seen.add(key)
        if flag is not None and key not in FLAGS[flag]:
            taken = ", ".join(sorted(FLAGS[flag]))
            raise Misplaced("AOA103", f"{flag} takes {taken}, not {key}", attribute.span)
        try:
            value = _VALUES[key](attribute.value)
        except ValueError as error:
            message = f"{key} must be {error}, not {attribute.raw[:80]}"
            raise Misplaced("AOA104", message, attribute.span) from None
        out.append(attribute._replace(value=value))
    if flag is None and not any(seen <= together for together in _TOGETHER):
        raise Misplaced(
            "AOA103",
            f"{' and '.join(a.key for a in attributes)} do not go together: one statement, one operation",
            attributes[-1].span,
        )
    if ("src_dtype" in seen) != ("dst_dtype" in seen):
        raise Misplaced(
            "AOA103",
            "src_dtype and dst_dtype are given together or not at all",
            attributes[-1].span,
        )
    return tuple(out)


def flag_of(statement: Statement) -> Statement:
    """The statement with its flag word, if it has one, taken out of the names on the right.

    Raises:
        Misplaced: AOA102, where a flag word stands among the names.
    """
    right = statement.right
    flag = None
    if len(right) > 1 and right[-1].text in FLAGS and not right[-1].quoted:
        flag, right = right[-1].text, right[:-1]
    for name in right:
        if name.text in _RESERVED and not name.quoted:
            message = (
                f"the word {name.text} stands after all names, once; put a tensor's name in quotes"
            )
            raise Misplaced("AOA102", message, name.span)
    return statement._replace(flag=flag, right=right)


_RESERVED = frozenset({"fused_qkv", "fused_qkv_old", "fused_ffn"})
