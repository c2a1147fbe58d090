# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""An interpreter of the pickle opcodes that data needs; it builds nothing but what it is handed.

The unpickler of the standard library is not used: a file could make it allocate a memo of any size,
hash tuples nested into themselves, or set attributes of whatever a name is mapped to.
"""

from collections.abc import Callable, Hashable
from mmap import mmap
from struct import unpack
from typing import Any

from flexckpt.errors import CheckpointError
from flexckpt.io.pickle_values import Build, FileBytes, Stateful

__all__ = ["ATOMS", "FileBytes", "Machine", "Stateful"]

# Integers beyond 512 bits are no data of a checkpoint, and cannot be printed in a message.
_LONGEST_INT = 64
ATOMS = frozenset({str, bool, bytes, float, int, type(None)})
_QUICK_KEYS = frozenset({str, bool, bytes, float, type(None)})
_SIZED = frozenset({str, bytes, tuple, list, dict, set, frozenset})


class Machine:
    """One run over the bytes of a pickle.

    Args:
        data: the bytes; only what is needed is touched.
        at: where the pickle starts.
        find: what a global stands for.
        persistent: what a persistent id stands for.
        large_bytes: byte strings of at least this length become :class:`FileBytes`; None for never.
        budget: how many elements may be handed to builders altogether.
    """

    def __init__(
        self,
        data: bytes | mmap,
        at: int,
        find: Callable[[str, str], Any],
        persistent: Callable[[Any], Any] | None,
        large_bytes: int | None,
        budget: int,
    ) -> None:
        self.data = data
        self.size = len(data)
        self.at = at
        self.find = find
        self.persistent = persistent
        self.large_bytes = large_bytes
        self.budget = budget
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """The object of the pickle; :attr:`at` is then behind it."""
        data, stack, memo, operations = self.data, self.stack, self.memo, _OPERATIONS
        push, at = stack.append, self.at
        while True:
            code = data[at]
            at += 1
            # The most frequent opcodes are here: a call for each would double the time. One that
            # is cut off leaves the position behind the end, where the next one fails.
            if code == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif code == _BINGET:
                push(memo[data[at]])
                at += 1
            elif code == _SHORT_BINUNICODE:
                end = at + 1 + data[at]
                push(str(data[at + 1 : end], "utf-8", "surrogatepass"))
                at = end
            elif code == _BININT1:
                push(data[at])
                at += 1
            elif code == _LONG_BINGET:
                push(memo[int.from_bytes(data[at : at + 4], "little")])
                at += 4
            elif code == _BINPUT:
                memo[data[at]] = stack[-1]
                at += 1
            elif code == _TUPLE2:
                stack[-2:] = [(stack[-2], stack[-1])]
            elif code == _BININT2:
                push(data[at] | data[at + 1] << 8)
                at += 2
            elif code == _LONG_BINPUT:
                memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
                at += 4
            else:
                self.at = at
                if code == _STOP:
                    return stack.pop()
                operation = operations.get(code)
                if operation is None:
                    what = f"opcode {bytes([code])!r}, which data does not need"
                    raise CheckpointError("CKP105", f"the pickle uses {what}")
                operation(self)
                at = self.at

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > self.size:
            raise EOFError(f"{count} bytes at {self.at} leave the {self.size} bytes of the pickle")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, width: int) -> int:
        if width == 1:  # most of them, and no slice to make
            self.at += 1
            return self.data[self.at - 1]
        return int.from_bytes(self.take(width), "little")

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 1000)
        if end < 0:
            raise EOFError("a name does not end")
        text = self.data[self.at : end]
        self.at = end + 1
        return text.decode("utf-8")

    def marked(self) -> list[Any]:
        """The values pushed since the last mark, removed from the stack."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def call(self, function: Any, args: Any) -> None:
        if not isinstance(function, Build) or type(args) is not tuple:
            raise CheckpointError(
                "CKP105", f"the pickle calls {type(function).__name__} objects as functions"
            )
        for arg in args:
            if type(arg) in _SIZED:
                self.spend(len(arg))
        self.stack.append(function.make(*args))

    def spend(self, count: int) -> None:
        """Count elements that are copied: a short pickle could have a list copied for ever."""
        self.budget -= count
        if self.budget < 0:
            raise CheckpointError("CKP103", "the pickle builds far more than its size explains")

    def key(self, key: Any) -> Hashable:
        """``key``, if it can be hashed quickly.

        A tuple nested into itself takes for ever; integers that differ by 2**61 - 1 all collide.
        """
        todo = [key]
        while todo:
            part = todo.pop()
            if isinstance(part, tuple):
                self.spend(1 + len(part))
                todo.extend(part)
            elif type(part) is int and part.bit_length() > 60:
                raise CheckpointError("CKP103", f"the pickle uses {part} as a key")
            elif type(part) is frozenset:
                raise CheckpointError("CKP103", "the pickle uses nested sets as keys")
        return key  # type: ignore[no-any-return]

    def set_items(self, target: Any, flat: list[Any]) -> None:
        if len(flat) % 2:
            raise ValueError("a key without a value")
        keys, values = flat[::2], flat[1::2]
        for key in keys:
            if type(key) not in _QUICK_KEYS:
                self.key(key)
        if isinstance(target, Stateful):
            target.update(dict(zip(keys, values, strict=True)))
        elif isinstance(target, dict):
            target.update(zip(keys, values, strict=True))
        else:
            raise TypeError(f"items are set in a {type(target).__name__}")

    def append(self, target: Any, items: list[Any]) -> None:
        if isinstance(target, list | Stateful):
            target.extend(items)
        else:
            raise TypeError(f"items are appended to a {type(target).__name__}")

    def push_bytes(self, width: int) -> None:
        count = self.number(width)
        if self.large_bytes is None or count < self.large_bytes:
            self.stack.append(self.take(count))
            return
        if count > self.size - self.at:
            raise EOFError("a byte string leaves the pickle")
        self.stack.append(FileBytes(self.at, count))
        self.at += count

    def push_text(self, width: int) -> None:
        self.stack.append(self.take(self.number(width)).decode("utf-8", "surrogatepass"))

    def push_long(self, width: int) -> None:
        count = self.number(width)
        if count > _LONGEST_INT:
            raise CheckpointError("CKP103", f"the pickle holds an integer of {count} bytes")
        self.stack.append(int.from_bytes(self.take(count), "little", signed=True))

    def push_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("the stack is empty")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def push_global(self) -> None:
        module = self.line()
        self.stack.append(self.find(module, self.line()))

    def push_stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise TypeError("the name of a global is not text")
        self.stack.append(self.find(module, name))

    def reduce(self) -> None:
        args = self.stack.pop()
        self.call(self.stack.pop(), args)

    def new_object(self) -> None:
        args = self.stack.pop()
        self.call(self.stack.pop(), args)

    def new_object_with_keywords(self) -> None:
        keywords, args = self.stack.pop(), self.stack.pop()
        if keywords:
            raise CheckpointError("CKP105", "the pickle builds an object with keyword arguments")
        self.call(self.stack.pop(), args)

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Stateful):
            target.set_state(state)
        elif not isinstance(target, dict):
            raise CheckpointError(
                "CKP105", f"the pickle sets the state of a {type(target).__name__}"
            )
        # Attributes of a dict, as the `_metadata` of a state dict, are not data of the checkpoint.

    def set_item(self) -> None:
        pair = self.stack[-2:]
        del self.stack[-2:]
        self.set_items(self.stack[-1], pair)

    def set_marked(self) -> None:
        items = self.marked()
        self.set_items(self.stack[-1], items)

    def append_one(self) -> None:
        item = self.stack.pop()
        self.append(self.stack[-1], [item])

    def append_marked(self) -> None:
        items = self.marked()
        self.append(self.stack[-1], items)

    def push_dict(self) -> None:
        made: dict[Any, Any] = {}
        self.set_items(made, self.marked())
        self.stack.append(made)

    def add_items(self) -> None:
        items = self.marked()
        target = self.stack[-1]
        if type(target) is not set:
            raise TypeError(f"elements are added to a {type(target).__name__}")
        target.update(map(self.key, items))

    def push_persistent(self) -> None:
        if self.persistent is None:
            raise CheckpointError("CKP105", "the pickle refers to objects outside of it")
        self.stack.append(self.persistent(self.stack.pop()))

    def pop(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()


def _protocol(m: Machine) -> None:
    version = m.number(1)
    if version > 5:
        raise CheckpointError("CKP109", f"pickle protocol {version} is not known")


def _push(value: Any) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(value)


_STOP = ord(".")
_MEMOIZE, _BINGET, _LONG_BINGET, _BINPUT, _LONG_BINPUT = b"\x94hjqr"
_SHORT_BINUNICODE, _BININT1, _BININT2, _TUPLE2 = b"\x8cKM\x86"
_OPERATIONS: dict[int, Callable[[Machine], None]] = {
    opcode[0]: operation
    for opcode, operation in {
        b"\x80": _protocol,
        b"\x95": lambda m: m.take(8),  # a frame: its length is a hint only
        b"(": lambda m: m.marks.append(len(m.stack)),
        b"0": Machine.pop,
        b"1": lambda m: m.marked(),
        b"N": _push(None),
        b"\x88": _push(True),
        b"\x89": _push(False),
        b"J": lambda m: m.stack.append(int.from_bytes(m.take(4), "little", signed=True)),
        b"\x8a": lambda m: m.push_long(1),
        b"\x8b": lambda m: m.push_long(4),
        b"G": lambda m: m.stack.append(unpack(">d", m.take(8))[0]),
        b"X": lambda m: m.push_text(4),
        b"\x8d": lambda m: m.push_text(8),
        b"U": lambda m: m.push_text(1),  # text as Python 2 wrote it
        b"T": lambda m: m.push_text(4),
        b"C": lambda m: m.push_bytes(1),
        b"B": lambda m: m.push_bytes(4),
        b"\x8e": lambda m: m.push_bytes(8),
        b"\x96": lambda m: m.push_bytes(8),  # a bytearray, which is plain bytes here
        b"]": lambda m: m.stack.append([]),
        b"}": lambda m: m.stack.append({}),
        b"\x8f": lambda m: m.stack.append(set()),
        b")": _push(()),
        b"\x85": lambda m: m.push_tuple(1),
        b"\x87": lambda m: m.push_tuple(3),
        b"t": lambda m: m.stack.append(tuple(m.marked())),
        b"l": lambda m: m.stack.append(m.marked()),
        b"d": Machine.push_dict,
        b"\x91": lambda m: m.stack.append(frozenset(map(m.key, m.marked()))),
        b"a": Machine.append_one,
        b"e": Machine.append_marked,
        b"s": Machine.set_item,
        b"u": Machine.set_marked,
        b"\x90": Machine.add_items,
        b"c": Machine.push_global,
        b"\x93": Machine.push_stack_global,
        b"R": Machine.reduce,
        b"\x81": Machine.new_object,
        b"\x92": Machine.new_object_with_keywords,
        b"b": Machine.build,
        b"Q": Machine.push_persistent,
    }.items()
}
