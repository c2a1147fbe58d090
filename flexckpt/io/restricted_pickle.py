# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Pickles read as plain data: an allow list of globals, everything else refused or made inert."""

from collections.abc import Callable, Mapping
from mmap import ACCESS_READ, mmap
from typing import Any, BinaryIO, Literal, NamedTuple

import torch

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.pickle_machine import Build, FileBytes, Machine, Stateful

__all__ = ["Build", "FileBytes", "Opaque", "Plain", "load_plain", "run_pickle"]

Unknown = Literal["error", "opaque"]

# Limits of what is read at once; nothing real is nested more than a dozen levels deep.
_LARGEST = 2**31
_DEEPEST = 100
_LEAVES = frozenset({str, int, bool, bytes, float, type(None)})


class Plain(Stateful):
    """An object of an allowed class, as data: the arguments it was made from, and its fields."""

    __slots__ = ("args", "fields")

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.fields: dict[str, Any] = {}

    def set_state(self, state: Any) -> None:
        """Take the fields of a dict or of ``(dict, slots)``; keep other states as ``state``."""
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


_HASHED = (str, int, bool, float, bytes, type(None))


def _dict_of(items: Any = ()) -> dict[Any, Any]:
    if type(items) is dict:
        return dict(items)
    made = {}
    for key, value in items:
        if not isinstance(key, str | int):
            raise CheckpointError("CKP103", f"the pickle uses a {type(key).__name__} as a key")
        made[key] = value
    return made


def _default_dict(factory: Any = None, *items: Any) -> dict[Any, Any]:
    return _dict_of(*items)  # a factory says how to go on with a dict, not what it holds


def _set_of(items: Any = ()) -> set[Any]:
    for item in items:
        for part in item if type(item) is tuple else (item,):
            if type(part) not in _HASHED:
                raise CheckpointError("CKP103", f"the pickle holds a set of {type(part).__name__}")
    return set(items)


def _bytes_of(text: Any = b"", encoding: str = "latin-1") -> bytes:
    if type(text) is bytes:
        return text
    if type(text) is str and encoding in ("latin1", "latin-1"):
        return text.encode("latin-1")
    raise TypeError("bytes are made from bytes or text")


def _complex_of(real: float, imaginary: float) -> complex:
    return complex(float(real), float(imaginary))


def _slice_of(start: Any, stop: Any, step: Any) -> slice:
    if all(part is None or type(part) is int for part in (start, stop, step)):
        return slice(start, stop, step)
    raise TypeError("a slice is made from integers")


def size_of(sizes: Any = ()) -> tuple[int, ...]:
    """A ``torch.Size`` as a tuple of integers."""
    made: tuple[int, ...] = tuple(sizes)
    if all(type(n) is int and 0 <= n < 2**63 for n in made):
        return made
    raise TypeError("a size is made from integers that are not negative")


_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}

# Globals that are values, and globals that make plain data from their arguments.
_VALUES: dict[tuple[str, str], Any] = {("torch", name): dtype for name, dtype in _DTYPES.items()}
_MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _dict_of,
    ("collections", "defaultdict"): _default_dict,
    ("collections", "Counter"): _dict_of,
    ("builtins", "dict"): _dict_of,
    ("builtins", "list"): lambda items=(): list(items),
    ("builtins", "tuple"): lambda items=(): tuple(items),
    ("builtins", "set"): _set_of,
    ("builtins", "frozenset"): _set_of,
    ("builtins", "bytearray"): _bytes_of,
    ("builtins", "bytes"): _bytes_of,
    ("builtins", "complex"): _complex_of,
    ("builtins", "slice"): _slice_of,
    ("builtins", "int"): Plain,
    ("builtins", "float"): Plain,
    ("_codecs", "encode"): _bytes_of,
    ("torch", "Size"): size_of,
    ("torch", "device"): lambda *where: ":".join(map(str, where)),
    ("torch.serialization", "_get_layout"): lambda name: name,
}
# Names as Python 2 and protocol 2 have them.
_OLD_MODULES = {"__builtin__": "builtins"}


class Pickled(NamedTuple):
    """The object of a pickle, and where its bytes end."""

    value: Any
    end: int


