# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.save: write what all ranks hold as one checkpoint, which appears in one step."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flexckpt.api.like import Like, specs_like
from flexckpt.collect import State, lonely_states, mesh_keys, shards_in
from flexckpt.comm.group import Comm
from flexckpt.errors import FlexckptError, LayoutError
from flexckpt.execute import Stats
from flexckpt.forked import ForkedFiles
from flexckpt.io.shard_files import DcpShards, NativeShards, ShardFiles
from flexckpt.io.writers import Settings, check_layout, states_of
from flexckpt.memory_index import held
from flexckpt.model import Shard
from flexckpt.plan.ownership import Held, assign_writers
from flexckpt.save_mapped import Rewrite, save_mapped
from flexckpt.saving import Saving
from flexckpt.shared_folder import shared_folder
from flexckpt.snapshot import snapshot
from flexckpt.states import WEIGHT, split_name

if TYPE_CHECKING:
    import torch.distributed as dist

_last: list[Saving] = []  # the save that may still be going on in the background


def save(
    state: State,
    path: str | os.PathLike[str],
    *,
    aoa: str | Sequence[str] | None = None,
    reverse: bool = False,
    to: str = "flexckpt",
    extra: Mapping[str, Any] | None = None,
    shard_size: int | str = "5GB",
    async_: bool | Literal["fork"] = False,
    redundancy: bool = False,
    like: Like = None,
    checksums: bool = True,
    layout: Literal["paddle", "torch"] = "paddle",
    group: "dist.ProcessGroup | None" = None,
    timeout: float | None = None,
) -> Saving:
    """Write a checkpoint of what all ranks of the group hold together.

    Nothing is at ``path`` until all of it is on the disk; what stood there before stays until then.

    Args:
        state: as in :func:`flexckpt.load`: tensors, DTensors, shards by name.
        path: the folder of the checkpoint. An empty folder, or a checkpoint of a layout that
            flexckpt writes, is replaced; anything else there is an error.
        aoa: a mapping from the names and shapes of ``state`` to those of the checkpoint.
        reverse: ``aoa`` describes the opposite direction (it is the mapping that loads); its
            inverse is used.
        to: the layout: "flexckpt", "hf", "dcp" or "universal". Shards are stored as they are in
            "flexckpt" and "dcp" without a mapping; else tensors are put together, each on one rank.
        extra: what to keep beside the tensors, of JSON types; comes back as ``LoadReport.extra``.
        shard_size: bytes of a file at most, for "hf".
        async_: copy to host memory, then write in the background. A save that is still going on is
            waited for first, and its error raised. "fork" lets a forked process write what it sees
            by the system's copy-on-write, so that training hardly waits; for CPU tensors that are
            stored as they are ("flexckpt" and "dcp" without a mapping).
        redundancy: every rank writes all that it holds, so that each finds its own on its own disk.
        like: a checkpoint, or specs by key, with the names and shapes that are wanted. It makes an
            inverse exact where the text alone does not tell the lengths of parts.
        checksums: keep a checksum of every shard ("flexckpt" only).
        layout: see :func:`flexckpt.load`.
        group: the ranks that save together; all if None.
        timeout: seconds that a rank waits for another.

    Returns:
        A handle; ``wait()`` returns when the checkpoint is committed, or raises.

    Raises:
        LayoutError: a value is not a tensor, or the ranks' shards are not whole tensors.
        CheckpointError: CKP108 if the checkpoint cannot be written.
        TransferError: another rank failed, or was called with other arguments.
    """
    check_layout(to)
    comm = Comm(group, timeout, separate=bool(async_))
    saving = Saving(Stats())
    with comm.together("finishing the save before"):
        while _last:
            _last.pop().wait()
    comm.same(aoa, reverse, to, shard_size, redundancy, layout)
    with comm.together("looking at the state"):
        shards, placed = shards_in(state), mesh_keys(state)
        kept, wanted = plain(extra), specs_like(like)
        lonely = lonely_states(state) if states_of(to) == (WEIGHT,) else []
        if lonely:
            key, kind = split_name(lonely[0])
            raise FlexckptError(
                "ARG101",
                f"{lonely[0]!r} is read as {kind!r} of {key!r}, but {key!r} has no weight, and "
                f"to={to!r} keeps weights only",
            )
    where = Path(path).absolute()
    anywhere = {key for keys in comm.gather(placed) for key in keys}
    files: ShardFiles = NativeShards(kept, checksums=checksums, by_mesh=anywhere)
    if to == "dcp":
        files = DcpShards(kept)
    # Flat ranges are for flexckpt's own files only: elsewhere tensors are put together first.
    flat = any(comm.gather(any(s.flat_range is not None for s in shards)))
    mapped = aoa is not None or to not in ("flexckpt", "dcp") or (to == "dcp" and flat)
    if not mapped:
        shards = _shards_to_write(shards, comm, redundancy)
    ties: dict[str, str] = {}
    if to == "hf" and aoa is None:
        ties = _ties(shards, comm)
        shards = [s for s in shards if s.key not in ties]
    forked: ForkedFiles | None = None
    if async_:
        with comm.together("copying the tensors"):
            if async_ == "fork":
                shards = _forkable(shards, mapped)
                holdings = [(held(s), s.tensor) for s in shards]
                files = forked = ForkedFiles(files, comm.rank, holdings, timeout)
            else:
                shards = snapshot(shards)

    def steps() -> None:
        if mapped:
            mapping = Rewrite(aoa or [], reverse, layout, wanted, placed)
            settings = Settings(kept, shard_size, checksums, ties)
            save_mapped(shards, where, mapping, to, settings, comm, saving.stats)
            return
        try:
            _write(shards, where, files, comm, saving.stats)
        finally:
            if forked is not None:
                forked.end()

    saving.run(steps, in_background=bool(async_))
    if async_:
        _last.append(saving)
    return saving


