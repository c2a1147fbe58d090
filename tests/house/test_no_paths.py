# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The folders of the machine that built the module reach neither the binary nor its messages."""

import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import flashmask
import flashmask.ops
from tests.house.project import NATIVE_MODULE, ROOT

FOLDERS = {
    str(ROOT),
    str(Path.home()),
    sys.prefix,
    sys.base_prefix,
    sysconfig.get_path("purelib"),
    str(Path(torch.__file__).parent),
} - {"/", "/usr", "/usr/local"}

pytestmark = pytest.mark.skipif(not NATIVE_MODULE.exists(), reason="built with BUILD_NATIVE=0")


def test_binary_holds_no_build_folder():
    content = NATIVE_MODULE.read_bytes()
    assert [folder for folder in FOLDERS if folder.encode() in content] == []


BAD_CALLS = {
    "rank": lambda good: {"query": good[0]},
    "dtype": lambda good: {"key": good.double()},
    "heads": lambda good: {"key": good[:, :, :2], "value": good[:, :, :2]},
    "bounds": lambda good: {"startend_row_indices": torch.zeros(1, 1, 8, 3, dtype=torch.int32)},
}


@pytest.mark.parametrize("name", BAD_CALLS)
@pytest.mark.parametrize("through_op", [True, False], ids=["op", "function"])
def test_messages_hold_no_build_folder(name, through_op):
    good = torch.ones(1, 8, 3, 16)
    call = {"query": good, "key": good, "value": good, "startend_row_indices": None}
    call |= BAD_CALLS[name](good) | {"causal": False, "softmax_scale": 1.0}
    if through_op:
        function = torch.ops.flashmask.forward
        call |= {"block_mask": None, "plan": None}
    else:
        function = flashmask.flashmask_attention
    with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
        function(**call)
    message = str(caught.value)
    assert [
        folder for folder in {*FOLDERS, "site-packages", ".cpp", ".h:"} if folder in message
    ] == []