def load_plain(
    file: BinaryIO,
    allowed: Mapping[tuple[str, str], Callable[..., Any]] | None = None,
    persistent_load: Callable[[Any], Any] | None = None,
    *,
    unknown: Unknown = "error",
    large_bytes: int | None = None,
) -> Any:
    """The object of a pickle, built from plain containers and from what ``allowed`` makes.

    Nothing of the file is executed. Dicts of any kind become ``dict``, ``torch.Size`` a tuple,
    bytearrays bytes, and the dtypes of torch stay what they are.

    Args:
        file: read from its position to its end.
        allowed: ``(module, name)`` of further globals, and what makes a value from the arguments
            in the pickle: :class:`Plain`, or a function of yours that takes time in proportion to
            their lengths. A state goes to the ``set_state`` of the made object, a ``Stateful``.
        persistent_load: what a persistent id stands for; none is expected if None.
        unknown: "opaque" makes an :class:`Opaque` of an instance of any other global, "error"
            refuses it.
        large_bytes: byte strings of at least this length stay in the file, as :class:`FileBytes`
            with absolute positions; ``file`` must then be a file of the operating system.

    Raises:
        CheckpointError: CKP105 naming the global that is not allowed, CKP103 if the pickle is
            damaged or far deeper or larger than data is.
    """
    name = str(getattr(file, "name", "a pickle"))
    if large_bytes is None:
        data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise CheckpointError("CKP109", f"{name}: a pickle of more than 2 GiB is not read")
        return run_pickle(data, 0, name, allowed, persistent_load, unknown=unknown).value
    start, end = file.tell(), file.seek(0, 2)
    if start >= end:
        raise CheckpointError("CKP103", f"{name}: the pickle is empty")
    with mmap(file.fileno(), 0, access=ACCESS_READ) as view:
        return run_pickle(
            view, start, name, allowed, persistent_load, unknown=unknown, large_bytes=large_bytes
        ).value


def run_pickle(
    data: bytes | mmap,
    at: int,
    name: str,
    allowed: Mapping[tuple[str, str], Callable[..., Any]] | None = None,
    persistent_load: Callable[[Any], Any] | None = None,
    *,
    unknown: Unknown = "error",
    large_bytes: int | None = None,
) -> Pickled:
    """The object of the pickle that starts at byte ``at`` of ``data``; see :func:`load_plain`.

    Args:
        name: of the file, for messages.

    Raises:
        CheckpointError: CKP105 or CKP103.
    """
    makers = allowed or {}
    found: dict[tuple[str, str], Any] = {}

    def find(module: str, attribute: str) -> Any:
        pair = (_OLD_MODULES.get(module, module), attribute)
        if pair not in found:
            found[pair] = _meaning(pair, makers, unknown)
        return found[pair]

    budget = 64 * (len(data) if large_bytes is None else min(len(data), _LARGEST)) + 2**16
    machine = Machine(data, at, find, persistent_load, large_bytes, budget)
    try:
        value = machine.run()
        _check_tree(value, budget)
    except FlexckptError as error:
        raise CheckpointError(error.code, f"{name}: {error.message}") from None
    except Exception as error:  # whatever a handler meets in damaged bytes is damage
        cause = f"{type(error).__name__}: {error}"
        raise CheckpointError(
            "CKP103", f"{name}: the pickle is damaged at byte {machine.at} ({cause})"
        ) from error
    return Pickled(value, machine.at)


def _meaning(
    pair: tuple[str, str], makers: Mapping[tuple[str, str], Callable[..., Any]], unknown: Unknown
) -> Any:
    name = ".".join(pair)
    if pair in _VALUES:
        return _VALUES[pair]
    make = makers.get(pair) or _MAKERS.get(pair)
    if make is not None:
        return Build(name, make)
    if unknown == "opaque":
        return Build(name, lambda *args: Opaque(name))
    raise CheckpointError("CKP105", f"the pickle asks for {name!r}, which is not data")


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, Plain):
        return (*value.args, value.fields)
    return None


def _check_tree(root: Any, budget: int) -> None:
    """Refuse values that contain themselves, or that a walk over them would find endless."""
    sizes: dict[int, int] = {}  # by identity: 0 while open

    def size(value: Any, depth: int) -> int:
        parts = _children(value)
        if parts is None:
            return 1
        known = sizes.get(id(value))
        if known:
            return known
        if known == 0 or depth > _DEEPEST:
            raise CheckpointError(
                "CKP103", f"the pickle is nested more than {_DEEPEST} deep or contains itself"
            )
        sizes[id(value)] = 0
        total = 1
        for part in parts:
            total += 1 if type(part) in _LEAVES else size(part, depth + 1)
        if total > budget:
            raise CheckpointError("CKP103", "the pickle is far larger than its size explains")
        sizes[id(value)] = total
        return total

    size(root, 0)
