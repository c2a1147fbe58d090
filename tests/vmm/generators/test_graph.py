# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Lifetimes of a forward and backward pass, against sums made by hand."""

from __future__ import annotations

import pytest

from vmm.sim.generators.graph import Executor, Op
from vmm.sim.generators.layers import Shape, head, layer, linear
from vmm.sim.generators.parameters import Parameters
from vmm.sim.generators.stack import Stack
from vmm.sim.generators.tape import Tape
from vmm.sim.trace import Trace


def tape(**given: float) -> Tape:
    return Tape("test", Parameters(**given))  # type: ignore[arg-type]


def story(trace: Trace) -> str:
    """Allocations and frees as +size and -size."""
    kept = trace.take(trace.is_op("af"))
    return " ".join(
        f"{'+' if op == ord('a') else '-'}{size}"
        for op, size in zip(kept.op, kept.bytes, strict=True)
    )


def test_forward_frees_what_nobody_needs() -> None:
    t = tape()
    ops = [
        Op("one", ("x",), (("a", 20),), saves=("x",)),
        Op("two", ("a",), (("b", 30), ("unused", 1)), scratch=7),
        Op("three", ("b",), (("y", 40),), saves=("y",)),
    ]
    saved = Executor(t).forward(ops, {"x": t.alloc(10, "x")})
    assert {name: t.size(id) for name, id in saved.items()} == {"x": 10, "y": 40}
    assert story(t.trace()) == "+10 +20 +30 +1 +7 -7 -20 -1 +40 -30"


def test_backward_by_hand() -> None:
    t = tape()
    ops = [linear("a", "x", "h", 4, 2, 8), linear("b", "h", "y", 4, 8, 2)]
    executor = Executor(t)
    saved = executor.forward(ops, {"x": t.alloc(16, "x")}, ("y",))
    gradient = saved.pop("y")
    result = executor.backward(ops, saved, {"y": gradient}, {"x": 16})
    assert story(t.trace()) == (
        "+16 +64 +16 "  # x, h, y
        "+64 +32 -32 -16 -64 "  # gradient of h, of the weight; y and h are done
        "+16 +32 -32 -64 -16"  # the same one layer down; x is done
    )
    assert t.size(result["x"]) == 16


@pytest.mark.parametrize("other_first", [False, True])
def test_a_sum_passes_its_gradient_on_without_a_copy(other_first: bool) -> None:
    t = tape()
    names = ("x", "h") if other_first else ("h", "x")
    ops = [linear("a", "x", "h", 4, 2, 2), Op("add", names, (("y", 16),), passes=True)]
    executor = Executor(t)
    saved = executor.forward(ops, {"x": t.alloc(16, "x")}, ("y",))
    y = saved.pop("y")
    result = executor.backward(ops, saved, {"y": y}, {"x": 16})
    # The gradient of y is that of h and half of that of x: it holds their sum in the end.
    assert story(t.trace()) == "+16 +16 +16 -16 +16 +8 -8 -16 -16"
    t.free(result["x"])
    assert t.trace().live()[-1] == 0


def test_saved_bytes_of_a_layer() -> None:
    """Per token: 2 bytes for x, n1, q, o, mid, n2, k, v and 4 times ffn; 4 for norms and heads."""
    s = Shape(hidden=64, heads=4, kv=16, ffn=96, vocabulary=50)
    t, rows = tape(), 10
    executor = Executor(t)
    values = executor.forward(layer(s, rows), {"x": t.alloc(rows * 128, "x")}, ("y",))
    live = t.trace().live()[-1]
    assert live == rows * (2 * (7 * 64 + 2 * 16 + 4 * 96) + 4 * (2 + 4))  # and y
    found = executor.backward(layer(s, rows), values, {"y": values.pop("y")}, {"x": rows * 128})
    assert t.trace().live()[-1] == rows * 128
    t.free(found["x"])


def test_recomputation_keeps_inputs_only() -> None:
    s = Shape(hidden=64, heads=4, kv=16, ffn=96)
    t, rows, size = tape(), 10, 1280
    stack = Stack(Executor(t), [layer(s, rows)] * 3, recompute=True)
    y = stack.forward(t.alloc(size, "x"))
    assert t.trace().live()[-1] == 4 * size
    t.free(stack.backward(y))
    assert t.trace().live()[-1] == 0


def test_peak_of_the_head() -> None:
    """Gradient of the log-softmax beside its result and its input's gradient, all float32."""
    s = Shape(hidden=8, heads=1, kv=8, ffn=8, vocabulary=1000)
    t, rows = tape(), 100
    executor = Executor(t)
    values = executor.forward(head(s, rows), {"x": t.alloc(rows * 16, "x")}, ("loss",))
    executor.backward(head(s, rows), values, {"loss": values.pop("loss")}, {"x": rows * 16})
    wide = 4 * rows * 1000
    assert 3 * wide <= t.trace().live().max() < 3 * wide + 10_000


def test_frozen_layers_save_less_and_make_no_large_gradient() -> None:
    sizes = {"hidden": 64, "heads": 4, "kv": 16, "ffn": 96}
    live = {}
    for rank in (0, 2):
        t, s = tape(), Shape(**sizes, rank=rank)
        values = Executor(t).forward(layer(s, 10), {"x": t.alloc(1280, "x")}, ("y",))
        live[rank] = t.trace().live()[-1]
        Executor(t).backward(layer(s, 10), values, {"y": values.pop("y")}, {"x": 1280})
        weights = t.trace().bytes[
            t.trace().tag == t.trace().header["tags"].index("weight gradient")
        ]
        assert weights.max() == (2 * 64 * 96 if rank == 0 else 2 * 96 * 2)
    # Not n2, which only frozen weights read; but two inner products of the adapters.
    assert live[0] - live[2] == 10 * (2 * 64 - 2 * 2 * 2)


def test_clocks() -> None:
    t = tape(call_ns=10, launch_ns=100, kernel_ns=5, queue=2, flops=1e9, memory_rate=1e9)
    id = t.alloc(100, "a")  # until 10
    t.compute(flops=1000)  # 10 to 1010 on stream 0; launched at 110
    t.compute(moved=2, stream=1)  # the least, 5: 110 to 115; launched at 210
    assert (t.due(0), t.due(1)) == (1010, 210)
    t.wait(1, 0)  # idle from 210 to 1010
    assert t.due(1) == 1010
    t.kernel(50)  # 1010 to 1060; launched at 310
    t.kernel(1)  # the queue holds 2: the host waits until 1010
    t.free(id)
    t.sync()
    t.step()
    trace = t.trace()
    assert bytes(trace.op.tolist()).decode() == "akkkkkfsm"
    assert trace.t_ns.tolist() == [0, 10, 110, 210, 210, 1010, 1110, 1120, 1120]
    assert trace.bytes.tolist() == [100, 1000, 5, 800, 50, 1, 100, 0, 0]
    assert trace.stream.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0]
