# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Models of transformers: fill a live one from any checkpoint, write what from_pretrained loads.

Models and configurations come from the caller and bring transformers along; it is not imported.
"""

import copy
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from flexckpt import recipes
from flexckpt.api.convert import convert
from flexckpt.api.load import LoadReport, Strict, load, shared_index
from flexckpt.api.save import save
from flexckpt.collect import State
from flexckpt.comm.group import Comm
from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.shared_folder import shared_folder

if TYPE_CHECKING:
    import torch.distributed as dist

# What a folder of Hugging Face holds beside weights.
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
)


def load_pretrained(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    aoa: str | Sequence[str] | None = None,
    reverse: bool = False,
    strict: Strict = True,
    cast: bool = False,
    layout: Literal["paddle", "torch"] = "torch",
    group: "dist.ProcessGroup | None" = None,
    timeout: float | None = None,
) -> LoadReport:
    """Fill a live model, also one that FSDP2 or DTensors have sharded, from any checkpoint.

    In a distributed job every rank of the group calls this. Tied weights are filled once.

    Args:
        model: its parameters and persistent buffers must have memory: after ``device("meta")``
            call ``to_empty`` first, and see to buffers that no checkpoint holds yourself.
        path: a checkpoint of any layout that :func:`flexckpt.load` knows.
        aoa: the mapping from the checkpoint to the names of ``model.state_dict()``. If None, names
            are the same, or those of Hugging Face's files where transformers holds experts as one
            tensor (the recipe ``<model_type>_transformers``), or those of the model below a head;
            what transformers ignores is ignored.
        reverse, strict, cast, layout, group, timeout: as in :func:`flexckpt.load`.

    Raises:
        FlexckptError: INT102 if a tensor of the model has no memory, ARG101 for ``reverse`` without
            ``aoa``, or as :func:`flexckpt.load`.
    """
    _check_reverse(aoa, reverse)
    targets, tied = tensors_of(model)
    for name, tensor in targets.items():
        if tensor.is_meta:
            raise FlexckptError("INT102", f"{name!r} is on the meta device; call to_empty first")
    if aoa is None:
        found = shared_index(Path(path).absolute(), Comm(group, timeout))
        names = {key for key, _ in found.entries}
        aoa = _mapping_of_files(model, targets.keys(), tied, names)
    return load(
        targets,
        path,
        aoa=aoa,
        reverse=reverse,
        strict=strict,
        cast=cast,
        layout=layout,
        group=group,
        timeout=timeout,
    )


def save_pretrained(
    source: "str | os.PathLike[str] | torch.nn.Module | State",
    folder: str | os.PathLike[str],
    *,
    config: Any = None,
    tokenizer: Any = None,
    aoa: str | Sequence[str] | None = None,
    reverse: bool = False,
    layout: Literal["paddle", "torch"] = "torch",
    shard_size: int | str = "5GB",
    group: "dist.ProcessGroup | None" = None,
    timeout: float | None = None,
) -> None:
    """Write a folder that ``from_pretrained`` loads. It appears in one step when it is complete.

    In a distributed job every rank of the group calls this.

    Args:
        source: a checkpoint of any layout, a live model (also a sharded one), or tensors as
            :func:`flexckpt.save` takes them.
        folder: to be written; what stands there is replaced at the end.
        config: a configuration of transformers, or a folder whose configuration and tokenizer are
            copied. A live model brings its own.
        tokenizer: a tokenizer or processor to be saved, too.
        aoa: the mapping from the source to the names of Hugging Face's files. If None, names stay;
            for a live model whose experts transformers holds as one tensor, the recipe
            ``<model_type>_transformers`` is undone.
        reverse: ``aoa`` describes the opposite direction (from the files to the source).
        layout: as in :func:`flexckpt.load`.
        shard_size: bytes of a file at most, like ``"5GB"``.
        group, timeout: as in :func:`flexckpt.save`.

    Raises:
        FlexckptError: ARG101 without a configuration or for ``reverse`` without ``aoa``, or as
            :func:`flexckpt.convert` and :func:`flexckpt.save`.
    """
    _check_reverse(aoa, reverse)
    generation = None
    if isinstance(source, torch.nn.Module):
        model = source
        source = tensors_of(model)[0]
        if aoa is None and (recipe := _recipe_of(model)):
            aoa, reverse = recipe, True
        if config is None:
            config = _config_of(model)
            generation = getattr(model, "generation_config", None)
    if config is None:
        raise FlexckptError("ARG101", "config must be a configuration or a folder that holds one")
    comm = Comm(group, timeout)
    options: dict[str, Any] = {
        "aoa": aoa,
        "reverse": reverse,
        "layout": layout,
        "shard_size": shard_size,
        "group": group,
        "timeout": timeout,
    }
    with shared_folder(Path(folder).absolute(), comm) as shared:
        weights = shared.partial / "weights"
        if isinstance(source, (str, os.PathLike)):
            convert(source, weights, to="hf", **options)
        else:
            save(source, weights, to="hf", **options)
        with comm.together("writing the configuration"):
            if shared.leads:
                _complete(shared.partial, weights, config, (generation, tokenizer))


def _check_reverse(aoa: object, reverse: bool) -> None:
    if reverse and aoa is None:
        raise FlexckptError(
            "ARG101", "reverse=True wants the mapping that is to be inverted as aoa"
        )


def tensors_of(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of ``model.state_dict()``, each once, and the further names of tied ones."""
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            continue
        other = first.setdefault(id(tensor), name)
        if other == name:
            tensors[name] = tensor.detach()
        else:
            tied[name] = other
    return tensors, tied


