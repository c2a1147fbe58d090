# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Choosing an implementation: by name or by device, and never silently another one."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashmask import backends, flashmask_attention, native

ROOT = Path(__file__).parents[2]


def test_names_and_defaults(cpu_kernels):
    assert backends.names() == ["cpu", "reference"]
    assert backends.available("cpu") == ["cpu", "reference"]
    assert backends.available("cuda") == ["reference"]
    assert backends.select(None, "cpu").name == "cpu"
    assert backends.select("reference", "cuda").name == "reference"


def test_every_row_names_ops_which_exist():
    import flashmask.ops  # noqa: F401

    for row in backends.TABLE:
        assert isinstance(getattr(torch.ops.flashmask, row.forward).default, torch._ops.OpOverload)
        assert isinstance(getattr(torch.ops.flashmask, row.backward).default, torch._ops.OpOverload)
    defaults = [device for row in backends.TABLE for device in row.default_for]
    assert len(defaults) == len(set(defaults))


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="one of cpu, reference, but is 'triton'"):
        backends.select("triton", "cpu")


def test_a_named_implementation_is_used_or_refused():
    with pytest.raises(ValueError, match="it runs on cpu only, not on cuda"):
        backends.select("cpu", "cuda")


def test_a_device_without_default_says_what_to_pass():
    with pytest.raises(ValueError, match='pass backend="reference"'):
        backends.select(None, "xla")


def test_meta_tensors_need_no_kernel():
    q = torch.empty(2, 6, 4, 8, device="meta")
    for backend in (None, "cpu", "reference"):
        out, lse = flashmask_attention(q, q, q, return_softmax_lse=True, backend=backend)
        assert out.device.type == lse.device.type == "meta"


MISSING = """
import sys
sys.modules["flashmask._C"] = None  # importing it raises ImportError
import torch
from flashmask import backends, flashmask_attention, native
assert native.load() is None
q = torch.randn(1, 4, 1, 8)
for backend in (None, "cpu"):
    try:
        flashmask_attention(q, q, q, backend=backend)
    except RuntimeError as error:
        text = str(error)
    assert "flashmask._C could not be loaded" in text, text
    assert 'backend="reference"' in text and "pip install" in text, text
assert flashmask_attention(q, q, q, backend="reference").shape == q.shape
try:
    torch.ops.flashmask.forward(q, q, q, None, None, None, False, 1.0)
except NotImplementedError as error:
    assert "could not be loaded" in str(error), error
try:
    torch.ops.flashmask.plan(None, None, 4, 4, False)
except NotImplementedError as error:
    assert "could not be loaded" in str(error), error
try:
    torch.ops.flashmask.forward(q, q, q[:, :3], None, None, None, False, 1.0)
except ValueError as error:
    assert "sequence length of key" in str(error), error
from flashmask.impl import cpu
try:
    cpu.available_isas()
except RuntimeError as error:
    assert "could not be loaded" in str(error), error
assert backends.available("cpu") == ["reference"]
print("done")
"""


def test_without_the_compiled_module_nothing_falls_back():
    done = subprocess.run(
        [sys.executable, "-c", MISSING], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_why_unavailable_is_silent_when_there_is_nothing_to_say(cpu_kernels):
    assert native.why_unavailable() is None


LAZY = """
import sys, torch
import flashmask
assert not [m for m in sys.modules if m.startswith("flashmask.")]
assert set(flashmask.__all__) <= set(dir(flashmask))
try:
    flashmask.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
assert callable(flashmask.flashmask_attention)
assert isinstance(flashmask.__version__, str)
"""


def test_public_names_are_loaded_on_first_use():
    subprocess.run([sys.executable, "-c", LAZY], cwd=ROOT, check=True, timeout=120)


def test_arguments_have_the_names_and_the_order_of_paddle():
    parameters = inspect.signature(flashmask_attention).parameters
    positional = ["query", "key", "value", "startend_row_indices"]
    assert [n for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY] == positional
    assert {n: p.default for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY} == {
        "causal": False,
        "window_size": None,
        "block_mask": None,
        "softmax_scale": None,
        "return_softmax_lse": False,
        "dropout": 0.0,
        "deterministic": True,
        "backend": None,
    }


def test_public_names():
    import flashmask

    for name in flashmask.__all__:
        assert getattr(flashmask, name) is not None
