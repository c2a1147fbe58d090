# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What has no counterpart in the kernels is refused by name, and nothing else is disturbed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers.utils.generic import is_flash_attention_requested  # noqa: E402

from flashmask.interop.transformers import NAME, attention_forward  # noqa: E402
from tests.flashmask.interop.models import GQA, decoder, tokens  # noqa: E402
from tests.house.project import ROOT  # noqa: E402


def call(mask: Any = None, rows: int = 4, **arguments: Any) -> Any:
    query, key = torch.randn(1, 2, rows, 8), torch.randn(1, 1, 4, 8)
    return attention_forward(torch.nn.Module(), query, key, key, mask, **arguments)[0]


@pytest.mark.parametrize(
    "name",
    ["softcap", "position_bias", "head_mask", "indices", "block_indices", "cu_seq_lens_q"],
)
def test_argument_is_named(name):
    with pytest.raises(NotImplementedError, match=rf"does not support {name} \("):
        call(**{name: torch.ones(1)})


def test_softcap_of_a_model():
    config = transformers.Gemma2Config(**GQA)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    with pytest.raises(NotImplementedError, match="softcap"):
        model(tokens())


def test_dropout_in_training_only():
    model = decoder("llama")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    model.eval()(tokens())
    with pytest.raises(NotImplementedError, match=r"no dropout, but the layer asks for 0\.1"):
        model.train()(tokens())


def test_output_attentions():
    with pytest.raises(NotImplementedError, match="output_attentions=True is not supported"):
        decoder("llama")(tokens(), output_attentions=True)


@pytest.mark.parametrize("mask", [torch.zeros(1, 1, 4, 4), torch.ones(1, 4, dtype=torch.bool)])
def test_mask_of_another_kind(mask):
    with pytest.raises(TypeError, match="takes bounds"):
        call(mask)


def test_causal_without_mask_and_with_other_lengths():
    with pytest.raises(ValueError, match="2 queries and 4 keys"):
        call(rows=2)
    assert call(rows=1).shape == (1, 1, 2, 8)
    assert call(rows=2, is_causal=False).shape == (1, 2, 2, 8)


def test_window_without_mask():
    bounds = torch.tensor([2, 3, 4, 4], dtype=torch.int32).reshape(1, 1, 4, 1)
    torch.manual_seed(1)
    got = call(sliding_window=2)
    torch.manual_seed(1)
    assert torch.equal(got, call(bounds))


def test_other_names_are_still_flash_attention():
    for name, want in ((NAME, False), ("flash_attention_2", True), ("sdpa", False), (None, False)):
        assert is_flash_attention_requested(requested_attention_implementation=name) is want
    assert is_flash_attention_requested(
        requested_attention_implementation="flash_attention_3", version=3
    )
    with pytest.raises(ValueError, match="ambiguous"):
        is_flash_attention_requested(decoder("llama").config, NAME)


MISSING = """
import sys
sys.modules["transformers"] = None
import flashmask.interop
try:
    import flashmask.interop.transformers
except ImportError as error:
    print(error)
"""


def test_missing_library_names_the_extra():
    command = [sys.executable, "-c", MISSING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "paddle-on-torch[transformers]" in done.stdout
