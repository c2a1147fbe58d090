# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Saving tensors that ranks hold together in another structure: put together, each on one rank."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from flexckpt.api.like import warn_of_guesses
from flexckpt.collect import specs_of
from flexckpt.comm.group import Comm
from flexckpt.execute import Stats
from flexckpt.export import export, outputs_of
from flexckpt.io.writers import Settings, make_sink, states_of
from flexckpt.lang import compile_program
from flexckpt.memory_index import memory_index, memory_source, supplier_in_memory
from flexckpt.model import Shard, TensorSpec
from flexckpt.twins import check_copies


class Rewrite(NamedTuple):
    """A mapping as the user gave it."""

    aoa: str | Sequence[str]
    reverse: bool
    layout: Literal["paddle", "torch"]
    wanted: dict[str, TensorSpec] | None = None
    by_mesh: Collection[str] = ()


def save_mapped(
    shards: Sequence[Shard],
    path: Path,
    rewrite: Rewrite,
    to: str,
    settings: Settings,
    comm: Comm,
    stats: Stats,
) -> None:
    """Write what the ranks hold, rewritten and unsharded."""
    index = memory_index(shards, comm)
    specs = specs_of(shards, comm, by_mesh=rewrite.by_mesh)
    with comm.together("planning"):
        program = compile_program(
            rewrite.aoa, specs, rewrite.wanted, reverse=rewrite.reverse, layout=rewrite.layout
        )
        warn_of_guesses(program)
        outputs = outputs_of(index, program.outputs, states_of(to))
        sink = make_sink(to, outputs, settings)
    prefer, supplier = supplier_in_memory(comm)
    source = memory_source(shards)
    with torch.no_grad():
        check_copies(index, program, source, supplier, comm, stats=stats, prefer=prefer)
        export(
            index,
            program.outputs,
            outputs,
            source,
            supplier,
            sink,
            path,
            comm,
            stats=stats,
            prefer=prefer,
        )
