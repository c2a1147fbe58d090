# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Let the model write, one byte at a time."""

from __future__ import annotations

import torch

import flashmask
from packed_lm.data import EDGE
from packed_lm.model import Cache, Transformer
from packed_lm.training import autocast


@torch.no_grad()
def write(
    model: Transformer,
    prompt: str,
    length: int,
    generator: torch.Generator,
    temperature: float = 0.6,
) -> str:
    """Return the prompt and how the model goes on, up to `length` bytes or the document's end.

    The model must be one with FlashMask attention: after the prompt it asks about one row of a
    growing number of keys, and the causal triangle is aligned to the last row.
    """
    text = bytearray(EDGE + prompt.encode())
    caches = [Cache() for _ in model.blocks]
    seen = 0
    while len(text) <= length:
        tokens = torch.tensor([list(text[seen:])])
        positions = torch.arange(seen, len(text))[None]
        mask = flashmask.FlashMask(causal=True, seqlen_q=len(text) - seen, seqlen_k=len(text))
        with autocast():
            scores = model(tokens, positions, mask, caches=caches)[0, -1]
        seen = len(text)
        byte = int(torch.multinomial((scores / temperature).softmax(0), 1, generator=generator))
        if byte == EDGE[0]:
            break
        text.append(byte)
    return text[1:].decode(errors="replace")