def plain(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the user wants kept, as it comes back from JSON.

    Raises:
        LayoutError: LAY104 if it does not come back as it is.
    """
    kept = dict(extra or {})
    try:
        back = json.loads(json.dumps(kept))
    except (TypeError, ValueError, RecursionError) as error:
        raise LayoutError("LAY104", f"extra must be of JSON types ({error})") from None
    if back != kept:
        raise LayoutError("LAY104", "extra must be of JSON types with strings as names")
    return dict(back)  # a copy, which later changes do not reach


def _forkable(shards: Sequence[Shard], mapped: bool) -> list[Shard]:
    """The shards, dense, for a child that only reads memory."""
    if mapped or any(s.tensor.device.type != "cpu" for s in shards):
        raise FlexckptError(
            "ARG101", 'async_="fork" is for CPU tensors that are stored as they are; use True'
        )
    return [replace(s, tensor=s.tensor.resolve_conj().resolve_neg().contiguous()) for s in shards]


def _ties(shards: Sequence[Shard], comm: Comm) -> dict[str, str]:
    """Names whose tensor is that of another name on all ranks that hold it, and that name."""
    owners: dict[object, str] = {}
    ties: dict[str, str | None] = {}
    for s in shards:
        t = s.tensor
        place = t.data_ptr(), t.shape, t.stride(), t.dtype, s.global_shape, s.offset, s.state
        first = owners.setdefault(place, s.key) if t.numel() else s.key
        if ties.setdefault(s.key, first) != first or first == s.key:
            ties[s.key] = None
    everyone = comm.gather(ties)
    out: dict[str, str] = {}
    for key in dict.fromkeys(key for mine in everyone for key in mine):
        found = {mine[key] for mine in everyone if key in mine}
        first_of_all = found.pop() if len(found) == 1 else None
        if first_of_all is not None:
            out[key] = first_of_all
    return out


def _shards_to_write(shards: Sequence[Shard], comm: Comm, redundancy: bool) -> list[Shard]:
    """The shards that this rank writes: of replicas one is written, or with redundancy all."""
    mine: dict[Held, Shard] = {}
    for shard in shards:
        mine.setdefault(held(shard), shard)
    writers = assign_writers(comm.gather(list(mine)))
    return [s for h, s in mine.items() if redundancy or writers[h] == comm.rank]


def _write(
    shards: Sequence[Shard], path: Path, files: ShardFiles, comm: Comm, stats: Stats
) -> None:
    holdings = [(held(s), s.tensor) for s in shards]
    with shared_folder(path, comm) as folder:
        records = None
        with comm.together("writing tensors"):
            records = files.write(folder.partial, comm.rank, holdings)
            stats.written += sum(h.nbytes for h, _ in holdings)
        everyone = comm.gather(records)
        with comm.together("writing the index"):
            if folder.leads:
                files.finish(folder.partial, everyone)
