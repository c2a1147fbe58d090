# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""NumPy's scalars in pickles, as plain numbers."""

from collections.abc import Callable
from struct import Struct
from typing import Any

from flexckpt.errors import CheckpointError
from flexckpt.io.pickle_machine import Stateful

_FORMATS = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}


class NumpyDtype(Stateful):
    """A dtype of NumPy: its code, "f8" for example, and its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str, *flags: Any) -> None:
        self.code = code
        self.order = "<"

    def set_state(self, state: Any) -> None:
        """Take the byte order: the second field of a state."""
        self.order = {">": ">"}.get(state[1], "<")


def _scalar(dtype: Any, data: Any = None) -> Any:
    if not isinstance(dtype, NumpyDtype) or dtype.code not in _FORMATS:
        raise CheckpointError("CKP105", "the pickle holds a NumPy scalar that is not a number")
    return Struct(dtype.order + _FORMATS[dtype.code]).unpack(data)[0]


NUMPY_MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): NumpyDtype,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
}
