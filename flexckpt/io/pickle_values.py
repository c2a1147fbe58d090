# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Values that a pickle is read into, besides plain containers: all of them inert."""

from collections.abc import Callable
from typing import Any, NamedTuple

from flexckpt.errors import CheckpointError


class FileBytes(NamedTuple):
    """A long byte string that was left in its file: position of its first byte, and its length."""

    position: int
    length: int


class Build:
    """What a global of a pickle stands for: an inert value that REDUCE and NEWOBJ may call.

    Args:
        name: ``module.name`` as the pickle has it.
        make: called with the arguments in the pickle.
    """

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name = name
        self.make = make

    def __repr__(self) -> str:
        return f"Build({self.name!r})"


class Stateful:
    """Base of objects that BUILD, APPENDS or SETITEMS may change: subclasses say how."""

    __slots__ = ()

    def set_state(self, state: Any) -> None:
        raise CheckpointError("CKP105", f"a pickle sets the state of a {type(self).__name__}")

    def extend(self, items: list[Any]) -> None:
        raise CheckpointError("CKP105", f"a pickle appends to a {type(self).__name__}")

    def update(self, items: dict[Any, Any]) -> None:
        raise CheckpointError("CKP105", f"a pickle sets items of a {type(self).__name__}")


class Plain(Stateful):
    """An object of an allowed class, as data: the arguments it was made from, and its fields."""

    __slots__ = ("args", "fields")

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.fields: dict[str, Any] = {}

    def set_state(self, state: Any) -> None:
        """Take the fields of a dict or of ``(dict, slots)``; keep other states as ``state``."""
        if type(state) is dict and not self.fields:
            self.fields = state
            return
        parts = state if type(state) is tuple and len(state) == 2 else (state,)
        if all(part is None or type(part) is dict for part in parts):
            for part in parts:
                self.fields.update(part or {})
        else:
            self.fields["state"] = state

    def __repr__(self) -> str:
        return f"Plain{self.args!r}"


class Opaque(Stateful):
    """An object that a pickle would have built by a global outside of the allow list.

    It remembers the name of the global, and nothing of its state.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def set_state(self, state: Any) -> None:
        """Swallow the state."""

    def extend(self, items: list[Any]) -> None:
        """Swallow elements."""

    def update(self, items: dict[Any, Any]) -> None:
        """Swallow items."""

    def __repr__(self) -> str:
        return f"Opaque({self.name!r})"
