# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Settings beside the tensors of a checkpoint as plain data, of the types that JSON has."""

from math import isfinite
from pathlib import Path
from typing import Any

from flexckpt.io.restricted_pickle import Plain
from flexckpt.io.torch_file import FileTensor, materialize

_LARGEST_TENSOR = 64  # elements; beyond, a tensor among settings is no number


class NotPlainError(Exception):
    """A value is neither text, a number, nor made of such."""


def json_data(value: Any, path: Path) -> list[Any]:
    """``value`` in a list as JSON types, or an empty list if it is not made of such.

    Tuples become lists, keys of dicts text, tiny tensors numbers or lists, and the fields of
    objects that were read as ``Plain`` dicts. What is not plain in a dict is left out of it.

    Args:
        value: as the readers of torch files give it.
        path: the file where its tensors lie.
    """
    try:
        return [_plain(value, path)]
    except NotPlainError:
        return []


def _plain(value: Any, path: Path) -> Any:
    if value is None or type(value) in (str, bool, int):
        return value
    if type(value) is float and isfinite(value):
        return value
    if isinstance(value, FileTensor):
        if value.numel <= _LARGEST_TENSOR and not value.dtype.is_complex:
            return materialize(value, path).tolist()
        raise NotPlainError
    if isinstance(value, list | tuple):
        return [_plain(part, path) for part in value]
    if isinstance(value, Plain) and not value.args:
        value = value.fields
    if isinstance(value, dict):
        return {
            str(key): found
            for key, part in value.items()
            if type(key) in (str, int)
            for found in json_data(part, path)
        }
    raise NotPlainError
