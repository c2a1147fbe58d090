# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Tensors whose memory is the allocator's do all that tensors do."""

import gc
import io
import os
import threading

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile

import vmm


def requested(allocator) -> int:
    return allocator.stats()["requested_bytes.all.current"]


def lies_in(allocator, tensor) -> bool:
    try:
        base, _, _ = allocator.block_of(tensor.data_ptr())
    except vmm.Invalid:
        return False
    return base == tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("count", [1, 63, 500, 1 << 20])
def test_memory_is_the_allocators_and_comes_back(hooked, count):
    before = requested(hooked)
    tensor = torch.arange(count, dtype=torch.float64)
    assert requested(hooked) - before == 8 * count
    assert lies_in(hooked, tensor)
    assert tensor.data_ptr() % 64 == 0
    assert tensor.sum().item() == count * (count - 1) / 2
    del tensor
    assert requested(hooked) == before


def test_no_bytes_is_no_allocation(hooked):
    before = hooked.stats()["allocation.all.allocated"]
    empty = torch.empty(0, 7)
    assert empty.data_ptr() == 0
    assert torch.cat([empty, empty]).shape == (0, 7)
    assert hooked.stats()["allocation.all.allocated"] == before
    empty.resize_(3, 7).fill_(2)
    assert lies_in(hooked, empty)
    assert empty.sum().item() == 42


def test_numpy_shares_both_ways(hooked):
    tensor = torch.arange(5)
    view = tensor.numpy()
    view[2] = 100
    assert tensor.tolist() == [0, 1, 100, 3, 4]
    del tensor
    assert view.tolist() == [0, 1, 100, 3, 4]  # the array keeps the memory
    array = np.arange(4.0)
    wrapped = torch.from_numpy(array)
    assert not lies_in(hooked, wrapped)
    wrapped += 1
    assert array.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_resizing_keeps_what_was_there(hooked):
    tensor = torch.arange(1000.0)
    tensor.resize_(1 << 20)
    assert torch.equal(tensor[:1000], torch.arange(1000.0))
    assert lies_in(hooked, tensor)
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(40)
    assert storage.nbytes() == 40


def test_saving_loading_and_copy_on_write(hooked):
    tensor = torch.randn(1000)
    file = io.BytesIO()
    torch.save({"weight": tensor}, file)
    file.seek(0)
    loaded = torch.load(file)["weight"]
    assert torch.equal(loaded, tensor)
    lazy = torch._lazy_clone(tensor)
    lazy[0] = 5
    assert tensor[0] != 5
    assert torch.equal(lazy[1:], tensor[1:])
    assert lies_in(hooked, lazy)


def test_shared_memory_leaves_the_allocator(hooked):
    before = requested(hooked)
    tensor = torch.arange(1 << 16)
    tensor.share_memory_()
    assert tensor.is_shared()
    assert requested(hooked) == before
    assert tensor.sum().item() == (1 << 16) * ((1 << 16) - 1) // 2


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_processes_exchange_tensors(hooked):
    fork = mp.get_context("fork")
    queue, back, done = fork.Queue(), fork.Queue(), fork.Queue()
    child = fork.Process(target=_echo, args=(queue, back, done))
    child.start()
    queue.put(torch.arange(10))
    doubled, ordinary = back.get(timeout=60)
    assert doubled.tolist() == list(range(0, 20, 2))
    assert ordinary
    done.put(True)
    child.join(60)
    assert child.exitcode == 0
    assert lies_in(hooked, torch.ones(3))


def _echo(queue, back, done):
    torch.set_num_threads(1)
    back.put((queue.get() * 2, vmm.enabled() is None))
    done.get(timeout=60)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_reads_what_it_inherited_and_frees_nothing_of_it(hooked):
    inherited = torch.arange(1000)
    before = requested(hooked)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            ok = inherited.sum().item() == 499500 and vmm.enabled() is None
            inherited.zero_()  # which the parent must not see
            ok = ok and inherited.sum().item() == 0
            del inherited
            gc.collect()
            own = torch.ones(1 << 20)
            storage = torch.arange(3).untyped_storage()
            storage.resize_(1 << 16)
            code = 0 if ok and own.sum().item() == 1 << 20 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert requested(hooked) == before
    assert inherited.sum().item() == 499500


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_may_enable_an_allocator_of_its_own(hooked):
    inherited = torch.ones(10)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            own = vmm.enable(device="cpu")
            tensor = torch.ones(1000)
            inside = lies_in(own, tensor)
            del tensor, inherited
            code = 0 if inside and requested(own) == 0 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert inherited.sum().item() == 10


