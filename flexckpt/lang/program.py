# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a mapping compiles to: a variable per destination, and what became of other names."""

from dataclasses import dataclass, field

from flexckpt.lang.lower import Batch
from flexckpt.lang.tree import Text
from flexckpt.pieces import Piece, Variable


@dataclass(slots=True)
class Program:
    """A compiled mapping. It can be pickled.

    Attributes:
        outputs: the variable of every destination, those that pass as they are included. Without a
            description of the destination: every variable at the end that no statement has read.
        kept: destinations that keep the values they have.
        dropped: tensors of the source that were deleted.
        identity: destinations that no statement names and that are the source's tensor of their
            name.
        missing: destinations without a source, where that was allowed.
        unexpected: tensors of the source that nothing uses, where that was allowed.
        unmatched: places of patterns that matched nothing, where that was allowed.
        twins: destination -> pieces that would write values it has already, because the forward
            program made several copies. Only of an inverse.
        lost: parts of the source that ``unpad`` cut off.
        assumed: statements whose inverse cuts a tensor into equal parts, because nothing tells how
            long the parts were. Only of an inverse without a description of the destination.
        text: what was compiled.
        batches: the statements after macros.
    """

    outputs: dict[str, Variable]
    kept: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    identity: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    twins: dict[str, list[Piece]] = field(default_factory=dict)
    lost: list[Piece] = field(default_factory=list)
    assumed: tuple[str, ...] = ()
    text: Text = field(default_factory=lambda: Text(()))
    batches: list[Batch] = field(default_factory=list)

    def statements(self) -> list[str]:
        """The program as plain statements, without macros."""
        return [line for batch in self.batches for line in batch.lines()]
