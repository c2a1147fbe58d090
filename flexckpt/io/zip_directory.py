# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Where the entries of an uncompressed zip archive lie, with every offset checked.

The archive may be part of a bigger file. Anything that a reader could be fooled with (entries that
are compressed, encrypted, overlap or leave the archive, two entries of one name, local headers that
contradict the directory) is refused.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from flexckpt.errors import CheckpointError

# Reads `count` bytes at a position of the archive; raises where they are not there.
Read = Callable[[int, int], bytes]

_END = Struct("<4s4H2IH")
_END64_LOCATOR = Struct("<4sIQI")
_END64 = Struct("<4sQ2H2I4Q")
_CENTRAL = Struct("<4s6H3I5H2I")
_LOCAL = Struct("<4s5H3I2H")
_LONGEST_COMMENT = 2**16
_UNKNOWN = 0xFFFFFFFF
_DESCRIBED = 0x8
_ENCRYPTED = 0x1 | 0x40 | 0x2000


class ZipEntry(NamedTuple):
    """Bytes ``[position, position + size)`` of the archive, and their CRC-32."""

    position: int
    size: int
    crc: int


class _Listed(NamedTuple):
    name: bytes
    described: bool
    header: int
    size: int
    crc: int


def read_zip_directory(read: Read, length: int) -> dict[str, ZipEntry]:
    """The entries of the archive of ``length`` bytes, by name.

    Raises:
        CheckpointError: CKP103 if the archive is damaged or contradicts itself, CKP109 if an entry
            is compressed or encrypted.
    """
    start, size, count = _find_directory(read, length)
    if count * _CENTRAL.size > size or start + size > length:
        raise damaged(f"a directory of {count} entries does not fit")
    every = sorted(_parse_directory(read(start, size), count), key=lambda entry: entry.header)
    entries: dict[str, ZipEntry] = {}
    for number, listed in enumerate(every, 1):
        limit = every[number].header if number < len(every) else start
        position = _after_local_header(read, listed, limit)
        _check_end(read, listed, position + listed.size, limit)
        try:
            name = listed.name.decode("utf-8")
        except UnicodeDecodeError:
            raise damaged(f"the name {listed.name[:50]!r} is not text") from None
        if name in entries:
            raise damaged(f"two entries are named {name!r}")
        entries[name] = ZipEntry(position, listed.size, listed.crc)
    return entries


def damaged(what: str) -> CheckpointError:
    return CheckpointError("CKP103", f"the zip archive is damaged: {what}")


def _find_directory(read: Read, length: int) -> tuple[int, int, int]:
    """Position, bytes and entries of the directory."""
    for tail in (_END.size, _END.size + _LONGEST_COMMENT):
        first = max(0, length - tail)
        text = read(first, length - first)
        at = text.rfind(b"PK\5\6")
        if at >= 0 and at + _END.size <= len(text):
            break
    else:
        raise damaged("it has no end; it is truncated")
    _, disk, _, _, count, size, start, comment = _END.unpack_from(text, at)
    if disk not in (0, 0xFFFF) or at + _END.size + comment != len(text):
        raise damaged("its end contradicts its length")
    end = first + at
    if _UNKNOWN in (size, start) or count == 0xFFFF:
        if end < _END64_LOCATOR.size:
            raise damaged("its end is missing")
        signature, _, at64, _ = _END64_LOCATOR.unpack(
            read(end - _END64_LOCATOR.size, _END64_LOCATOR.size)
        )
        if signature != b"PK\6\7" or at64 + _END64.size > end:
            raise damaged("its 64-bit end is missing")
        signature, _, _, _, _, _, _, count, size, start = _END64.unpack(read(at64, _END64.size))
        if signature != b"PK\6\6":
            raise damaged("its 64-bit end is missing")
    return start, size, count


def _parse_directory(text: bytes, count: int) -> list[_Listed]:
    listed = []
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > len(text):
            raise damaged("its directory is truncated")
        (signature, _, _, flags, method, _, _, crc, packed, size, names, extras, comments) = (
            _CENTRAL.unpack_from(text, at)[:13]
        )
        header = _CENTRAL.unpack_from(text, at)[-1]
        at += _CENTRAL.size
        end = at + names + extras + comments
        if signature != b"PK\1\2" or end > len(text):
            raise damaged("its directory is truncated")
        name = text[at : at + names]
        extra = text[at + names : at + names + extras]
        at = end
        size, packed, header = _wide(extra, size, packed, header)
        if flags & _ENCRYPTED:
            raise CheckpointError("CKP109", f"entry {name!r} of the zip archive is encrypted")
        if method != 0:
            raise CheckpointError("CKP109", f"entry {name!r} of the zip archive is compressed")
        if packed != size:
            raise damaged(f"entry {name!r} has two sizes, {packed} and {size}")
        listed.append(_Listed(name, bool(flags & _DESCRIBED), header, size, crc))
    return listed


def _wide(extra: bytes, *values: int) -> list[int]:
    """Sizes and position of an entry, from its 64-bit field where the short ones are full."""
    out = list(values)
    missing = [k for k, value in enumerate(values) if value == _UNKNOWN]
    at = 0
    while missing and at + 4 <= len(extra):
        kind = int.from_bytes(extra[at : at + 2], "little")
        length = int.from_bytes(extra[at + 2 : at + 4], "little")
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            if len(field) < 8 * len(missing):
                raise damaged("a 64-bit field is truncated")
            for n, k in enumerate(missing):
                out[k] = int.from_bytes(field[8 * n : 8 * n + 8], "little")
            return out
        at += 4 + length
    if missing:
        raise damaged("a 64-bit field is missing")
    return out


def _after_local_header(read: Read, listed: _Listed, limit: int) -> int:
    """Where the bytes of an entry begin."""
    if listed.header + _LOCAL.size > limit:
        raise damaged(f"entry {listed.name!r} does not end where the next one begins")
    signature, _, flags, method, _, _, _, _, _, names, extras = _LOCAL.unpack(
        read(listed.header, _LOCAL.size)
    )
    at = listed.header + _LOCAL.size
    if signature != b"PK\3\4" or method != 0 or flags & _ENCRYPTED:
        raise damaged(f"entry {listed.name!r} has another local header")
    if at + names > limit or read(at, names) != listed.name:
        raise damaged(f"entry {listed.name!r} has another name in its local header")
    return int(at + names + extras)


def _check_end(read: Read, listed: _Listed, end: int, limit: int) -> None:
    """Nothing may lie between entries but the descriptors that their flags announce.

    The length of a local header is found nowhere else: if it is wrong, all bytes are read shifted.
    """
    if listed.described:
        fits = end + 16 <= limit <= end + 24 and read(end, 4) == b"PK\7\x08"
    else:
        fits = end == limit
    if not fits:
        raise damaged(f"entry {listed.name!r} does not end where the next one begins")
