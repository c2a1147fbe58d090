# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A plan as text is the same plan, and moves the same values."""

from pathlib import Path

import pytest
import torch

import flexckpt
from flexckpt import FlexckptError, Shard
from flexckpt.collect import targets_of
from flexckpt.execute import FileSource, Stats, landing, run_copies, settle_scalars
from flexckpt.io.detect import read_index
from flexckpt.io.ranged import FilePool
from flexckpt.lang import compile_program
from flexckpt.plan.planner import make_plan
from flexckpt.plan.serialize import plan_from_json, plan_to_json
from flexckpt.snapshot import release_memory, snapshot


def test_a_plan_that_was_written_down(tmp_path: Path) -> None:
    a, b = torch.arange(6.0).view(2, 3), torch.arange(3.0).view(1, 3) + 100
    state = {"a": a, "b": b, "a@exp_avg": a + 10, "b@exp_avg": b + 10}
    state |= {"a@step": torch.tensor(7.0), "b@step": torch.tensor(7.0)}
    flexckpt.save(state, tmp_path / "c")
    index = read_index(tmp_path / "c")
    aoa = "a, b -> t, axis=0\nt -> p, pad=4, axis=0\np -> c, dtype='bfloat16'"
    program = compile_program(aoa, index.specs(), None)
    shards = [
        Shard("c", torch.zeros(4, 3, dtype=torch.bfloat16), (4, 3), (0, 0)),
        Shard("c", torch.zeros(7), (4, 3), (0, 0), (4, 3), (2, 9), "exp_avg"),
        Shard("c", torch.zeros(()), (), (), state="step"),
    ]
    plan = make_plan(index, targets_of(shards), program.outputs)
    again = plan_from_json(plan_to_json(plan))
    assert again == plan
    assert any(copy.shard < 0 for copy in again.copies)  # a constant
    assert any(copy.casts for copy in again.copies)
    assert again.scalars == {2: 2}
    tensors = {n: shard.tensor for n, shard in enumerate(shards)}
    landed = landing(again, tensors, tensors)
    with FilePool(index.files, index.marks) as files:
        run_copies(again, again.copies, landed, FileSource(files), Stats())
    settle_scalars(again, landed, tensors)
    whole = torch.cat([a, b, torch.zeros(1, 3)])
    moments = torch.cat([a + 10, b + 10, torch.zeros(1, 3)])
    assert torch.equal(tensors[0], whole.bfloat16())
    assert torch.equal(tensors[1], moments.flatten()[2:9])
    assert tensors[2] == 7


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 9}', '{"version":1,"names":3}'])
def test_a_text_that_is_no_plan(text: str) -> None:
    with pytest.raises(FlexckptError, match="ARG101"):
        plan_from_json(text)


def test_snapshots_reuse_their_memory_until_it_is_released() -> None:
    shard = Shard("w", torch.arange(6.0).view(2, 3).t(), (3, 2), (0, 0))
    first = snapshot([shard])[0]
    assert torch.equal(first.tensor, shard.tensor)
    place = first.tensor.data_ptr()
    assert snapshot([shard])[0].tensor.data_ptr() == place
    release_memory()
    assert torch.equal(snapshot([shard])[0].tensor, shard.tensor)
