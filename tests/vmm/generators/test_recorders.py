# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Recorders against programs whose allocations are known, and against each other."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from vmm.errors import Invalid
from vmm.sim.recorders import workloads
from vmm.sim.recorders.fake_tensor import FakeTensorRecorder
from vmm.sim.recorders.profiler import ProfilerRecorder, from_profile
from vmm.sim.trace import Trace

TINY = workloads.Scale(
    layers=2, hidden=64, heads=4, vocabulary=200, batch=2, lengths=(32, 17), experts=3, rank=4
)


def story(trace: Trace, least: int = 0) -> list[str]:
    """Events with their operators; allocations of scalars are left out."""
    tags, text = trace.header["tags"], []
    for op, size, tag in zip(trace.op, trace.bytes, trace.tag, strict=True):
        if op == ord("m"):
            text.append("step")
        elif op in b"af" and size >= least:
            text.append(f"{chr(op)} {size}" + (f" {tags[tag]}" if op == ord("a") else ""))
    return text


def program(step: workloads.Step) -> torch.Tensor:
    first = torch.empty(1000)
    second = first + first
    del first
    step()
    third = torch.ones(300, dtype=torch.float64)
    del third
    return second


def test_profiler_sees_a_known_program() -> None:
    unseen = torch.empty(700)
    with ProfilerRecorder():
        old = torch.empty(500)
    with ProfilerRecorder() as recorder:
        kept = program(recorder.step)
        del old, unseen
    assert story(recorder.trace()) == [
        "a 2000 existing",
        "a 4000 aten::empty",
        "a 4000 aten::add",
        "f 4000",
        "step",
        "a 2400 aten::empty",
        "f 2400",
        "f 2000",
    ]
    assert recorder.trace().extra["addr"][2] == kept.data_ptr()


def test_fake_tensors_of_a_known_program() -> None:
    with FakeTensorRecorder() as recorder:
        kept = program(recorder.step)
        view = kept[10:].view(-1)
        view.add_(1)
    assert story(recorder.trace()) == [
        "a 4000 aten::empty",
        "a 4000 aten::add",
        "f 4000",
        "step",
        "a 2400 aten::ones",
        "f 2400",
    ]
    assert recorder.trace().header["recorder fake_tensor"] == "program"


def test_fake_tensors_at_sizes_that_no_machine_has() -> None:
    with FakeTensorRecorder() as recorder:
        wide = nn.Linear(1 << 20, 1 << 20, bias=False)
        wide(torch.empty(8, 1 << 20)).sum().backward()
        assert wide.weight.grad is not None
    # The weight and its gradient, two of 4 TiB.
    assert recorder.trace().live().max() >= 8 << 40


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_fake_sizes_are_the_real_ones(name: str) -> None:
    """Same peak, scalars aside, and every large request of the one is one of the other."""
    fake = workloads.record(name, TINY)
    with ProfilerRecorder() as recorder:
        workloads.WORKLOADS[name](TINY, recorder.step)
    real = recorder.trace()
    assert fake.steps == real.steps == 2
    assert 0 <= int(real.live().max()) - int(fake.live().max()) <= 64
    sizes = [Counter(trace.bytes[trace.is_op("a")].tolist()) for trace in (fake, real)]
    weights = {size for size, count in sizes[1].items() if size >= 20_000}
    assert weights
    assert {size: sizes[0][size] for size in weights} == {size: sizes[1][size] for size in weights}


def test_recomputation_at_real_sizes() -> None:
    peaks = {
        name: int(workloads.record(name).live().max()) / 2**30 for name in ("varlen", "recompute")
    }
    # 4 layers of width 1024, lengths to 2048 with logits in float32.
    assert {name: round(peak, 2) for name, peak in peaks.items()} == {
        "varlen": 5.60,
        "recompute": 3.97,
    }


def test_refusals() -> None:
    fake, real = FakeTensorRecorder(), ProfilerRecorder()
    for recorder in (fake, real):
        with pytest.raises(Invalid, match="the recording is not over"):
            recorder.trace()
    with fake, real:
        torch.empty(3)
    for recorder in (fake, real):
        with pytest.raises(Invalid, match="records once"), recorder:
            pass
    with pytest.raises(Invalid, match="there is no program 'gan'; known are dense, varlen"):
        workloads.record("gan")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.empty(3)
    with pytest.raises(Invalid, match="no allocation on cpu; it takes profile_memory=True"):
        from_profile(profile)
