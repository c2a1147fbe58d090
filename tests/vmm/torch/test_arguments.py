# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Arguments that would become other numbers, or sentences of ctypes, in C."""

import pytest
import torch

import vmm


def _make_pool(**options):
    with vmm.pool("never made", **options):
        raise AssertionError("the pool was made")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: _make_pool(cap=-1), "cap: must be a number of bytes from 0, but is -1"),
        (lambda: _make_pool(cap="1MiB"), "cap: must be a number of bytes from 0, but is '1MiB'"),
        (lambda: _make_pool(cap=1.5), "cap: must be .* but is 1.5"),
        (lambda: _make_pool(cap=True), "cap: must be .* but is True"),
        (lambda: _make_pool(shared_pages="yes"), "shared_pages: must be True or False"),
        (lambda: vmm.compact(-1), "target: must be .* but is -1"),
        (lambda: vmm.compact("1MiB"), "target: must be .* but is '1MiB'"),
        (lambda: vmm.trim(-5), "nbytes: must be .* but is -5"),
        (lambda: vmm.trim(2**64), "nbytes: must be .* but is 18446744073709551616"),
        (lambda: vmm.plan(1), "sizes: must be a list of numbers of bytes, but is 1"),
        (lambda: vmm.plan("12"), "sizes: must be a list of numbers of bytes, but is '12'"),
        (lambda: vmm.plan([1, "2"]), "sizes: must be a number of bytes from 0, but is '2'"),
        (lambda: vmm.prefetch([1e9]), "sizes: must be .* but is 1000000000.0"),
        (lambda: vmm.on_oom(3), "callback: must be a function"),
        (lambda: vmm.pin([1]), "tensor: must be a tensor with one storage, but is a list"),
        (lambda: vmm.pin(torch.ones(2).to_sparse()), "tensor: must be a tensor with one storage"),
    ],
)
def test_what_is_wrong_is_named(hooked, call, sentence):
    with pytest.raises(vmm.Invalid, match=sentence):
        call()
    with pytest.raises(vmm.Invalid, match="pools: none"):
        vmm.sleep("never made")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda", 0)])
def test_what_is_seen_is_of_the_device_that_was_asked_for(hooked, device):
    kept = torch.ones(1000)
    for look in (vmm.memory_stats, vmm.summary, vmm.fragmentation, vmm.blocks, vmm.page_map):
        with pytest.raises(vmm.Invalid, match="device: vmm serves cpu in this process"):
            look(device)
    with pytest.raises(vmm.Invalid, match="device: vmm serves cpu in this process"):
        vmm.region("r", device=device)
    for same in (None, 0, "cpu", torch.device("cpu")):
        assert vmm.memory_stats(same)["requested_bytes.all.current"] == kept.nbytes


def test_a_recording_prints_in_one_line(hooked):
    with vmm.record() as recorder:
        kept = torch.ones(1000)
    assert repr(recorder.recording).startswith("Recording(devices=[0], events=")
    assert repr(recorder.recording.trace).startswith("Trace(source='vmm.record', events=")
    assert len(repr(recorder.recording)) < 80 < kept.nbytes
