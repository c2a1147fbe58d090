# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from vmm.errors import Invalid
from vmm.sim.models.torch_settings import UNLIMITED, TorchSettings

K, M, G = 1 << 10, 1 << 20, 1 << 30

# Request, and the block it is rounded to without and with 4 divisions of each power of two.
ROUNDED = [
    (1, 512, 512),
    (511, 512, 512),
    (512, 512, 512),
    (513, 1024, 1024),
    (2048, 2048, 2048),  # not above 4 x 512: as without
    (2049, 2560, 2560),  # 2048 / 4 = 512 steps
    (2561, 3072, 3072),
    (4097, 4608, 5120),  # 4096 / 4 = 1024 steps
    (5121, 5632, 6144),
    (7169, 7680, 8192),
    (M, M, M),
    (M + 1, M + 512, M + 256 * K),
    (19 * M, 19 * M, 20 * M),
    (20 * M, 20 * M, 20 * M),
    (3 * G + 1, 3 * G + 512, 3 * G + 512 * M),
]


@pytest.mark.parametrize(("size", "plain", "divided"), ROUNDED)
def test_rounding(size: int, plain: int, divided: int) -> None:
    assert TorchSettings().round(size) == plain
    assert TorchSettings.from_text("roundup_power2_divisions:4").round(size) == divided
    assert TorchSettings.from_text("roundup_power2_divisions:1").round(size) == plain


def test_divisions_for_each_power_of_two() -> None:
    settings = TorchSettings.from_text("roundup_power2_divisions:[4:1, 16:2, 64:8, >:16]")
    assert settings.roundup_divisions == (1, 1, 1, 0, 2, 0, 8, *(16,) * 9)
    assert settings.round(5 * M + 1) == 5 * M + 512
    assert settings.round(17 * M) == 24 * M
    assert settings.round(65 * M) == 72 * M
    assert settings.round(129 * M) == 136 * M
    # Beyond the last power, 32 GiB, its divisions are used.
    assert settings.round(70 * G) == 72 * G


# A block's size, and the segment that is asked for it.
SEGMENTS = [
    (512, 2 * M),
    (M, 2 * M),
    (M + 512, 20 * M),
    (10 * M - 512, 20 * M),
    (10 * M, 10 * M),
    (10 * M + 512, 12 * M),
    (11 * M, 12 * M),
    (33 * M, 34 * M),
]


@pytest.mark.parametrize(("size", "segment"), SEGMENTS)
def test_segment_sizes(size: int, segment: int) -> None:
    assert TorchSettings().segment_size(size) == segment


def test_all_settings_as_text() -> None:
    settings = TorchSettings.from_text(
        "max_split_size_mb:200,max_non_split_rounding_mb: 50 ,large_segment_size_mb:40,"
        "garbage_collection_threshold:0.8,expandable_segments:False,backend:native,"
    )
    assert settings == TorchSettings(200 * M, 50 * M, 40 * M, 0.8)
    assert settings.segment_size(5 * M) == 40 * M
    assert TorchSettings.from_text("") == TorchSettings()


def test_settings_of_a_snapshot() -> None:
    table = {1 << power: 0 for power in range(16)} | {4: 8}
    settings = TorchSettings.from_snapshot(
        {
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,max_non_split_rounding_mb:30,new:1",
            "max_split_size": 64 * M,
            "garbage_collection_threshold": 0.5,
            "expandable_segments": False,
            "a_key_of_the_future": 3,
            "roundup_power2_divisions": table,
        }
    )
    assert settings == TorchSettings(64 * M, 30 * M, 20 * M, 0.5, (0, 0, 8, *(0,) * 13))
    for unlimited in (-1, (1 << 63) - 1):
        read = TorchSettings.from_snapshot({"max_split_size": unlimited})
        assert read.max_split_size == UNLIMITED
    assert TorchSettings.from_snapshot({}) == TorchSettings()


WRONG = {
    "max_splt_size_mb:20": "'max_splt_size_mb' is no setting of torch's allocator",
    "max_split_size_mb": "'max_split_size_mb' is not of the form key:value",
    "max_split_size_mb:": "is not of the form key:value",
    "max_split_size_mb:x": "max_split_size_mb is 'x', not a positive number",
    "max_split_size_mb:-4": "not a positive number",
    "max_split_size_mb:19": "max_split_size_mb is 19, but at least 20",
    "max_split_size_mb:32,large_segment_size_mb:40": "max_split_size_mb is 32, but at least 40",
    "max_non_split_rounding_mb:19": "max_non_split_rounding_mb is 19, but at least 20",
    "large_segment_size_mb:10": "large_segment_size_mb is 10, but at least 11",
    "garbage_collection_threshold:1.0": "is 1.0, not between 0 and 1",
    "garbage_collection_threshold:nan": "is 'nan', not a positive number",
    "roundup_power2_divisions:3": "has 3, which is no power of two",
    "roundup_power2_divisions:[4:x]": "is 'x', not a positive number",
    "roundup_power2_divisions:[4]": "'4' is not of the form key:value",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_settings_are_named(text: str) -> None:
    with pytest.raises(Invalid, match=re.escape(WRONG[text])):
        TorchSettings.from_text(text)


def test_wrong_settings_of_a_snapshot_are_named() -> None:
    with pytest.raises(Invalid, match="no table of numbers"):
        TorchSettings.from_snapshot({"roundup_power2_divisions": {"x": 1}})
    with pytest.raises(Invalid, match="the size 0 MiB"):
        TorchSettings.from_snapshot({"roundup_power2_divisions": {0: 1}})


DIVISIONS = [
    "4",
    "[256:1,512:2,1024:4,>:8]",
    "[4:1,16:2,64:8,>:16]",
    "[64:8,>:1]",
    "[1:16,32768:2]",
    "[8:4,2:2]",
    "[>:4]",
    "[2:8,1048576:4]",
]
_ASK_TORCH = """
import ctypes, json, pathlib, sys, torch
name = "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm"
try:
    ask = getattr(ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib/libc10.so")), name)
except (AttributeError, OSError):
    sys.exit("no symbol")
ask.argtypes, ask.restype = [ctypes.c_size_t], ctypes.c_size_t
answers = []
for text in json.loads(sys.argv[1]):
    torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:" + text)
    answers.append([ask(1 << power) for power in range(9, 42)])
print(json.dumps(answers))
"""


def test_divisions_are_those_of_the_installed_torch() -> None:
    command = [sys.executable, "-c", _ASK_TORCH, json.dumps(DIVISIONS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "no symbol" in done.stderr:
        pytest.skip("this torch shows no function that tells its divisions")
    for text, answer in zip(DIVISIONS, json.loads(done.stdout), strict=True):
        ours = TorchSettings.from_text(f"roundup_power2_divisions:{text}").roundup_divisions
        assert [ours[min(max(power - 20, 0), 15)] for power in range(9, 42)] == answer, text
