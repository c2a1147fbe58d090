# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""torch reads what our writer of distributed checkpoints writes."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from flexckpt.errors import CheckpointError
from flexckpt.io.dcp import read_index
from flexckpt.io.dcp_writer import write_metadata, write_rank_file
from flexckpt.io.torch_archive import around
from flexckpt.io.torch_file import materialize, read_torch_file
from tests.flexckpt.io.dcp_jobs import globals_of_the_test, load_with_torch, write_ours
from tests.flexckpt.io.test_torch_file import bits
from tests.flexckpt.io.whole import whole
from tests.flexckpt.processes import run_ranks

# torch warns of every save and load in a single process.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_archive_is_what_torch_reads(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    head, tail = around(dtype, shape)
    path = tmp_path / "tensor.pt"
    path.write_bytes(head + bits(tensor) + tail)
    loaded = torch.load(path, weights_only=True)
    ours = materialize(read_torch_file(path), path)
    for found in (loaded, ours):
        assert (found.dtype, found.shape, bits(found)) == (dtype, tensor.shape, bits(tensor))


def test_archive_of_more_than_4_gib(tmp_path: Path) -> None:
    shape = (2**30 + 3, 3)  # 12 GiB, of which all but the end is a hole in the file
    head, tail = around(torch.float32, shape)
    path = tmp_path / "big.pt"
    with path.open("wb") as file:
        file.write(head)
        file.seek(shape[0] * shape[1] * 4 - 4, 1)
        file.write(bits(torch.tensor([7.0])) + tail)
    loaded = torch.load(path, mmap=True, weights_only=True)
    assert loaded.shape == shape
    assert (loaded[0, 0], loaded[-1, -1]) == (0, 7)
    found = read_torch_file(path)
    assert (found.shape, found.position) == (shape, len(head))


@pytest.mark.dist
@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_torch_loads_what_we_write(tmp_path: Path, writers: int, readers: int) -> None:
    run_ranks(write_ours, writers, tmp_path)
    want = globals_of_the_test()
    for found in run_ranks(load_with_torch, readers, tmp_path):
        assert found.keys() == want.keys()
        for name, tensor in want.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor), name


@pytest.mark.dist
def test_we_read_what_we_write(tmp_path: Path) -> None:
    run_ranks(write_ours, 2, tmp_path)
    index = read_index(tmp_path)
    for name, tensor in globals_of_the_test().items():
        assert torch.equal(whole(index, name), tensor), name
    assert index.extra == {"step": 7}
    assert len(index.entries["plain", "weight"].shards) == 1  # replicas are listed once


def test_states_load_without_a_process_group(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(3, 2), "state.w.exp_avg": torch.randn(3, 2)}
    write_metadata(
        tmp_path,
        write_rank_file(tmp_path, 0, [(n, t.shape, (0, 0), t) for n, t in tensors.items()]),
    )
    found = {name: torch.zeros(3, 2) for name in tensors}
    dcp.load(found, checkpoint_id=tmp_path, no_dist=True)
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
    dcp_to_torch_save(tmp_path, tmp_path / "all.pt")
    assert torch.load(tmp_path / "all.pt").keys() == tensors.keys()
    assert set(read_index(tmp_path).entries) == {("w", "weight"), ("w", "exp_avg")}


def test_views_are_written_without_the_rest_of_their_storage(tmp_path: Path) -> None:
    base = torch.arange(1000.0).reshape(10, 100)
    shards = [("a", (1, 5), (0, 0), base[3:4, 5:10]), ("b", (4, 10), (0, 0), base[:, 7:11].t())]
    write_metadata(tmp_path, write_rank_file(tmp_path, 0, shards))
    index = read_index(tmp_path)
    assert torch.equal(whole(index, "a"), base[3:4, 5:10])
    assert torch.equal(whole(index, "b"), base[:, 7:11].t())
    assert (tmp_path / "__0_0.distcp").stat().st_size < 2500


def test_lazily_conjugated_and_negated_tensors_are_written_as_they_look(tmp_path: Path) -> None:
    base = torch.randn(3, dtype=torch.complex64)
    shards = [("conj", (3,), (0,), base.conj()), ("neg", (3,), (0,), base.conj().imag)]
    write_metadata(tmp_path, write_rank_file(tmp_path, 0, shards))
    index = read_index(tmp_path)
    assert torch.equal(whole(index, "conj"), base.conj().resolve_conj())
    assert torch.equal(whole(index, "neg"), -base.imag)


def test_contradicting_ranks(tmp_path: Path) -> None:
    first = write_rank_file(tmp_path, 0, [("a", (4,), (0,), torch.ones(2))])
    for other in (torch.ones(2).double(), torch.ones(2, 1)):
        shape = (4, *other.shape[1:])
        second = write_rank_file(tmp_path, 1, [("a", shape, (2, 0)[: other.dim()], other)])
        with pytest.raises(CheckpointError) as caught:
            write_metadata(tmp_path, [*first, *second])
        assert caught.value.code == "CKP202"


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        write_rank_file(tmp_path / "missing", 0, [])
    assert caught.value.code == "CKP108"
    with pytest.raises(CheckpointError) as caught:
        write_metadata(tmp_path / "missing", [])
    assert caught.value.code == "CKP108"
