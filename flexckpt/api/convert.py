# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.convert and merge: one checkpoint into another, with bounded memory."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from flexckpt.api.like import Like, specs_like, warn_of_guesses
from flexckpt.api.load import Strict, file_suppliers, files_seen, mentioned, reading, shared_index
from flexckpt.comm.group import Comm
from flexckpt.errors import FlexckptError
from flexckpt.execute import Stats
from flexckpt.export import Progress, export, outputs_of
from flexckpt.index import Stored
from flexckpt.io.writers import Settings, check_layout, make_sink, states_of
from flexckpt.lang import compile_program
from flexckpt.transfer import Supplier
from flexckpt.twins import check_copies

if TYPE_CHECKING:
    import torch.distributed as dist


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    aoa: str | Sequence[str] | None = None,
    reverse: bool = False,
    to: str = "hf",
    shard_size: int | str = "5GB",
    strict: Strict = True,
    layout: Literal["paddle", "torch"] = "paddle",
    states: Sequence[str] | None = None,
    like: Like = None,
    checksums: bool = True,
    progress: Progress | None = None,
    group: "dist.ProcessGroup | None" = None,
    timeout: float | None = None,
) -> Stats:
    """Write a checkpoint in another layout, its tensors whole and rewritten as the mapping says.

    Works in one process, or faster in several that call it together. Memory is bounded by two of
    the largest tensors, however large the checkpoint is.

    Args:
        src: a checkpoint of any known layout.
        dst: the folder to write; it appears when it is complete, and replaces what stood there.
        aoa: the mapping from ``src`` to ``dst``; None to keep names and structure.
        reverse: ``aoa`` describes the opposite direction; its inverse is used.
        to: the layout of ``dst``: "hf" (weights only), "flexckpt", "dcp" or "universal".
        shard_size: bytes of a file at most, for "hf".
        strict: see :func:`flexckpt.load`.
        layout: see :func:`flexckpt.load`.
        states: the states to convert ("weight", "exp_avg"); all that ``to`` can hold if None.
        like: a checkpoint, or specs by key, with the names and shapes that ``dst`` is to have. It
            makes an inverse exact where the text alone does not tell the lengths of parts.
        checksums: keep a checksum of every tensor ("flexckpt" only).
        progress: is called with ``(bytes done, bytes in all, name)`` after every tensor of this
            rank.
        group: the ranks that convert together; all if None.
        timeout: seconds that a rank waits for another.

    Returns:
        Bytes that this rank read, sent, received and wrote.

    Raises:
        AoaError: the mapping does not fit. Nothing was written.
        CheckpointError: ``src`` is damaged, or ``dst`` cannot be written.
        TransferError: another rank failed.
    """
    check_layout(to)
    comm = Comm(group, timeout)
    where, out = Path(src).absolute(), Path(dst).absolute()
    if where == out or out in where.parents:
        raise FlexckptError("ARG101", f"dst must not be src or a folder around it, as {dst} is")
    comm.same(aoa, reverse, to, shard_size, strict, layout, states)
    index = shared_index(where, comm)
    index = index.with_aliases(mentioned(aoa, index.aliases))
    seen = files_seen(index, comm)
    with comm.together("planning"):
        wanted = specs_like(like)
        program = compile_program(
            aoa or [], index.specs(), wanted, reverse=reverse, strict=strict, layout=layout
        )
        warn_of_guesses(program)
        chosen = states_of(to) if states is None else tuple(states)
        outputs = outputs_of(index, program.outputs, chosen)
        settings = Settings(index.extra, shard_size, checksums, index.aliases)
        sink = make_sink(to, outputs, settings)
    stats = Stats()

    def supplier(found: Sequence[tuple[Stored, str]]) -> Supplier:
        return file_suppliers(found, index, comm, seen)

    with torch.no_grad(), reading(index, comm) as (source, pool):
        check_copies(index, program, source, supplier, comm, stats=stats, pool=pool)
        export(
            index,
            program.outputs,
            outputs,
            source,
            supplier,
            sink,
            out,
            comm,
            stats=stats,
            pool=pool,
            progress=progress,
        )
    return stats


def merge(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    shard_size: int | str = "5GB",
    progress: Progress | None = None,
    group: "dist.ProcessGroup | None" = None,
) -> Stats:
    """Put the weights of a sharded checkpoint together into a Hugging Face folder.

    The same as :func:`convert` without a mapping, so names stay; see there.
    """
    return convert(src, dst, to="hf", shard_size=shard_size, progress=progress, group=group)
