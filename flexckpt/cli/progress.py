# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A progress bar of bytes on stderr, where somebody can see it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int, str], None]
"""Told ``(bytes_done, bytes_total, name)``."""


@contextmanager
def shown_progress(quiet: bool) -> Iterator[Report | None]:
    """What reports progress; None where nobody looks: ``quiet``, or stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name)

        yield report
