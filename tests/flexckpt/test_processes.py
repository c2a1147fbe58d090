# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The processes of the distributed tests: groups of any size, and every way a rank can fail."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.flexckpt.processes import RankError, run_ranks, run_to_outcomes

pytestmark = pytest.mark.dist


def total(addend: int) -> tuple[int, int, torch.Tensor]:
    value = torch.tensor([dist.get_rank() + addend])
    dist.all_reduce(value)
    return os.getpid(), dist.get_world_size(), value


def fail_on(rank: int, how: str) -> int:
    if dist.get_rank() == rank:
        if how == "raise":
            raise ValueError(f"rank {rank} does not like it")
        if how == "die":
            os._exit(3)
        time.sleep(600)
    return dist.get_rank()


def wait_for_all() -> None:
    if dist.get_rank() == 0:
        raise ValueError("the one that is missing")
    dist.barrier()


def test_processes_are_kept_between_groups_of_different_size() -> None:
    first = run_ranks(total, 2, 10)
    second = run_ranks(total, 3, 1)
    assert [value.item() for _, _, value in first] == [21, 21]
    assert [(size, value.item()) for _, size, value in second] == [(3, 6)] * 3
    assert [pid for pid, _, _ in second[:2]] == [pid for pid, _, _ in first]


def test_an_error_carries_the_traceback_of_its_rank() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 1: Traceback.*fail_on.*does not like it"):
        run_ranks(fail_on, 2, 1, "raise")
    assert run_ranks(fail_on, 2, -1, "") == [0, 1]


def test_a_dead_process_is_noticed_and_replaced() -> None:
    outcomes = run_to_outcomes(fail_on, 2, 0, "die")
    assert (outcomes[0].died, outcomes[0].error) == (True, "died with exit code 3")
    assert (outcomes[1].died, outcomes[1].value) == (False, 1)
    assert run_ranks(fail_on, 2, -1, "") == [0, 1]


def test_a_hanging_rank_is_stopped_and_tells_where() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 1: still busy.*in fail_on"):
        run_ranks(fail_on, 2, 1, "hang", timeout=5)
    assert run_ranks(fail_on, 2, -1, "") == [0, 1]


def test_those_who_wait_for_a_failed_rank_fail_too() -> None:
    failed, waiting = run_to_outcomes(wait_for_all, 2)
    assert "the one that is missing" in str(failed.error)
    assert "in wait_for_all" in str(waiting.error)
    assert not waiting.died
