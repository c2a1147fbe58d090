# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Runs lists of operators forward and backward the way autograd holds and drops tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from vmm.sim.generators.tape import Tape

Values = dict[str, int]  # name -> id of a live allocation


@dataclass(frozen=True, slots=True)
class Op:
    """One operator. Sizes are bytes, of one tensor each.

    `saves` names what it keeps for its backward. `weight` is the size of the weight gradient that
    its backward produces and adds to a buffer. `scratch` is held while it runs. `link` makes it a
    collective that moves so many bytes. An operator that `passes` hands the gradient of its output
    to every input as it is, without a copy. Inputs in `constant` get no gradient. Before one with
    `sync` the host waits for the stream, in the forward pass.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, int], ...]
    saves: tuple[str, ...] = ()
    weight: int = 0
    flops: float = 0
    scratch: int = 0
    link: int = 0
    passes: bool = False
    constant: tuple[str, ...] = ()
    sync: bool = False


class Executor:
    """Runs operators on stream `compute`, collectives on stream `link`.

    If the two differ, what a collective writes is allocated on its stream and recorded on the
    other, and the reverse for what it reads, as libraries of collectives do.
    """

    def __init__(self, tape: Tape, compute: int = 0, link: int | None = None) -> None:
        self.tape, self.stream = tape, compute
        self.link = compute if link is None else link
        self._shares: Counter[int] = Counter()  # holders of a gradient beyond the first

    def forward(
        self, ops: Sequence[Op], values: Values, keep: Collection[str] = (), save: bool = True
    ) -> Values:
        """Takes over `values`; gives what is kept or saved, frees the rest after its last use."""
        values = dict(values)
        uses = Counter(name for op in ops for name in op.inputs)
        held = set(keep)
        if save:
            held.update(name for op in ops for name in op.saves)
        for op in ops:
            if op.sync:
                self.tape.sync(self.stream)
            reads = [values[name] for name in op.inputs]
            writes = self._outputs(op, [size for _, size in op.outputs], "activation")
            self._run(op, 1, reads, writes)
            values.update(zip((name for name, _ in op.outputs), writes, strict=True))
            uses.subtract(op.inputs)
            for name in dict.fromkeys((*op.inputs, *(name for name, _ in op.outputs))):
                if uses[name] <= 0 and name not in held:
                    self.tape.free(values.pop(name))
        return values

    def backward(
        self,
        ops: Sequence[Op],
        values: Values,
        gradients: Values,
        sizes: Mapping[str, int],
        keep: Collection[str] = (),
    ) -> Values:
        """Takes over saved `values` and `gradients`; gives gradients of what no operator made.

        `sizes` are those of these inputs. Values in `keep` stay live.
        """
        values, gradients = dict(values), dict(gradients)
        known = {**sizes, **{name: size for op in ops for name, size in op.outputs}}
        uses = Counter(name for op in ops for name in op.saves)
        for op in reversed(ops):
            arriving = [gradients.pop(name) for name, _ in op.outputs if name in gradients]
            wanted = [name for name in op.inputs if name not in op.constant]
            if arriving and op.passes:
                for name in wanted:
                    self._shares[arriving[0]] += 1
                    self._accumulate(gradients, name, arriving[0])
            elif arriving:
                made = self._outputs(op, [known[name] for name in wanted], "gradient")
                weight = self.tape.alloc(op.weight, "weight gradient") if op.weight else None
                self._run(op, 2 if op.weight else 1, arriving, made)
                if weight is not None:
                    self.tape.compute(moved=5 * op.weight, stream=self.stream)
                    self.tape.free(weight)
                for name, id in zip(wanted, made, strict=True):
                    self._accumulate(gradients, name, id)
            for id in arriving:
                self._drop(id)
            for name in op.saves:
                uses[name] -= 1
                if not uses[name] and name not in keep:
                    self.tape.free(values.pop(name))
        return gradients

    def _outputs(self, op: Op, sizes: list[int], tag: str) -> list[int]:
        if op.link:
            return [self.tape.alloc(size, "communication", self.link) for size in sizes]
        return [self.tape.alloc(size, tag, self.stream) for size in sizes]

    def _run(self, op: Op, factor: int, reads: list[int], writes: list[int]) -> None:
        tape, apart = self.tape, op.link and self.link != self.stream
        scratch = tape.alloc(op.scratch, "workspace", self.stream) if op.scratch else None
        if op.link:
            tape.wait(self.link, self.stream)
            tape.transfer(op.link, self.link)
            tape.wait(self.stream, self.link)
        else:
            moved = sum(map(tape.size, reads)) + sum(map(tape.size, writes))
            tape.compute(op.flops * factor, moved, self.stream)
        if apart:
            for id in reads:
                tape.record(id, self.link)
            for id in writes:
                tape.record(id, self.stream)
        if scratch is not None:
            tape.free(scratch)

    def _accumulate(self, gradients: Values, name: str, id: int) -> None:
        if name not in gradients:
            gradients[name] = id
            return
        size, first = self.tape.size(id), gradients[name]
        # The sum goes into a gradient that nobody else reads, if there is one.
        target = next((each for each in (first, id) if not self._shares[each]), None)
        if target is None:
            target = self.tape.alloc(size, "gradient", self.stream)
        self.tape.compute(moved=3 * size, stream=self.stream)
        for each in (first, id):
            if each != target:
                self._drop(each)
        gradients[name] = target

    def _drop(self, id: int) -> None:
        if self._shares[id]:
            self._shares[id] -= 1
        else:
            del self._shares[id]
            self.tape.free(id)
