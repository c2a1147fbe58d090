# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Models compile as one graph, mask and all, and a new mask of the same size compiles nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tests.flashmask.interop.models import batch_of, decoder, encoder, kept, tokens


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def compiled(model: Any, backend: str = "aot_eager") -> Any:
    return torch.compile(model, fullgraph=True, backend=backend)


@pytest.mark.parametrize(
    ("name", "kind"), [("llama", "packed"), ("gemma3", "packed"), ("mistral", "left")]
)
def test_whole_graph_and_no_second_one(name, kind):
    model = decoder(name).train()
    fast = compiled(model)
    for attempt in range(2):
        inputs = batch_of(kind)
        if attempt:
            for key in inputs.keys() - {"input_ids"}:
                inputs[key] = inputs[key].flip(0)
        with torch.compiler.set_stance("fail_on_recompile" if attempt else "default"):
            got = fast(**inputs).logits
        want = model(**inputs).logits
        keep = kept(inputs)
        torch.testing.assert_close(got[keep], want[keep])
        weights = torch.randn_like(want)[keep]
        ours = torch.autograd.grad((got[keep] * weights).sum(), list(model.parameters()))
        theirs = torch.autograd.grad((want[keep] * weights).sum(), list(model.parameters()))
        torch.testing.assert_close(ours, theirs)


def test_encoder():
    model, inputs = encoder("bert"), batch_of("right")
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(**inputs).logits, model(**inputs).logits)


@pytest.mark.slow
def test_inductor():
    model, inputs = decoder("gemma3"), batch_of("packed")
    with torch.no_grad():
        got = compiled(model, "inductor")(**inputs).logits
        torch.testing.assert_close(got, model(**inputs).logits)


def test_unknown_function_is_refused():
    from types import SimpleNamespace

    from transformers import masking_utils

    config = SimpleNamespace(_attn_implementation="flashmask")

    def make(embeds: torch.Tensor) -> torch.Tensor:
        return masking_utils.create_bidirectional_mask(
            config, embeds, None, and_mask_function=lambda b, h, q, kv: kv != 3
        )

    with pytest.raises(Exception, match="cannot read the mask function"):
        torch.compile(make, fullgraph=True, backend="eager")(torch.zeros(1, 8, 4))


def test_other_attention_compiles_as_before():
    model, inputs = decoder("gemma3"), batch_of("packed")
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        got = compiled(model, "eager")(**inputs).logits
        torch.testing.assert_close(got, model(**inputs).logits)
        compiled(model, "eager")(tokens(1, 30))
