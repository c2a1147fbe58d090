# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The layouts that can be written, as a table."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flexckpt.errors import FlexckptError
from flexckpt.io.sinks import DcpSink, HuggingFaceSink, NativeSink, Output, Sink
from flexckpt.io.universal_writer import UniversalSink
from flexckpt.states import WEIGHT


class Settings(NamedTuple):
    """What a user may say about the files."""

    extra: Mapping[str, Any]
    shard_size: int | str
    checksums: bool
    aliases: Mapping[str, str] = {}  # further names of tensors, which are written once


class Writer(NamedTuple):
    """A layout: how its sink is made, and which states it keeps (None for all)."""

    make: Callable[[Sequence[Output], Settings], Sink]
    states: tuple[str, ...] | None


WRITERS: dict[str, Writer] = {
    "flexckpt": Writer(lambda outputs, s: NativeSink(s.extra, checksums=s.checksums), None),
    "dcp": Writer(lambda outputs, s: DcpSink(s.extra), None),
    "universal": Writer(lambda outputs, s: UniversalSink(outputs, s.extra), None),
    "hf": Writer(lambda outputs, s: HuggingFaceSink(outputs, s.shard_size, s.aliases), (WEIGHT,)),
}


def check_layout(to: str) -> None:
    """Raise unless a layout can be written."""
    if to not in WRITERS:
        raise FlexckptError("ARG101", f"to must be one of {', '.join(WRITERS)}, not {to!r}")


def states_of(to: str) -> tuple[str, ...] | None:
    """The states that a layout keeps; None for all."""
    return WRITERS[to].states


def make_sink(to: str, outputs: Sequence[Output], settings: Settings) -> Sink:
    """The sink of a layout for given outputs."""
    return WRITERS[to].make(outputs, settings)
