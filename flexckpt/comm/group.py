# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A group of processes: objects for metadata, CPU tensors for data, failures that all learn of."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import xxhash

from flexckpt.errors import FlexckptError, TransferError

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
_AGREED = "_flexckpt_agreed"


class Comm:
    """The processes that save or load together; one process alone needs no torch.distributed.

    Args:
        group: a process group; None for all processes, or for one where torch.distributed is not
            used.
        timeout: seconds that a rank waits for another; the group's own limit if None.
        separate: use a group that nothing else uses, as a thread needs that works beside training.
    """

    def __init__(
        self,
        group: "dist.ProcessGroup | None" = None,
        timeout: float | None = None,
        *,
        separate: bool = False,
    ) -> None:
        self.group: dist.ProcessGroup | None = None
        self.rank, self.size = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.rank = dist.get_rank(group)
            if self.rank < 0:
                raise FlexckptError("ARG101", "this process is not one of the ranks of the group")
            with self._waiting():
                self.group = _cpu_group(group, timeout, separate)
            self.rank = dist.get_rank(self.group)
            self.size = dist.get_world_size(self.group)
        self._node: list[int] | None = None

    def global_rank(self, rank: int) -> int:
        """The rank in the whole job of a rank of this group."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def gather(self, value: T) -> list[T]:
        """The value of every rank, on every rank."""
        if self.size == 1:
            return [value]
        out: list[Any] = [None] * self.size
        with self._waiting():
            dist.all_gather_object(out, value, group=self.group)
        return out

    def broadcast(self, value: T | None, root: int = 0) -> T:
        """The value of ``root``, on every rank."""
        box = [value]
        if self.size > 1:
            with self._waiting():
                dist.broadcast_object_list(box, src=self.global_rank(root), group=self.group)
        return box[0]  # type: ignore[return-value]

    def same(self, *arguments: object) -> None:
        """Raise NET102 on every rank unless all have the same arguments, as their repr tells."""
        digest = xxhash.xxh3_64_intdigest(repr(arguments).encode()) >> 1
        high, low = self._largest(digest, -digest)
        if high != -low:
            what = "the ranks were called with different arguments"
            raise _known(TransferError("NET102", what))

    def agree(self, error: BaseException | None, what: str) -> None:
        """Raise on every rank if any rank has an error: its own there, NET101 elsewhere."""
        if not self._largest(error is not None)[0]:
            return
        texts = self.gather(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise _known(error)
        for rank, text in enumerate(texts):
            if text is not None:
                raise _known(TransferError("NET101", f"rank {rank} failed while {what}: {text}"))

    def _largest(self, *values: int) -> list[int]:
        """The largest of each value on all ranks; far quicker than to gather objects."""
        if self.size == 1:
            return [int(v) for v in values]
        box = torch.tensor(values, dtype=torch.int64)
        with self._waiting():
            dist.all_reduce(box, dist.ReduceOp.MAX, group=self.group)
        out: list[int] = box.tolist()
        return out

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """A step that no rank leaves by itself: an error on one rank ends it on all."""
        error: BaseException | None = None
        try:
            yield
        except Exception as caught:  # whatever it is, the other ranks wait at the end of this step
            if _AGREED in caught.__dict__:
                raise  # the connection is gone, or all ranks know of it already
            error = caught
        self.agree(error, what)

    def node(self) -> list[int]:
        """The ranks on this machine, in ascending order."""
        if self._node is None:
            here = socket.gethostname(), _boot_id()
            self._node = [r for r, there in enumerate(self.gather(here)) if there == here]
        return self._node

    def exchange(
        self,
        sends: Sequence[tuple[int, torch.Tensor]],
        receives: Sequence[tuple[int, torch.Tensor]],
    ) -> None:
        """Send and receive dense CPU tensors ``(peer, tensor)``, in the order of the peers."""
        with self._waiting():
            pending = [
                dist.irecv(tensor, group=self.group, group_src=peer) for peer, tensor in receives
            ]
            pending += [
                dist.isend(tensor, group=self.group, group_dst=peer) for peer, tensor in sends
            ]
            for work in pending:
                if work is not None:
                    work.wait()

    def trade(self, values: Sequence[bytes]) -> list[bytes]:
        """Give every rank its bytes, and get those that every rank has for this one."""
        if self.size == 1:
            return list(values)
        sizes = torch.tensor(self.gather([len(v) for v in values]))[:, self.rank].tolist()
        boxes = [bytearray(n) for n in sizes]
        sends = [
            (peer, torch.frombuffer(bytearray(v), dtype=torch.uint8))
            for peer, v in enumerate(values)
            if v and peer != self.rank
        ]
        receives = [
            (peer, torch.frombuffer(box, dtype=torch.uint8))
            for peer, box in enumerate(boxes)
            if box and peer != self.rank
        ]
        self.exchange(sends, receives)
        out = [bytes(box) for box in boxes]
        out[self.rank] = values[self.rank]
        return out

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch.distributed has no class for it that gloo uses
            late = "imed out" in str(error) or "timeout" in str(error)
            code = "NET104" if late else "NET101"
            first = str(error).strip().splitlines()[0]
            lost = TransferError(code, f"rank {self.rank} lost another rank: {first}")
            raise _known(lost) from error


def unknown(error: E) -> E:
    """Take back that every rank knows of an error, because it is raised again at another time."""
    error.__dict__.pop(_AGREED, None)
    return error


def _known(error: E) -> E:
    """Mark an error that no rank needs to be told of: all know it, or the connection is gone."""
    error.__dict__[_AGREED] = True
    return error


_groups: dict[tuple[tuple[int, ...], float | None, bool], Any] = {}


def _cpu_group(
    group: "dist.ProcessGroup | None", timeout: float | None, separate: bool
) -> "dist.ProcessGroup":
    """The group itself if it moves CPU tensors in that time, else one of its ranks that does."""
    chosen = dist.group.WORLD if group is None else group
    assert chosen is not None
    backend = dist.get_backend_config(chosen)
    if timeout is None and not separate and "gloo" in str(backend):
        return chosen
    ranks = tuple(dist.get_process_group_ranks(chosen))
    found: dist.ProcessGroup | None = _groups.get((ranks, timeout, separate))
    if found is None or not _alive(found):
        limit = None if timeout is None else timedelta(seconds=timeout)
        # The name of a group that only some ranks make counts the groups that each has, which may
        # differ (pipeline stages; trainers and servers). One that all ranks make has a better name.
        some = len(ranks) < dist.get_world_size()
        found = dist.new_group(
            list(ranks), backend="gloo", timeout=limit, use_local_synchronization=some
        )
        _groups[(ranks, timeout, separate)] = found
    return found


def _alive(group: Any) -> bool:
    try:
        dist.get_rank(group)
    except (
        RuntimeError,
        ValueError,
        KeyError,
    ):  # made before the job was torn down and set up again
        return False
    return True


def _boot_id() -> str:
    """Tells machines of one name apart, as containers are."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() + str(os.stat("/").st_dev)
    except OSError:
        return ""
