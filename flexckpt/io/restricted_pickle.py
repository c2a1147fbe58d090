# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Pickles read as plain data: an allow list of globals, everything else refused or made inert."""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from mmap import ACCESS_READ, mmap
from typing import Any, BinaryIO, Literal, NamedTuple

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.pickle_machine import ATOMS, Machine
from flexckpt.io.pickle_values import Build, FileBytes, Opaque, Plain, Stateful
from flexckpt.io.plain_makers import MAKERS, OLD_MODULES, VALUES, size_of
from flexckpt.quiet_gc import quiet_gc

__all__ = [
    "Build",
    "FileBytes",
    "Opaque",
    "Plain",
    "Stateful",
    "load_plain",
    "run_pickle",
    "size_of",
]

Unknown = Literal["error", "opaque"]

# Limits of what is read at once; nothing real is nested more than a dozen levels deep.
_LARGEST = 2**31
_DEEPEST = 100


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
        pair = (OLD_MODULES.get(module, module), attribute)
        if pair not in found:
            found[pair] = _meaning(pair, makers, unknown)
        return found[pair]

    size = min(len(data), _LARGEST)
    machine = Machine(data, at, find, persistent_load, large_bytes, 8 * size + 2**16)
    try:
        with quiet_gc():
            value = machine.run()
            _check_tree(value, 64 * size + 2**16)
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
    if pair in VALUES:
        return VALUES[pair]
    make = makers.get(pair) or MAKERS.get(pair)
    if make is not None:
        return Build(name, make)
    if unknown == "opaque":
        return Build(name, lambda *args: Opaque(name))
    raise CheckpointError("CKP105", f"the pickle asks for {name!r}, which is not data")


def _check_tree(root: Any, limit: int) -> None:
    """Refuse values that contain themselves, or that a walk over them would find endless."""
    level, total = [root], 0
    for _ in range(_DEEPEST):
        level = [part for value in level for part in _children(value) if type(part) not in ATOMS]
        total += len(level)
        if not level:
            return
        if total > limit:
            raise CheckpointError("CKP103", "the pickle is far larger than its size explains")
    raise CheckpointError(
        "CKP103", f"the pickle is nested more than {_DEEPEST} deep or contains itself"
    )


def _children(value: Any) -> Iterable[Any]:
    kind = type(value)
    if kind is dict:
        return chain(value, value.values())
    if kind is Plain:
        return chain(value.args, value.fields.values())
    return value if isinstance(value, list | tuple | set | frozenset) else ()