def test_threads_allocate_and_free_for_one_another(hooked):
    before = requested(hooked)
    slots: list[list[torch.Tensor]] = [[] for _ in range(4)]

    def work(number):
        source = torch.Generator().manual_seed(number)
        for _ in range(100):
            size = int(torch.randint(1, 100_000, (), generator=source))
            slots[(number + 1) % 4].append(torch.full((size,), float(number)))
            mine = slots[number]
            if len(mine) > 3:
                tensor = mine.pop(0)
                assert (tensor == tensor[0]).all()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((tensor == tensor[0]).all() for row in slots for tensor in row)
    slots.clear()
    gc.collect()
    assert requested(hooked) == before


def test_the_profiler_sees_the_same_bytes_as_without(hooked):
    def bytes_seen():
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            kept = torch.ones(1000) + torch.ones(1000)
            del kept
        rows = seen.profiler.kineto_results.events()
        return [row.nbytes() for row in rows if row.name() == "[memory]"]

    with_hook = bytes_seen()
    vmm.disable()
    assert with_hook == bytes_seen()
    assert sorted(with_hook) == [-4000] * 3 + [4000] * 3


def test_too_much_is_an_out_of_memory_error_that_says_who_holds_what(hooked):
    with pytest.raises(
        torch.OutOfMemoryError, match=r"out of memory for 4\.00 TiB.*live"
    ) as caught:
        torch.empty(1 << 42, dtype=torch.uint8)
    assert isinstance(caught.value, RuntimeError)
    assert torch.ones(10).sum().item() == 10


def test_callbacks_free_memory_for_a_request_that_does_not_fit(hooked):
    hooked.set_limit(64 << 20)
    cache = [torch.empty(40 << 20, dtype=torch.uint8)]
    asked = []

    @vmm.on_oom
    def drop(device, nbytes):
        asked.append((device, nbytes))
        freed = bool(cache)
        cache.clear()
        return freed

    big = torch.empty(50 << 20, dtype=torch.uint8)
    assert asked == [(0, 50 << 20)]
    assert lies_in(hooked, big)
    vmm.remove_on_oom(drop)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(50 << 20, dtype=torch.uint8)
    assert len(asked) == 1


def test_tensors_from_before_and_after_keep_their_memory():
    before = torch.arange(1000)
    allocator = vmm.enable(device="cpu", check=2)
    during = torch.arange(2000)
    vmm.disable()
    after = torch.arange(3000)
    assert not lies_in(allocator, before)
    assert lies_in(allocator, during)
    assert not lies_in(allocator, after)
    assert during.sum().item() == 1999000
    during.resize_(10_000)  # by the storage's allocator, which serves nobody now
    assert not lies_in(allocator, during)
    assert requested(allocator) == 0
    assert allocator.stats()["reserved_bytes.all.current"] == 0
    second = vmm.enable(device="cpu", check=2)
    assert lies_in(second, torch.arange(5))
    vmm.disable()
    assert (before.sum() + after.sum()).item() == 499500 + 4498500


def test_small_tensors_can_stay_with_torch():
    allocator = vmm.enable(device="cpu", cpu_min=4096)
    try:
        assert not lies_in(allocator, torch.empty(4095, dtype=torch.uint8))
        assert lies_in(allocator, torch.empty(4096, dtype=torch.uint8))
    finally:
        vmm.disable()


def test_compiled_functions_run(hooked):
    compiled = torch.compile(lambda x: (x @ x.T).relu().sum(), backend="aot_eager")
    x = torch.randn(50, 20)
    assert torch.equal(compiled(x), (x @ x.T).relu().sum())