def _recipe_of(model: torch.nn.Module) -> str | None:
    """The mapping from the files of a model's family to its modules, where they differ."""
    config = getattr(model, "config", None)
    name = f"{getattr(config, 'model_type', None)}_transformers"
    return recipes.load(name, config) if name in recipes.names() else None


def _mapping_of_files(
    model: torch.nn.Module, targets: Any, tied: dict[str, str], names: set[str]
) -> list[str]:
    """The mapping from a checkpoint with these names to a model, if nothing else was said."""
    statements = []
    if not names >= set(targets) and (recipe := _recipe_of(model)):
        statements.append(recipe)
    left = sorted(n for n in names - set(targets) if '"' not in n)
    prefix = getattr(model, "base_model_prefix", "")
    inner = {n: f"{prefix}.{n}" for n in left if f"{prefix}.{n}" in targets}
    patterns = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    ignored = re.compile("|".join(f"(?:{p})" for p in patterns) or r"(?!)")
    dropped = [n for n in left if n not in inner and (n in tied or ignored.search(n))]
    statements += [f'"{name}" -> "{full}"' for name, full in inner.items()]
    return statements + [f'"{name}" -> _' for name in dropped]


def _config_of(model: torch.nn.Module) -> Any:
    """The configuration of a model as its own save_pretrained completes it."""
    config = copy.deepcopy(getattr(model, "config", None))
    if config is not None:
        config.dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        config.architectures = [type(model).__name__.removeprefix("FSDP")]
    return config


def _complete(folder: Path, weights: Path, config: Any, things: Sequence[Any]) -> None:
    """Put beside the weights what belongs there."""
    try:
        if isinstance(config, (str, os.PathLike)):
            _copy_side_files(Path(config), folder)
        else:
            config.save_pretrained(folder)
        for thing in things:
            if thing is not None:
                thing.save_pretrained(folder)
        for file in folder.glob("*.*"):
            _sync(file)
        for file in weights.iterdir():
            file.rename(folder / file.name)
        weights.rmdir()
    except OSError as error:
        raise CheckpointError("CKP108", f"{folder} cannot be written: {error.strerror}") from None


def _copy_side_files(source: Path, folder: Path) -> None:
    found = [source / name for name in SIDE_FILES if (source / name).is_file()]
    if source / "config.json" not in found:
        raise CheckpointError("CKP102", f"{source} holds no config.json")
    for file in found:
        shutil.copyfile(file, folder / file.name)


def _sync(file: Path) -> None:
    """Have a file written to the disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
