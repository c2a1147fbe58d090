# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The masks that transformers makes: bounds hold the same as its dense masks, bit by bit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

from transformers import masking_utils  # noqa: E402

from flashmask import FlashMask, masks  # noqa: E402
from flashmask.interop.transformers import NAME, as_attention_mask, attention_bounds  # noqa: E402
from tests.flashmask.interop.models import (  # noqa: E402
    CACHE,
    Watch,
    batch_of,
    decoder,
    tokens,
    with_attention,
)

LENGTH = 24

CAUSAL = (
    "create_causal_mask",
    "create_sliding_window_causal_mask",
    "create_chunked_causal_mask",
)
BIDIRECTIONAL = ("create_bidirectional_mask", "create_bidirectional_sliding_window_mask")

PADDING = torch.ones(2, LENGTH, dtype=torch.bool)
PADDING[0, :5] = False
PADDING[1, 9] = False
PADDING[1, -3:] = False

POSITIONS = torch.stack(
    [
        torch.cat([torch.arange(10), torch.arange(14)]),
        torch.cat([torch.arange(3), torch.arange(1), torch.arange(20)]),
    ]
)

BLOCKS = torch.full((2, LENGTH), -1)
BLOCKS[0, 4:8] = 0
BLOCKS[0, 12:15] = 1
BLOCKS[1, 2:6] = 3


def make(function: str, attention: str, **arguments: Any) -> Tensor:
    config = SimpleNamespace(
        _attn_implementation=attention, sliding_window=5, attention_chunk_size=6
    )
    embeds = torch.zeros(2, LENGTH, 4)
    return getattr(masking_utils, function)(config=config, inputs_embeds=embeds, **arguments)


def dense(bounds: Tensor, rows: int = LENGTH) -> Tensor:
    assert bounds.dtype == torch.int32
    return FlashMask(bounds, seqlen_q=rows).to_dense()


@pytest.mark.parametrize("padding", [None, PADDING], ids=("", "padding"))
@pytest.mark.parametrize("positions", [None, POSITIONS], ids=("", "packed"))
@pytest.mark.parametrize("blocks", [None, BLOCKS], ids=("", "blocks"))
@pytest.mark.parametrize("function", CAUSAL)
def test_causal_families(function, blocks, positions, padding):
    arguments = {
        "attention_mask": padding,
        "position_ids": positions,
        "block_sequence_ids": blocks,
        CACHE: None,
    }
    want = make(function, "sdpa", allow_is_causal_skip=False, **arguments)
    with Watch(LENGTH) as watch:
        got = make(function, NAME, **arguments)
    assert watch.matrices == []
    assert torch.equal(dense(got).expand_as(want), want)


@pytest.mark.parametrize("padding", [None, PADDING], ids=("", "padding"))
@pytest.mark.parametrize("function", BIDIRECTIONAL)
def test_bidirectional_families(function, padding):
    want = make(function, "sdpa", attention_mask=padding, allow_is_bidirectional_skip=False)
    with Watch(LENGTH) as watch:
        got = make(function, NAME, attention_mask=padding)
    assert watch.matrices == []
    assert torch.equal(dense(got).expand_as(want), want)


def not_three(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return kv != 3


def shared_prefix(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (kv < 2) & (q < 6)


@pytest.mark.parametrize("function", CAUSAL + BIDIRECTIONAL)
@pytest.mark.parametrize(
    ("and_function", "or_function"),
    [(not_three, None), (None, shared_prefix), (not_three, shared_prefix)],
)
def test_functions_of_the_user(function, and_function, or_function):
    arguments = {
        "attention_mask": PADDING,
        "and_mask_function": and_function,
        "or_mask_function": or_function,
    }
    if function in CAUSAL:
        arguments[CACHE] = None
    want = make(function, "sdpa", **arguments)
    assert torch.equal(dense(make(function, NAME, **arguments)).expand_as(want), want)


def test_blocks_in_pieces_are_not_filled_up():
    blocks = torch.full((2, LENGTH), -1)
    blocks[:, 3:5] = blocks[:, 8:10] = 0  # one image, seen in two places
    arguments = {"attention_mask": None, CACHE: None, "block_sequence_ids": blocks}
    want = make("create_causal_mask", "sdpa", **arguments)
    assert torch.equal(dense(make("create_causal_mask", NAME, **arguments)), want)


@pytest.mark.parametrize(("offset", "length"), [(7, 9), (torch.tensor(7), 12)])
def test_offsets_and_room_to_come(offset, length):
    arguments = {"batch_size": 2, "q_length": 2, "kv_length": length, "q_offset": offset}
    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[0, :2] = False
    for function in (
        masking_utils.causal_mask_function,
        masking_utils.sliding_window_causal_mask_function(4),
        masking_utils.chunked_causal_mask_function(4, torch.tensor([2, 0])),
    ):
        arguments |= {"mask_function": function, "attention_mask": padding}
        want = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
        got = attention_bounds(**arguments)
        assert torch.equal(dense(got, 2).expand_as(want), want)


def test_too_many_intervals_name_the_function_and_the_column():
    def stripes(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q % 4 != 1

    with pytest.raises(ValueError, match=r"cannot express the mask function .*column 0"):
        make("create_bidirectional_mask", NAME, attention_mask=None, and_mask_function=stripes)


SHARED = masks.shared_question([[40, 20, 20], [30, 20, 14]])


def test_any_mask_through_a_model():
    model, ids = decoder("llama"), tokens(1, SHARED.seqlen_q)
    want = with_attention(model, "sdpa", torch.float32)(ids, attention_mask=SHARED.to_dense())
    for mask in (as_attention_mask(SHARED), SHARED.to_dense()):
        got = model(ids, attention_mask=mask)
        torch.testing.assert_close(got.logits, want.logits)


def test_padding_of_four_dimensions():
    model, inputs = decoder("llama"), batch_of("right")
    keep = inputs.pop("attention_mask").bool()
    want = with_attention(model, "sdpa", torch.float32)(
        **inputs, attention_mask=keep[:, None, None].expand(-1, 1, keep.shape[1], -1)
    )
    with Watch() as watch:
        got = model(**inputs, attention_mask=keep[:, None, None])
    assert watch.matrices == []
    torch.testing.assert_close(got.logits, want.logits)


def test_edited_mask_is_read_again():
    model, ids = decoder("llama"), tokens()
    mask = as_attention_mask(masks.causal_document([100, 44]))
    with torch.no_grad():
        first = model(ids, attention_mask=mask).logits
        mask.copy_(as_attention_mask(masks.causal_document([70, 74])))
        second = model(ids, attention_mask=mask).logits
        want = model(ids, attention_mask=mask.clone()).logits
    assert not torch.equal(first, second)
    assert torch.equal(second, want)


def test_every_factory_is_read():
    from flashmask.interop import mask_parts

    names = {factory.name for factory in mask_parts._FACTORY_OF_CODE.values()}
    assert names == {name for name in mask_parts.FACTORIES if hasattr(masking_utils, name)}
