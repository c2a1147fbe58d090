# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Logits and gradients of models equal those with the attention of torch; the op really runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

from flashmask.interop.transformers import NAME  # noqa: E402
from tests.flashmask.interop.models import (  # noqa: E402
    CONFIGS,
    ENCODERS,
    GQA,
    LENGTH,
    SIZES,
    WINDOW,
    Watch,
    batch_of,
    decoder,
    encoder,
    kept,
    tokens,
    with_attention,
)

DTYPES = (torch.float32, torch.bfloat16)

KINDS = ("plain", "left", "right", "packed")


def results(model: Any, inputs: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """Logits where there is no padding, and the gradient of every parameter, in float64."""
    logits = model(**inputs).logits.double()[kept(inputs)]
    (logits * weights[kept(inputs)]).sum().backward()
    found = {"logits": logits.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[name] = parameter.grad.double()
    return found


def assert_as_exact_as(
    model: Any, inputs: dict[str, Tensor], other: str = "sdpa", roundings: float = 1.0
) -> None:
    """Compares with the same model in float64, and with the error of another attention."""
    dtype = next(model.parameters()).dtype
    weights = torch.randn(*inputs["input_ids"].shape, SIZES["vocab_size"], dtype=torch.float64)
    exact = results(with_attention(model, other, torch.float64), inputs, weights)
    theirs = results(with_attention(model, other, dtype), inputs, weights)
    ours = results(model, inputs, weights)
    assert ours.keys() == exact.keys()
    for name, want in exact.items():
        rounding = roundings * torch.finfo(dtype).eps * want.abs().max()
        # One draw of another sum is a rough measure of what is due: a factor of 3.
        allowed = 3 * (theirs[name] - want).abs().max() + rounding
        assert (ours[name] - want).abs().max() <= allowed, name


@pytest.mark.parametrize("dtype", DTYPES, ids=("fp32", "bf16"))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_decoder_equals_sdpa(name, kind, dtype):
    assert_as_exact_as(decoder(name).to(dtype), batch_of(kind))


@pytest.mark.parametrize("dtype", DTYPES, ids=("fp32", "bf16"))
@pytest.mark.parametrize("kind", ["plain", "left", "right"])
@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_equals_sdpa(name, kind, dtype):
    assert_as_exact_as(encoder(name).to(dtype), batch_of(kind))


@pytest.mark.parametrize("kind", ["plain", "left"])
def test_attention_sinks_equal_eager(kind):
    config = transformers.GptOssConfig(
        **GQA, num_local_experts=2, num_experts_per_tok=1, sliding_window=WINDOW, use_cache=False
    )
    config._experts_implementation = "eager"  # the others have no float64
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.normal_(std=3)
    # The gradient of a sink is one number, summed over all rows.
    assert_as_exact_as(model, batch_of(kind), "eager", roundings=2 * (2 * LENGTH) ** 0.5)


@pytest.mark.parametrize("kind", ["plain", "right"])
def test_encoder_with_decoder_equals_sdpa(kind):
    config = transformers.BartConfig(
        vocab_size=SIZES["vocab_size"],
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        dropout=0.0,
        use_cache=False,
    )
    model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation=NAME)
    inputs = batch_of(kind)
    inputs["decoder_input_ids"] = tokens(length=10)
    ours = model(**inputs).logits
    theirs = with_attention(model, "sdpa", torch.float32)(**inputs).logits
    torch.testing.assert_close(ours, theirs)


# Encoders do not look at position_ids for packed sequences.
CALLS = [(name, kind) for name in CONFIGS for kind in KINDS]
CALLS += [(name, kind) for name in ENCODERS for kind in KINDS if kind != "packed"]


@pytest.mark.parametrize(("name", "kind"), CALLS)
def test_op_runs_and_no_matrix_is_made(name, kind):
    model = decoder(name) if name in CONFIGS else encoder(name)
    inputs = batch_of(kind)
    with Watch() as watch:
        model(**inputs).logits.sum().backward()
    assert watch.calls == SIZES["num_hidden_layers"]
    assert watch.matrices == []


def test_watch_sees_the_matrix_of_sdpa():
    model = with_attention(decoder("llama"), "sdpa", torch.float32)
    with Watch() as watch:
        model(**batch_of("left"))
    assert watch.calls == 0
    assert watch.matrices != []


def test_training_lowers_the_loss():
    model = decoder("qwen3").train()
    inputs = batch_of("packed")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = model(**inputs, labels=inputs["input_ids"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(use_reentrant):
    model = decoder("gemma3").train()
    inputs = batch_of("left")
    weights = torch.randn(2, LENGTH, SIZES["vocab_size"], dtype=torch.float64)
    want = results(with_attention(model, NAME, torch.float32).train(), inputs, weights)
    old = model.gradient_checkpointing_enable  # the older name
    enable = getattr(model, "activation_checkpointing_enable", old)
    enable({"use_reentrant": use_reentrant})
    for name, value in results(model, inputs, weights).items():
        assert torch.equal(value, want[name]), name


def test_autocast():
    model = decoder("llama")
    inputs = batch_of("packed")
    with torch.autocast("cpu", torch.bfloat16), Watch() as watch:
        ours = model(**inputs).logits
        theirs = with_attention(model, "sdpa", torch.float32)(**inputs).logits
    exact = with_attention(model, "sdpa", torch.float64)(**inputs).logits
    assert watch.calls == SIZES["num_hidden_layers"]
    error, allowed = (ours - exact).abs().max(), 2 * (theirs - exact).abs().max()
    assert error <= allowed + torch.finfo(torch.bfloat16).eps * exact.abs().max()
