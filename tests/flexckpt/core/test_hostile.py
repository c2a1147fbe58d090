# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Damaged and hostile checkpoints of the own layout: errors, never wrong data, a crash, a hang."""

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import flexckpt
from flexckpt import CheckpointError, FlexckptError, Shard
from flexckpt.io.native import signed
from flexckpt.testing import write_checkpoint

FILES = ("index.json", "rank-00000.safetensors", "rank-00001.safetensors")


def tensors() -> dict[str, torch.Tensor]:
    return {
        "a": torch.arange(24, dtype=torch.float32).view(4, 6),
        "b": torch.arange(7, dtype=torch.int16),
        "c": torch.arange(10, dtype=torch.float32),
    }


@pytest.fixture
def ck(tmp_path: Path) -> Path:
    a, b, c = tensors().values()
    write_checkpoint(
        tmp_path / "ck",
        [
            [Shard("a", a[:2].clone(), (4, 6), (0, 0)), Shard("c", c[:5].clone(), (10,), (0,))],
            [
                Shard("a", a[2:].flatten()[:7].clone(), (4, 6), (2, 0), (2, 6), (0, 7)),
                Shard("a", a[2:].flatten()[7:].clone(), (4, 6), (2, 0), (2, 6), (7, 12)),
                Shard("b", b, (7,), (0,)),
                Shard("c", c[5:].clone(), (10,), (5,)),
            ],
        ],
        extra={"step": 3},
    )
    return tmp_path / "ck"


