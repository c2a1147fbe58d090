# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Greedy decoding finds the same tokens as with the attention of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tests.flashmask.interop.models import (
    CACHE,
    CONFIGS,
    SIZES,
    WINDOW,
    Watch,
    decoder,
    tokens,
    with_attention,
)

PROMPT = WINDOW + 6  # the window is full from the start

CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "without": {"use_cache": False},
    "chunks": {"prefill_chunk_size": 7},
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", CONFIGS)
def test_generate_equals_sdpa(name, cache):
    model = decoder(name, use_cache=True).eval()
    other = with_attention(model, "sdpa", torch.float32)
    mask = torch.ones(3, PROMPT, dtype=torch.long)
    mask[0, :9] = 0
    mask[1, : PROMPT - 1] = 0
    settings = {
        "attention_mask": mask,
        "max_new_tokens": 8,
        "min_new_tokens": 8,
        "do_sample": False,
        **CACHES[cache],
    }
    prompt = tokens(3, PROMPT)
    with Watch(-1) as watch:
        ours = model.generate(prompt, **settings)
    assert watch.calls >= 8 * SIZES["num_hidden_layers"]
    assert torch.equal(ours, other.generate(prompt, **settings))


def test_steps_equal_one_pass():
    model = decoder("mistral", use_cache=True).eval()
    ids = tokens(2, 2 * WINDOW)
    with torch.inference_mode():
        want = model(ids, use_cache=False).logits
        cache, found = None, []
        for piece in ids.split([WINDOW + 5, 1, 3, 1, WINDOW - 10], dim=1):
            out = model(piece, **{CACHE: cache})
            cache = out[CACHE]
            found.append(out.logits)
    torch.testing.assert_close(torch.cat(found, dim=1), want)
