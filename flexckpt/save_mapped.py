# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Saving tensors that ranks hold together in another structure: put together, each on one rank."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from flexckpt.collect import specs_of
from flexckpt.comm.group import Comm
from flexckpt.execute import Stats
from flexckpt.export import export, outputs_of
from flexckpt.io.sinks import Output, Sink
from flexckpt.io.writers import states_of
from flexckpt.lang import compile_program
from flexckpt.memory_index import memory_index, memory_source, supplier_in_memory
from flexckpt.model import Shard


class Rewrite(NamedTuple):
    """A mapping as the user gave it."""

    aoa: str | Sequence[str]
    reverse: bool
    layout: Literal["paddle", "torch"]


def save_mapped(
    shards: Sequence[Shard],
    path: Path,
    rewrite: Rewrite,
    to: str,
    make_sink: Callable[[Sequence[Output]], Sink],
    comm: Comm,
    stats: Stats,
) -> None:
    """Write what the ranks hold, rewritten and unsharded."""
    index = memory_index(shards, comm)
    specs = specs_of(shards, comm)
    with comm.together("planning"):
        program = compile_program(
            rewrite.aoa, specs, None, reverse=rewrite.reverse, layout=rewrite.layout
        )
        outputs = outputs_of(index, program.outputs, states_of(to))
        sink = make_sink(outputs)
    prefer, supplier = supplier_in_memory(comm)
    with torch.no_grad():
        export(
            index,
            program.outputs,
            outputs,
            memory_source(shards),
            supplier,
            sink,
            path,
            comm,
            stats=stats,
            prefer=prefer,
        )
