# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The text every Python brings along, cut into documents and packed into equal sequences."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

VOCABULARY = 256  # one token per byte
EDGE = b"\0"  # stands before and after every document; source code does not contain it

_SKIP = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "pydoc_data"}
_SHORTEST, _LONGEST = 64, 4096  # bytes of a document; longer ones are mostly tables of data


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents to learn from, and documents of other files to be judged by."""

    train: list[bytes]
    held_out: list[bytes]
    files: int

    @property
    def size(self) -> int:
        return sum(map(len, self.train)) + sum(map(len, self.held_out))


@dataclasses.dataclass(frozen=True)
class Packed:
    """One sequence that several documents share."""

    tokens: Tensor  # [1, S]
    targets: Tensor  # [1, S], the byte which follows in the same document
    positions: Tensor  # [1, S], starting again with 0 in every document
    lengths: list[int]  # of the documents, adding up to S


def load_corpus(seed: int) -> Corpus:
    """Read the source files of the standard library and cut them into documents.

    Raises:
        FileNotFoundError: this Python came without the sources of its library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = list(_source_files(root))
    if len(paths) < 20:
        raise FileNotFoundError(f"no source files of the Python standard library in {root}")
    paths.sort()  # the order of a file system is not reproducible
    random.Random(seed).shuffle(paths)
    # Whole files are held out: functions of one file resemble each other.
    held_out = len(paths) // 20
    return Corpus(
        train=_documents(paths[held_out:], seed),
        held_out=_documents(paths[:held_out], seed),
        files=len(paths),
    )


def _source_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = set(subfolders) - _SKIP  # not even looked into
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _documents(paths: Sequence[Path], seed: int) -> list[bytes]:
    """Return the top-level functions, classes and headers of files, shuffled.

    PEP 8 puts two blank lines between them, so no parser is needed.
    """
    texts = (path.read_bytes().replace(b"\r\n", b"\n") for path in paths)
    pieces = [piece for text in texts for piece in re.split(rb"\n\n\n+", text)]
    pieces = [p for p in pieces if _SHORTEST <= len(p) <= _LONGEST and EDGE not in p]
    random.Random(seed).shuffle(pieces)
    return pieces


def pack(documents: Sequence[bytes], seq_len: int) -> Iterator[Packed]:
    """Yield full sequences, over and over.

    No token is wasted on padding: a document that does not fit is cut, and what is left of it opens
    the next sequence as a document of its own.
    """
    tokens, targets, lengths = bytearray(), bytearray(), []
    while True:
        for document in documents:
            left, right = EDGE + document, document + EDGE
            while left:
                take = min(seq_len - len(tokens), len(left))
                tokens += left[:take]
                targets += right[:take]
                lengths.append(take)
                left, right = left[take:], right[take:]
                if len(tokens) == seq_len:
                    positions = torch.cat([torch.arange(n) for n in lengths])
                    yield Packed(_as_batch(tokens), _as_batch(targets), positions[None], lengths)
                    tokens, targets, lengths = bytearray(), bytearray(), []


def _as_batch(text: bytearray) -> Tensor:
    return torch.frombuffer(text, dtype=torch.uint8).long()[None]


def unigram_entropy(sequences: Sequence[Packed]) -> float:
    """Return the entropy in nats of the bytes to be predicted, regardless of what precedes them.

    No model that looks at single bytes only can have a lower loss on these sequences, not even one
    that knows their frequencies beforehand.
    """
    counts = torch.bincount(torch.cat([s.targets for s in sequences], dim=1)[0])
    shares = counts[counts > 0].double() / counts.sum()
    return float(-(shares * shares.log()).sum())
