# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Who may enable what, and the sentences for those who may not; pools and pins."""

import pytest
import torch

import vmm


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"device": "tpu"}, "device: must be 'cuda' or 'cpu', but is 'tpu'"),
        ({"device": "cpu", "mode": "plugin"}, "mode: for cpu it must be one of .*'plugin'"),
        ({"device": "cpu", "cpu_min": -1}, "cpu_min: must be a number of bytes from 0, but is -1"),
        ({"device": "cuda", "cpu_min": 1}, "cpu_min: is for device='cpu'"),
        ({"device": "cpu", "driver": "null"}, "driver: the device decides; for cpu it is 'host'"),
        ({"device": "cpu", "no_such_key": 1}, "no key 'no_such_key'"),
        ({"device": "cpu", "page": 100}, "page must be .* but is '?100"),
    ],
)
def test_wrong_arguments_are_named_and_change_nothing(arguments, sentence):
    with pytest.raises(vmm.Invalid, match=sentence):
        vmm.enable(**arguments)
    assert vmm.enabled() is None


def test_settings_of_the_environment_yield_to_keywords(monkeypatch):
    monkeypatch.setenv("VMM_CONF", "limit:64MiB,check:2")
    assert vmm.enable(device="cpu").stats()["limit_bytes"] == 64 << 20
    vmm.disable()
    assert vmm.enable(device="cpu", limit="32MiB").stats()["limit_bytes"] == 32 << 20
    vmm.disable()
    monkeypatch.setenv("VMM_CONF", "driver:null")
    with pytest.raises(vmm.Invalid, match="driver: the device decides"):
        vmm.enable(device="cpu")


def test_one_at_a_time(hooked):
    with pytest.raises(vmm.Invalid, match="an allocator for cpu is enabled already"):
        vmm.enable(device="cpu")
    with pytest.raises(vmm.Invalid, match="an allocator for cpu is enabled already"):
        vmm.enable(device="cuda")
    assert vmm.enabled() is hooked
    with pytest.raises(vmm.Invalid, match=r"vmm\.disable"):
        hooked.close()
    vmm.disable()
    assert vmm.enabled() is None
    for act in (vmm.disable, vmm.stats, vmm.compact, vmm.step):
        with pytest.raises(vmm.Invalid, match=r"call vmm\.enable\(\) first"):
            act()


def test_a_pool_sleeps_and_wakes_with_its_content(hooked):
    with vmm.pool("weights") as number:
        weights = torch.arange(1 << 20)
        with vmm.pool("inner"):
            inner = torch.ones(1 << 18)
    outside = torch.ones(1 << 20)
    address = weights.data_ptr()
    pools = {block.address: (block.pool, block.tag) for block in hooked.blocks()}
    assert pools[address] == (number, "weights")
    assert pools[inner.data_ptr()] == (number + 1, "inner")
    assert pools[outside.data_ptr()] == (0, "")

    held = vmm.stats()["reserved_bytes.all.current"]
    given = vmm.sleep("weights", keep=True)
    assert given in (8 << 20, 10 << 20)  # a page more if something small lies there too
    assert vmm.stats()["reserved_bytes.all.current"] == held - given
    assert (inner.sum() + outside.sum()).item() == (1 << 18) + (1 << 20)
    with vmm.pool("weights"), pytest.raises(RuntimeError, match="sleep"):
        torch.ones(1 << 20)
    vmm.wake("weights")
    assert weights.data_ptr() == address
    assert torch.equal(weights, torch.arange(1 << 20))
    with pytest.raises(vmm.Invalid, match="no pool 'wieghts' on device 0; pools: inner, weights"):
        vmm.sleep("wieghts")
    with pytest.raises(vmm.Invalid, match="device: vmm serves cpu in this process"):
        vmm.sleep("weights", device="cuda:0")


def test_the_options_of_a_pool_are_those_of_its_first_use(hooked):
    with vmm.pool("small", cap=4 << 20):
        kept = torch.ones(1 << 19)
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(1 << 20)
    with vmm.pool("small"):  # by name alone
        pass
    with (
        pytest.raises(vmm.Invalid, match="'small' exists with cap and shared_pages"),
        vmm.pool("small", cap=1 << 20),
    ):
        pass
    with pytest.raises(vmm.Invalid, match="name: must be a text"), vmm.pool(""):
        pass
    assert kept.sum().item() == 1 << 19


def test_routes_end_with_their_block_also_after_an_error(hooked):
    with pytest.raises(KeyError), vmm.pool("weights"):
        raise KeyError
    tensor = torch.ones(1000)
    assert {block.address: block.pool for block in hooked.blocks()}[tensor.data_ptr()] == 0


def test_pins_keep_pages_that_would_otherwise_go(hooked):
    tensor = torch.empty(4 << 20, dtype=torch.uint8)
    vmm.pin(tensor[100:200], "ipc")  # a view pins the storage
    pinned = vmm.stats()["pages.pinned_ipc"]
    assert pinned in (2, 3)
    page = {slot.address: slot.page for slot in hooked.slots() if slot.pins["ipc"]}
    address, size = tensor.data_ptr(), tensor.untyped_storage().nbytes()
    del tensor
    vmm.trim()
    assert {slot.address: slot.page for slot in hooked.slots() if slot.pins["ipc"]} == page
    hooked.unpin(address, size, "ipc")
    assert vmm.stats()["pages.pinned_ipc"] == 0
    with pytest.raises(vmm.Invalid, match="reason: it must be one of ipc"):
        vmm.pin(torch.ones(5), "because")
    with pytest.raises(vmm.Invalid, match="tensor: it has no memory to pin"):
        vmm.pin(torch.empty(0))


def test_compacting_gathers_free_pages_and_moves_no_tensor(hooked):
    tensors = [torch.full((1 << 20,), float(i)) for i in range(16)]
    places = [tensor.data_ptr() for tensor in tensors]
    del tensors[::2]
    assert vmm.plan([30 << 20]) in ("fits", "fits_after_steal")
    held = vmm.stats()["reserved_bytes.all.current"]
    vmm.compact(24 << 20)
    assert vmm.stats()["reserved_bytes.all.current"] <= held
    big = torch.ones(6 << 20)
    assert vmm.stats()["reserved_bytes.all.current"] <= held
    assert [tensor.data_ptr() for tensor in tensors] == places[1::2]
    assert [tensor.mean().item() for tensor in tensors] == list(range(1, 16, 2))
    assert big.sum().item() == 6 << 20
