# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The allow list: globals of pickles that are plain data, and what makes it."""

from collections.abc import Callable
from typing import Any

import torch

from flexckpt.errors import CheckpointError
from flexckpt.io.pickle_values import Plain

_SIZES = 2**63
_HASHED = (str, int, bool, float, bytes, type(None))


def _dict_of(items: Any = ()) -> dict[Any, Any]:
    if type(items) is dict:
        return dict(items)
    made = {}
    for key, value in items:
        if not isinstance(key, str | int):
            raise CheckpointError("CKP103", f"the pickle uses a {type(key).__name__} as a key")
        made[key] = value
    return made


def _default_dict(factory: Any = None, *items: Any) -> dict[Any, Any]:
    return _dict_of(*items)  # a factory says how to go on with a dict, not what it holds


def _set_of(items: Any = ()) -> set[Any]:
    for item in items:
        for part in item if type(item) is tuple else (item,):
            if type(part) not in _HASHED:
                raise CheckpointError("CKP103", f"the pickle holds a set of {type(part).__name__}")
    return set(items)


def _bytes_of(text: Any = b"", encoding: str = "latin-1") -> bytes:
    if type(text) is bytes:
        return text
    if type(text) is str and encoding in ("latin1", "latin-1"):
        return text.encode("latin-1")
    raise TypeError("bytes are made from bytes or text")


def _complex_of(real: float, imaginary: float) -> complex:
    return complex(float(real), float(imaginary))


def _slice_of(start: Any, stop: Any, step: Any) -> slice:
    if all(part is None or type(part) is int for part in (start, stop, step)):
        return slice(start, stop, step)
    raise TypeError("a slice is made from integers")


def size_of(sizes: Any = ()) -> tuple[int, ...]:
    """A ``torch.Size`` as a tuple of integers."""
    made: tuple[int, ...] = tuple(sizes)
    for n in made:
        if type(n) is not int or not 0 <= n < _SIZES:
            raise TypeError("a size is made from integers that are not negative")
    return made


_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}

# Globals that are values, and globals that make plain data from their arguments.
VALUES: dict[tuple[str, str], Any] = {("torch", name): dtype for name, dtype in _DTYPES.items()}
MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _dict_of,
    ("collections", "defaultdict"): _default_dict,
    ("collections", "Counter"): _dict_of,
    ("builtins", "dict"): _dict_of,
    ("builtins", "list"): lambda items=(): list(items),
    ("builtins", "tuple"): lambda items=(): tuple(items),
    ("builtins", "set"): _set_of,
    ("builtins", "frozenset"): _set_of,
    ("builtins", "bytearray"): _bytes_of,
    ("builtins", "bytes"): _bytes_of,
    ("builtins", "complex"): _complex_of,
    ("builtins", "slice"): _slice_of,
    ("builtins", "int"): Plain,
    ("builtins", "float"): Plain,
    ("_codecs", "encode"): _bytes_of,
    ("torch", "Size"): size_of,
    ("torch", "device"): lambda *where: ":".join(map(str, where)),
    ("torch.serialization", "_get_layout"): lambda name: name,
}
# Names as Python 2 and protocol 2 have them.
OLD_MODULES = {"__builtin__": "builtins"}
