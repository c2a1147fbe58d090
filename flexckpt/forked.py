# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Shards written by a forked process: the system's copy-on-write takes the place of a copy.

The child sees memory as it was when it was forked, whatever training does to it meanwhile. It
reads dense CPU memory and writes files; it never enters torch's threads, CUDA or a process group.
"""

import gc
import os
import pickle
import select
import signal
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flexckpt.errors import CheckpointError
from flexckpt.io.shard_files import Holding, ShardFiles


class ForkedFiles:
    """A :class:`ShardFiles` whose writing a child does that was forked when this was made.

    Args:
        files: the layout.
        rank: of this process.
        shards: dense CPU tensors.
        timeout: seconds after which the child is given up; without end if None.

    Attributes:
        pid: of the child; -1 when it has ended.
    """

    def __init__(
        self, files: ShardFiles, rank: int, shards: Sequence[Holding], timeout: float | None
    ) -> None:
        self._files = files
        self._timeout = timeout
        child_in, self._to_child = os.pipe()
        self._from_child, child_out = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, whose locks the child might want. It wants none.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._to_child)
            os.close(self._from_child)
            _child(files, rank, shards, child_in, child_out)
        os.close(child_in)
        os.close(child_out)

    def write(self, folder: Path, rank: int, shards: Sequence[Holding]) -> Any:
        """Tell the child where, and wait for its records."""
        text = b""
        try:
            os.write(self._to_child, os.fsencode(folder))
            os.close(self._to_child)
            self._to_child = -1
            while True:
                if not select.select([self._from_child], [], [], self._timeout)[0]:
                    raise CheckpointError(
                        "CKP108", f"the writing process did not answer in {self._timeout} s"
                    )
                part = os.read(self._from_child, 1 << 20)
                if not part:
                    break
                text += part
        finally:
            self.end()
        if not text:
            raise CheckpointError("CKP108", "the writing process died")
        well, result = pickle.loads(text)  # from our own child
        if not well:
            raise result
        return result

    def finish(self, folder: Path, records: Sequence[Any]) -> None:
        self._files.finish(folder, records)

    def end(self) -> None:
        """Let go of the child, which is killed if it still works."""
        if self.pid < 0:
            return
        for fd in (self._to_child, self._from_child):
            if fd >= 0:
                os.close(fd)
        done, _ = os.waitpid(self.pid, os.WNOHANG)
        if not done:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.pid = -1


def _child(
    files: ShardFiles, rank: int, shards: Sequence[Holding], source: int, result: int
) -> None:
    """What the child does; it never returns, and runs no code at its exit."""
    try:
        gc.disable()
        folder = os.fsdecode(b"".join(iter(lambda: os.read(source, 4096), b"")))
        if folder:  # else the save failed before it began
            try:
                text = pickle.dumps((True, files.write(Path(folder), rank, shards)))
            except Exception as error:
                text = pickle.dumps((False, error))
            while text:
                text = text[os.write(result, text) :]
    finally:
        os._exit(0)
