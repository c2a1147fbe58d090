# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What happens in the middle of noting a stack."""

import subprocess
import sys
import time
from typing import Any

import pytest

from vmm import Allocator
from vmm.observe import stacks
from vmm.observe.api import record


@pytest.fixture
def one() -> Allocator:
    return Allocator(driver="null", device_bytes=1 << 30)


def test_an_interrupt_reaches_the_program(one: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not end in the C code that asks for the stack."""
    calls: list[int] = []

    def interrupted(depth: int) -> int:
        calls.append(depth)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(stacks.STACKS, "of_caller", interrupted)
    with pytest.raises(KeyboardInterrupt), record(100, stacks="python", allocator=one):
        _allocate(one)
    assert len(calls) >= 3
    one.check()


def _allocate(one: Allocator, seconds: float = 20) -> None:
    late = time.monotonic() + seconds
    while time.monotonic() < late:
        one.free(one.alloc(512))


INTERRUPTED = """
import signal, time, vmm
from vmm.observe.api import record
one = vmm.Allocator(driver="null", device_bytes=1 << 30)
got = 0
for round in range(60):
    try:
        with record(100, stacks="python", allocator=one):
            late = time.monotonic() + 10
            signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0001 * round)
            while time.monotonic() < late:
                one.prefetch([512])
                one.free(one.alloc(512))
    except KeyboardInterrupt:
        got += 1
print(got)
"""


def test_no_interrupt_is_lost() -> None:
    """Wherever the signal is seen: in the program or while a stack is noted."""
    code = (
        "import signal\nsignal.signal(signal.SIGALRM, signal.default_int_handler)\n" + INTERRUPTED
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert (done.stdout, done.stderr) == ("60\n", "")


def test_an_allocation_while_a_stack_is_noted_has_none(one: Allocator) -> None:
    """A finalizer that garbage collection runs may allocate."""
    table = stacks.Stacks()
    inside: list[int] = []

    class Allocating(list[Any]):
        def append(self, stack: object) -> None:
            inside.append(table.of_caller())
            super().append(stack)

    table.table = Allocating([()])
    number = table.of_caller()
    assert inside == [0]
    assert table.table[number][0][2] == "test_an_allocation_while_a_stack_is_noted_has_none"
    assert table.of_caller() > 0
