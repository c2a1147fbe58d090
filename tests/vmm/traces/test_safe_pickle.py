# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmm.errors import FormatError
from vmm.sim.readers import safe_pickle

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


@settings(deadline=None)
@given(value=plain, protocol=st.integers(2, 5))
def test_plain_data_comes_back(value: Any, protocol: int) -> None:
    assert safe_pickle.loads(pickle.dumps(value, protocol)) == value


def test_shared_and_long_data_comes_back() -> None:
    frames = [{"filename": "x" * 300, "line": 7}] * 3
    value = {"a": frames, "b": [frames, tuple(range(600))], "c": "é" * 70_000}
    for protocol in (2, 3, 4, 5):
        assert safe_pickle.loads(pickle.dumps(value, protocol)) == value


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


# Names of opcodes that would find, call or build something, or that plain data does not need.
@pytest.mark.parametrize(
    "value",
    [Runs(), os.system, collections.OrderedDict(a=1), {1, 2}, b"bytes", bytearray(b"x"), 1j, Runs],
    ids=str,
)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_anything_else_is_refused_before_it_is_built(value: Any, protocol: int) -> None:
    with pytest.raises(FormatError, match="only plain data is read"):
        safe_pickle.loads(pickle.dumps([1, value], protocol))


def test_every_opcode_that_is_not_needed_is_refused() -> None:
    refused = 0
    for op in pickletools.opcodes:
        try:
            safe_pickle.loads(b"\x80\x04" + op.code.encode("latin-1") + b"\0" * 40)
        except FormatError as error:
            refused += f"opcode {op.name} at byte 2" in str(error)
    assert refused == len(pickletools.opcodes) - 32


def test_classes_are_refused_by_the_unpickler_too() -> None:
    with pytest.raises(pickle.UnpicklingError, match=r"it names os\.system"):
        safe_pickle._PlainUnpickler(io.BytesIO()).find_class("os", "system")


# Ten bytes that would make the unpickler reserve 64 GiB, and other traps.
TRAPS = {
    "memo": (b"\x80\x02Nr\xff\xff\xff\xffN.", "keeps an object under the number 4294967295"),
    "string": (b"\x80\x02X\xff\xff\xff\x7fab.", "the pickle is cut off"),
    "long": (b"\x80\x02\x8a\xff\x01.", "the pickle is cut off"),
    "no end": (b"\x80\x04]\x94", "the pickle is cut off"),
    "empty stack": (b"\x80\x04.", "the pickle is damaged"),
    "no mark": (b"\x80\x04]e.", "the pickle is damaged"),
    "unknown memo": (b"\x80\x04h\x05.", "the pickle is damaged"),
    "odd dict": (b"\x80\x04}(K\x01u.", "the pickle is damaged"),
    "unhashable": (b"\x80\x04}]Ns.", "the pickle is damaged"),
    "not text": (b"\x80\x04\x8c\x02\xff\xff.", "the pickle is damaged"),
    "protocol": (b"\x80\x63N.", "the pickle is damaged"),
    "text opcode": (b"\x80\x02I5\n.", "opcode INT at byte 2: only plain data is read"),
    "nothing": (b"", "the pickle is cut off"),
}


@pytest.mark.parametrize("case", TRAPS)
def test_traps(case: str) -> None:
    data, text = TRAPS[case]
    with pytest.raises(FormatError, match=text):
        safe_pickle.loads(data)


def test_deep_nesting_is_no_crash() -> None:
    data = b"\x80\x04" + b"(" * 200_000 + b"t" * 200_000 + b"."
    with suppress(FormatError):
        safe_pickle.loads(data)
    value = safe_pickle.loads(b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".")
    assert isinstance(value, list)


SAMPLE = pickle.dumps({"segments": [{"a": (1, 2.5, None)}], "device_traces": [["x" * 300]]}, 4)


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, len(SAMPLE) - 1), new=st.binary(min_size=1, max_size=4))
def test_any_change_is_read_or_refused(at: int, new: bytes) -> None:
    with suppress(FormatError):
        safe_pickle.loads(SAMPLE[:at] + new + SAMPLE[at + len(new) :])
