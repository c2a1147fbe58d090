# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Where the tensors of one data file of Paddle lie: a pickled dict of NumPy arrays, or safetensors.

A pickle of protocol 3 or 4 holds the bytes of an array as they are, so that parts of it can be read
in place; protocol 2 writes them as text, which cannot. `save_state_dict` writes protocol 4.
"""

from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flexckpt.boxes import c_strides
from flexckpt.errors import CheckpointError
from flexckpt.io.pickle_machine import FileBytes, Stateful
from flexckpt.io.restricted_pickle import load_plain
from flexckpt.io.safetensors_file import read_header

# By what Paddle calls the dtype: the torch dtype, and how NumPy, which lacks some, stores it.
DTYPES: dict[str, tuple[torch.dtype, str]] = {
    "float64": (torch.float64, "f8"),
    "float32": (torch.float32, "f4"),
    "float16": (torch.float16, "f2"),
    "bfloat16": (torch.bfloat16, "u2"),
    "float8_e4m3fn": (torch.float8_e4m3fn, "i1"),
    "float8_e5m2": (torch.float8_e5m2, "i1"),
    "int64": (torch.int64, "i8"),
    "int32": (torch.int32, "i4"),
    "int16": (torch.int16, "i2"),
    "int8": (torch.int8, "i1"),
    "uint8": (torch.uint8, "u1"),
    "bool": (torch.bool, "b1"),
    "complex64": (torch.complex64, "c8"),
    "complex128": (torch.complex128, "c16"),
}
_SAFETENSORS_BF16 = (torch.bfloat16, torch.uint16)  # older versions wrote the bits as integers


class Located(NamedTuple):
    """Byte of the first element, and strides in elements, None for C order."""

    position: int
    strides: tuple[int, ...] | None


class _Array(Stateful):
    """A NumPy array of a pickle: its state is (version, shape, dtype, is Fortran order, data)."""

    __slots__ = ("state",)

    def __init__(self, *args: Any) -> None:
        self.state: Any = None

    def set_state(self, state: Any) -> None:
        self.state = state


class _Dtype(Stateful):
    """A NumPy dtype of a pickle: its code, then a state whose second item is the byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any = None, *args: Any) -> None:
        self.code = code
        self.order: Any = None

    def set_state(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or any(state[2:5]):
            raise CheckpointError("CKP109", "an array has a dtype with fields")
        self.order = state[1]


def _refuse(*args: Any) -> Any:
    raise CheckpointError("CKP105", "the pickle makes an array other than by its bytes")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _refuse,  # named as an argument, never called
    ("numpy", "dtype"): _Dtype,
}


class DataFile:
    """The tensors of a data file by name; nothing but the description of them is read.

    Raises:
        CheckpointError: CKP102 if there is no such file, CKP103 if it is damaged, CKP105 if it asks
            for anything but arrays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pickled = path.suffix != ".safetensors"
        self.tensors: dict[str, Any] = (
            self._read_pickle() if self.pickled else dict(read_header(path).tensors)
        )

    def _read_pickle(self) -> dict[str, Any]:
        if not self.path.is_file():
            raise CheckpointError("CKP102", f"{self.path} is missing or is not a file")
        try:
            with self.path.open("rb") as file:
                value = load_plain(file, _ALLOWED, large_bytes=1)
        except OSError as error:
            raise CheckpointError(
                "CKP103", f"{self.path} cannot be read: {error.strerror}"
            ) from None
        if not isinstance(value, dict):
            raise CheckpointError("CKP103", f"{self.path} does not hold a dict of tensors")
        return value

    def locate(self, name: str, dtype: str, shape: tuple[int, ...]) -> Located:
        """Where a tensor lies, which must have this dtype and shape.

        Raises:
            CheckpointError: CKP103 if it is not there or is another one, CKP109 if its bytes do not
                lie in the file as they are.
        """
        value = self.tensors.get(name)
        if value is None:
            raise CheckpointError("CKP103", f"{self.path} has no tensor {name!r}")
        if not self.pickled:
            wanted = DTYPES[dtype][0]
            accepted = _SAFETENSORS_BF16 if wanted is torch.bfloat16 else (wanted,)
            if value.dtype not in accepted or value.shape != shape:
                raise self._other(name, dtype, shape, f"{value.dtype} of shape {value.shape}")
            return Located(value.start, None)
        if isinstance(value, tuple) and len(value) == 2:  # (name of the variable, array)
            value = value[1]
        state = value.state if isinstance(value, _Array) else None
        if not isinstance(state, tuple) or len(state) != 5:
            raise CheckpointError("CKP103", f"{self.path}: {name!r} is not a whole NumPy array")
        _, found, kind, fortran, data = state
        code = kind.code if isinstance(kind, _Dtype) else None
        if code != DTYPES[dtype][1] or found != shape:
            raise self._other(name, dtype, shape, f"NumPy's {code} of shape {found}")
        assert isinstance(kind, _Dtype)
        if kind.order not in ("<", "|"):
            what = f"{self.path}: {name!r} has the byte order {kind.order!r}"
            raise CheckpointError("CKP109", f"{what}; only little endian is supported")
        size = prod(shape) * DTYPES[dtype][0].itemsize
        if not size:
            return Located(0, None)
        if not isinstance(data, FileBytes):
            what = f"{self.path}: {name!r} is pickled as text, by protocol 2"
            raise CheckpointError("CKP109", f"{what}; save it again with protocol 4")
        if data.length != size:
            what = f"{name!r} has {data.length} bytes, its shape {shape} needs {size}"
            raise CheckpointError("CKP103", f"{self.path}: {what}")
        strides = tuple(reversed(c_strides(shape[::-1]))) if fortran and len(shape) > 1 else None
        return Located(data.position, strides)

    def _other(self, name: str, dtype: str, shape: tuple[int, ...], found: str) -> CheckpointError:
        what = f"{name!r} should be {dtype} of shape {shape} by the metadata, and is {found}"
        return CheckpointError("CKP103", f"{self.path}: {what}")
