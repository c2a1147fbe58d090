# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reader of the distributed checkpoints of megatron-core, whose backend is ``torch_dist``.

A folder of ``metadata.json`` (the backend), ``common.pt`` (what is not cut), and a distributed
checkpoint of torch with names of its own.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from flexckpt.errors import CheckpointError
from flexckpt.index import Reader, SourceIndex
from flexckpt.io.dcp import build_index
from flexckpt.io.dcp_metadata import METADATA, read_metadata
from flexckpt.io.megatron_names import present_entries
from flexckpt.io.plain_data import json_data
from flexckpt.io.restricted_pickle import Plain
from flexckpt.io.torch_file import read_torch_file
from flexckpt.states import WEIGHT

CONFIG = "metadata.json"
COMMON = "common.pt"
LATEST = "latest_checkpointed_iteration.txt"
_LARGEST_CONFIG = 2**16
_SETTINGS = {("argparse", "Namespace"): Plain, ("types", "SimpleNamespace"): Plain}


def recognizes(path: Path) -> bool:
    """Whether ``path`` is such a folder, or the folder of a training run that has one."""
    return _config(_latest(path)) is not None


def read_index(path: Path) -> SourceIndex:
    """Read the metadata, and the settings in ``common.pt``, which become ``extra``.

    Tensors have the names of :func:`flexckpt.io.megatron_names.present_entries`. Settings that are
    not plain data are left out. The state of a distributed optimizer that was saved in the layout
    of its own buffers keeps the names of these.

    Args:
        path: the folder of an iteration, or the one of the run, of which the latest is read.

    Raises:
        CheckpointError: CKP101 if there is no such checkpoint, CKP109 if its backend is another one
            (zarr), CKP102 if a file is missing, CKP103 if one is damaged or truncated, CKP105 if
            the metadata ask for what is not data, CKP106 if they name a file outside of the folder.
    """
    named, path = path, _latest(path)
    config = _config(path)
    if config is None:
        raise CheckpointError("CKP101", f"{path} holds no {CONFIG} of megatron-core")
    backend = config["sharded_backend"]
    if backend != "torch_dist":
        what = f"the backend {str(backend)[:50]!r}, and only torch_dist is read"
        raise CheckpointError("CKP109", f"{path} is a Megatron checkpoint of {what}")
    metadata = read_metadata([path / METADATA])
    names = {name: (name, WEIGHT) for name in metadata.tensors}
    index = build_index("megatron", path, metadata, names)
    assert index.resolve is not None
    stored = {name: entry for (name, _), entry in index.entries.items()}
    extra = {name: _single(value) for name, value in index.extra.items()}
    return replace(
        index,
        path=named,
        entries=present_entries(stored, index.resolve),
        extra=extra | _common(path / COMMON),
    )


def _latest(path: Path) -> Path:
    """The folder of the latest iteration, if ``path`` is the folder of a training run."""
    try:
        with (path / LATEST).open("rb") as file:
            text = file.read(64).decode("ascii").strip()
    except (OSError, ValueError):
        return path
    if text == "release":
        return path / text
    return path / f"iter_{int(text):07d}" if text.isdigit() else path


def _config(path: Path) -> dict[str, Any] | None:
    try:
        file = path / CONFIG
        if not file.is_file() or file.stat().st_size > _LARGEST_CONFIG:
            return None
        config = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) and "sharded_backend" in config else None


def _single(value: Any) -> Any:
    """A sharded object; they are stored as a list of those of one name, of which there is one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _common(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    common = json_data(read_torch_file(file, unknown="opaque", allowed=_SETTINGS), file)
    return common[0] if common and isinstance(common[0], dict) else {}


READER = Reader("megatron", recognizes, read_index)
