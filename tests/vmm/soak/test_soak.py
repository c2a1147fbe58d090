# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The soak for some seconds, under every failure mode, and what it notices."""

from __future__ import annotations

import ctypes

import pytest

from benchmarks.vmm.soak import play
from benchmarks.vmm.soaking import stamps
from benchmarks.vmm.soaking.failures import MODES
from benchmarks.vmm.soaking.player import Player
from benchmarks.vmm.soaking.streams import Streams, ViolationError
from benchmarks.vmm.soaking.threads import play_threads
from vmm.allocator import Allocator

KIB, MIB = 1 << 10, 1 << 20
PAGE = 64 * KIB


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_violated(mode: str) -> None:
    for seed in (1, 3):
        player, violated = play(mode, seed, 250)
        assert violated == "", f"mode {mode!r}, seed {seed}"
        assert player.streams.checked > 30


# Rounds in which a mistake of the allocator once showed.
FOUND = [("none", 5), ("none", 11), ("event_create", 3084)]


@pytest.mark.parametrize(("mode", "seed"), FOUND)
def test_what_was_found_stays_mended(mode: str, seed: int) -> None:
    _, violated = play(mode, seed, 250)
    assert violated == ""


def test_threads_keep_their_numbers() -> None:
    assert play_threads(1, 300) == ""


def test_words_of_a_block() -> None:
    # Two words in each page that it touches; a part too small for two has one.
    assert stamps.words(0x1000, 8, 0x1000) == [0x1000]
    assert stamps.words(0x1000, 0x1000, 0x1000) == [0x1000, 0x1FF8]
    assert stamps.words(0x1F00, 0x208, 0x1000) == [0x1F00, 0x1FF8, 0x2000, 0x2100]
    assert stamps.words(0x1000, 7, 0x1000) == []


def opened() -> Allocator:
    return Allocator(
        driver="host", granularity=PAGE, page=PAGE, small_max=KIB, limit=MIB, device_bytes=2 * MIB
    )


def test_content_that_changes_is_noticed() -> None:
    with opened() as allocator:
        player = Player(allocator, page=PAGE, limit=MIB, seed=1, tolerant=False)
        at = player._alloc(3 * PAGE, 0, 0)
        player.verify()
        ctypes.c_uint64.from_address(at + PAGE).value ^= 1
        with pytest.raises(ViolationError, match=f"{at + PAGE:#x} of the live {at:#x}"):
            player.verify()


def test_memory_in_use_by_another_stream_is_noticed() -> None:
    with opened() as allocator:
        streams = Streams(allocator, PAGE)
        streams.kernel(1, 1000)
        streams.freed(10 * PAGE, PAGE, {1}, {10 * PAGE: 7})
        streams.check_given(20 * PAGE, PAGE, 1, {20 * PAGE: 7})  # the same stream: in order
        streams.check_given(20 * PAGE, PAGE, 2, {20 * PAGE: 8})  # another page
        streams.check_mapped({10 * PAGE: 7})
        with pytest.raises(ViolationError, match="page 7 is in use"):
            streams.check_given(20 * PAGE, PAGE, 2, {20 * PAGE: 7})
        with pytest.raises(ViolationError, match="work until 1000 ns"):
            streams.check_mapped({10 * PAGE: -1})
        streams.set(1000)
        streams.check_given(20 * PAGE, PAGE, 2, {20 * PAGE: 7})
        streams.check_mapped({})


def test_bytes_that_are_lost_are_noticed() -> None:
    with opened() as allocator:
        player = Player(allocator, page=PAGE, limit=MIB, seed=1, tolerant=False)
        at = player._alloc(PAGE, 0, 0)
        allocator.free(at)  # behind the back of the player
        with pytest.raises(ViolationError, match="live blocks"):
            player.verify()
