# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The errors of flexckpt: one sentence each that names the thing, the rule and the value."""

from functools import partial
from typing import Any

from flexckpt.codes import CODES


class FlexckptError(ValueError):
    """Base of all errors raised by flexckpt.

    Attributes:
        code: the stable, machine-readable code, a key of :data:`flexckpt.codes.CODES`.
    """

    def __init__(self, code: str, message: str) -> None:
        if code not in CODES:
            raise KeyError(f"error code {code!r} is not in flexckpt.codes.CODES")
        self.code = code
        self.message = message
        super().__init__(f"[{code}] {message}")

    def __reduce__(self) -> Any:
        return type(self), (self.code, self.message)


class CheckpointError(FlexckptError):
    """A checkpoint on disk is damaged, incomplete, hostile or of an unknown layout."""


class LayoutError(FlexckptError):
    """A target, a shard or a layout does not describe what it should."""


class TransferError(FlexckptError):
    """Ranks disagree, a rank failed, or an exchange ran past its time limit."""


class AoaError(FlexckptError):
    """A mapping is malformed or does not fit the tensors.

    Attributes:
        statement: index of the statement in the program, from 0.
        line, column: where in the text, from 1.
        excerpt: the line of the text with a caret below the span.
        expanded: the statement after macro expansion, or None.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        statement: int | None = None,
        line: int | None = None,
        column: int | None = None,
        excerpt: str | None = None,
        expanded: str | None = None,
    ) -> None:
        self.statement = statement
        self.line = line
        self.column = column
        self.excerpt = excerpt
        self.expanded = expanded
        where = "" if line is None else f"line {line}, column {column}: "
        text = f"{where}{message}"
        if excerpt:
            text += f"\n{excerpt}"
        if expanded:
            text += f"\nexpanded: {expanded}"
        super().__init__(code, text)
        self.message = message

    def __reduce__(self) -> Any:
        names = "statement", "line", "column", "excerpt", "expanded"
        places = {name: getattr(self, name) for name in names}
        return partial(type(self), **places), (self.code, self.message)
