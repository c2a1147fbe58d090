# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Directories of zip archives: where entries lie, and archives that are meant to fool a reader."""

import io
import zipfile
from collections.abc import Iterable
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.zip_directory import ZipEntry, read_zip_directory

Member = tuple[bytes, bytes]


def directory_of(data: bytes) -> dict[str, ZipEntry]:
    def read(at: int, count: int) -> bytes:
        if not 0 <= at <= at + count <= len(data):
            raise CheckpointError("CKP103", "outside")
        return data[at : at + count]

    return read_zip_directory(read, len(data))


def code_of(data: bytes) -> str:
    with pytest.raises(FlexckptError) as caught:
        directory_of(data)
    return caught.value.code


def local(name: bytes, data: bytes, method: int = 0, flags: int = 0) -> bytes:
    header = pack(
        "<4s5H3I2H", b"PK\3\4", 20, flags, method, 0, 0, 0, len(data), len(data), len(name), 0
    )
    return header + name + data


def central(name: bytes, at: int, size: int, extra: bytes = b"", **other: int) -> bytes:
    packed = other.get("packed", size)
    head = pack("<4s6H", b"PK\1\2", 20, 20, other.get("flags", 0), other.get("method", 0), 0, 0)
    lengths = pack("<5H", len(name), len(extra), 0, 0, 0)
    return head + pack("<3I", 0, packed, size) + lengths + pack("<II", 0, at) + name + extra


def end(count: int, size: int, at: int, comment: bytes = b"") -> bytes:
    return pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, size, at, len(comment)) + comment


def archive(parts: bytes, lines: Iterable[bytes], comment: bytes = b"") -> bytes:
    lines = list(lines)
    directory = b"".join(lines)
    return parts + directory + end(len(lines), len(directory), len(parts), comment)


A, B = local(b"a", b"12345"), local(b"b", b"678")


def test_entries_are_found() -> None:
    data = archive(A + B, [central(b"b", len(A), 3), central(b"a", 0, 5)], b"a comment")
    found = directory_of(data)
    assert {name: data[e.position : e.position + e.size] for name, e in found.items()} == {
        "a": b"12345",
        "b": b"678",
    }


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=9).map(lambda t: t.replace("\0", "0")),
        st.binary(max_size=40),
        max_size=5,
    )
)
@settings(max_examples=60, deadline=None)
def test_archives_of_python(members: dict[str, bytes]) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, data in members.items():
            made.writestr(zipfile.ZipInfo(name), data)
    whole = out.getvalue()
    with zipfile.ZipFile(out) as made:
        names = [info.filename for info in made.infolist()]
    found = directory_of(whole)
    assert set(found) == set(names)
    assert sorted(whole[e.position : e.position + e.size] for e in found.values()) == sorted(
        members.values()
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\5\6",
        A,
        archive(A, [central(b"a", 0, 6)]),  # longer than it is
        archive(A, [central(b"a", 0, 4)]),  # shorter
        archive(A, [central(b"a", 1, 5)]),  # elsewhere
        archive(A, [central(b"a", 2**31, 5)]),
        archive(A, [central(b"a", 0, 5, packed=4)]),
        archive(A, [central(b"c", 0, 5)]),  # another name
        archive(local(b"\xff", b"12345"), [central(b"\xff", 0, 5)]),
        archive(A, [central(b"a", 0, 5), central(b"a", 0, 5)]),  # one entry twice
        archive(A + A, [central(b"a", 0, 5), central(b"a", len(A), 5)]),  # two of one name
        archive(local(b"a", A), [central(b"a", 0, len(A)), central(b"a", 31, 5)]),  # one in another
        archive(A + b"junk", [central(b"a", 0, 5)]),
        archive(local(b"a", b"12345", flags=8), [central(b"a", 0, 5, flags=8)]),  # no descriptor
        archive(A, [central(b"a", 0, 2**32 - 1)]),  # the 64-bit size is missing
        archive(A, [central(b"a", 0, 2**32 - 1, pack("<HHQ", 1, 8, 5))]),  # half of it
        archive(A, [central(b"a", 0, 2**32 - 1, pack("<HHQQ", 1, 16, 2**62, 2**62))]),
        A + central(b"a", 0, 5) + end(2, len(central(b"a", 0, 5)), len(A)),
        A + central(b"a", 0, 5) + end(1, 2**31, len(A)),
        A + central(b"a", 0, 5) + end(1, len(central(b"a", 0, 5)), 2**31),
        A + central(b"a", 0, 5) + end(0xFFFF, 2**32 - 1, 2**32 - 1),
        archive(A, [central(b"a", 0, 5)]) + b"behind",
        archive(A, [central(b"a", 0, 5)[:-1]]),
        archive(local(b"a", b"12345", method=8), [central(b"a", 0, 5)]),
    ],
)
def test_contradictions(data: bytes) -> None:
    assert code_of(data) == "CKP103"


def test_other_kinds_of_entries() -> None:
    assert code_of(archive(A, [central(b"a", 0, 5, method=8)])) == "CKP109"
    assert code_of(archive(A, [central(b"a", 0, 5, flags=1)])) == "CKP109"


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_noise(noise: bytes) -> None:
    for data in (noise, noise + end(1, 60, 30), A + noise + end(1, len(noise), len(A))):
        with pytest.raises(FlexckptError):
            directory_of(data)