def attempt(path: Path) -> str:
    """Load; "right", or the code of the error. Wrong data fail the test."""
    begun = time.monotonic()
    targets = {name: torch.full_like(t, -1) for name, t in tensors().items()}
    failure = None
    try:
        flexckpt.load(targets, path)
    except FlexckptError as error:
        failure = error
    assert time.monotonic() - begun < 20
    if failure is not None:
        assert len(str(failure)) < 2000
        return failure.code
    for name, tensor in tensors().items():
        assert torch.equal(targets[name], tensor), name
    return "right"


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the index as someone would who knows the format."""
    fields = json.loads((path / "index.json").read_text())
    change(fields)
    fields["checksum"] = "0" * 16
    text = signed(json.dumps(fields, separators=(",", ":")))
    (path / "index.json").write_text(text)


def shards(fields: dict[str, Any], key: str = "a") -> list[Any]:
    rows: list[Any] = fields["tensors"][key]["weight"]["shards"]
    return rows


def test_the_untouched_checkpoint_is_right(ck: Path) -> None:
    assert attempt(ck) == "right"
    rewrite(ck, lambda fields: None)
    assert attempt(ck) == "right"
    assert flexckpt.verify(ck) == ("flexckpt", 6, 24 * 4 + 7 * 2 + 10 * 4)


@pytest.mark.parametrize("name", FILES)
def test_cut_files(ck: Path, name: str) -> None:
    whole = (ck / name).read_bytes()
    for length in [0, 1, 7, 8, 9, 63, 64, *range(100, len(whole), 37), len(whole) - 1]:
        (ck / name).write_bytes(whole[:length])
        assert attempt(ck) in ("CKP103", "CKP101"), length
    (ck / name).write_bytes(whole + b"\0")
    assert attempt(ck) in ("CKP103", "CKP107")
    (ck / name).unlink()
    assert attempt(ck) in ("CKP102", "NET103") or name == "index.json"


def test_flipped_bits_of_the_index(ck: Path) -> None:
    whole = (ck / "index.json").read_bytes()
    chance = random.Random(5)
    for _ in range(400):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (ck / "index.json").write_bytes(data)
        assert attempt(ck) != "right"


def test_flipped_bits_of_the_data_are_found_by_verify(ck: Path) -> None:
    index = json.loads((ck / "index.json").read_text())
    spans = [(row[0], row[1], key) for key in "abc" for row in shards(index, key)]
    for file, position, key in spans:
        path = ck / FILES[1 + file]
        whole = path.read_bytes()
        data = bytearray(whole)
        data[position] ^= 4
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=rf"CKP107.*'{key}'.*{path.name}"):
            flexckpt.verify(ck)
        path.write_bytes(whole)
    assert flexckpt.verify(ck).shards == 6


def test_files_of_another_checkpoint(ck: Path, tmp_path: Path) -> None:
    one, two = ck / FILES[1], ck / FILES[2]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert attempt(ck) == "CKP103"
    two.write_bytes(second)
    twin = tmp_path / "twin"
    flexckpt.save(tensors(), tmp_path / "x")
    flexckpt.save({n: t + 1 for n, t in tensors().items()}, twin)
    (tmp_path / "x" / FILES[1]).write_bytes((twin / FILES[1]).read_bytes())
    assert attempt(tmp_path / "x") == "CKP103"
    with pytest.raises(CheckpointError, match="CKP103"):
        flexckpt.verify(tmp_path / "x")


def test_what_is_not_a_file(ck: Path) -> None:
    for name in FILES:
        whole = (ck / name).read_bytes()
        (ck / name).unlink()
        os.mkfifo(ck / name)
        assert attempt(ck) in ("CKP101", "CKP103"), name
        (ck / name).unlink()
        (ck / name).mkdir()
        assert attempt(ck) in ("CKP101", "CKP103"), name
        (ck / name).rmdir()
        (ck / name).symlink_to(name)
        assert attempt(ck) in ("CKP101", "CKP102", "CKP103", "NET103"), name
        (ck / name).unlink()
        (ck / name).write_bytes(whole)
    assert attempt(ck) == "right"


NAMES = [
    "../x",
    "/etc/passwd",
    "a/b",
    "..",
    ".",
    "",
    "a\0b",
    "C:\\x",
    "..\\x",
    3,
    None,
    [],
    "x" * 300,
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_that_leave_the_folder(ck: Path, name: Any) -> None:
    def change(fields: dict[str, Any]) -> None:
        fields["files"][1][0] = name

    rewrite(ck, change)
    assert attempt(ck) in ("CKP103", "CKP106", "CKP102", "NET103")


HUGE = [2**31, 2**62, 2**63, 2**64, 10**400, -1, -(2**63), 1.5, "1", None, True, [], {}, [[]]]


def test_numbers_of_the_index(ck: Path) -> None:
    whole = (ck / "index.json").read_text()
    refused = 0

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        found = [path] if path else []
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in items:
                found += places(part, (*path, key))
        return found

    for place in places(json.loads(whole)):
        if place[0] in ("checksum", "extra"):
            continue
        for wrong in HUGE:
            if wrong is None and place[-1] == 4:
                continue  # no flattened range: another shard, which is as good as any

            def change(fields: Any, place: Any = place, wrong: Any = wrong) -> None:
                for step in place[:-1]:
                    fields = fields[step]
                fields[place[-1]] = wrong

            rewrite(ck, change)
            refused += attempt(ck) != "right"
            (ck / "index.json").write_text(whole)
    assert refused > 1000


def test_missing_fields(ck: Path) -> None:
    whole = (ck / "index.json").read_text()

    def drop(*path: Any) -> Callable[[Any], None]:
        def change(fields: Any) -> None:
            for step in path[:-1]:
                fields = fields[step]
            del fields[path[-1]]

        return change

    weight = ("tensors", "a", "weight")
    for path in (
        ("version",), ("files",), ("tensors",), ("extra",), ("files", 0), ("files", 1, 2),
        ("tensors", "a"), weight, (*weight, "shape"), (*weight, "dtype"), (*weight, "shards"),
        (*weight, "shards", 0), (*weight, "shards", 1, 3),
    ):  # fmt: skip
        rewrite(ck, drop(*path))
        assert attempt(ck) != "right", path
        (ck / "index.json").write_text(whole)


def test_bytes_that_stand_for_more_than_they_are(ck: Path) -> None:
    def repeat(fields: dict[str, Any]) -> None:
        row = shards(fields, "b")[0]
        fields["tensors"]["big"] = {
            "weight": {
                "dtype": "I16",
                "shape": [7 * 100_000],
                "shards": [[row[0], row[1], [7 * n], [7], None, None] for n in range(100_000)],
            }
        }

    rewrite(ck, repeat)
    for use in (lambda: flexckpt.verify(ck), lambda: flexckpt.convert(ck, ck.parent / "out")):
        with pytest.raises(CheckpointError, match="CKP103"):
            use()


def test_shapes_without_elements_are_no_way_around_the_limits(ck: Path) -> None:
    for shape in ([2**40, 2**40, 0], [0] * 65, [0] * 100_000):

        def change(fields: dict[str, Any], shape: list[int] = shape) -> None:
            fields["tensors"]["a"]["weight"].update(shape=shape, shards=[])

        rewrite(ck, change)
        assert attempt(ck) == "CKP103"


def test_shards_that_overlap_in_many_ways_end_soon(ck: Path) -> None:
    count = 40_000
    size = 3 * count

    def change(fields: dict[str, Any]) -> None:
        fields["files"][0][1] += 2**50  # of a file that this rank does not see
        fields["files"][0][0] = "elsewhere.safetensors"
        rows = [[0, 4 * n, [n, n], [size - count, size - count], None, None] for n in range(count)]
        fields["tensors"]["big"] = {
            "weight": {"dtype": "U8", "shape": [size, size], "shards": rows}
        }

    rewrite(ck, change)
    begun = time.monotonic()
    with pytest.raises(CheckpointError, match=r"CKP202.*overlap in too many ways"):
        flexckpt.verify(ck)
    assert time.monotonic() - begun < 60


def test_deep_and_repeated_json(ck: Path) -> None:
    good = (ck / "index.json").read_text()
    for text in (
        '{"format":"flexckpt","version":1,' + '"a":{' * 100_000,
        '{"format":"flexckpt","version":1,"x":' + "[" * 100_000 + "]" * 100_000 + "}",
        '["flexckpt"]', '"flexckpt"', '{"format":"flexckpt"}', "\ufeff" + good,
        good.replace('"version":1', '"version":2'), good.replace('"version":1', '"version":NaN'),
    ):  # fmt: skip
        (ck / "index.json").write_text(text)
        assert attempt(ck) in ("CKP101", "CKP103", "CKP107", "CKP109")
