# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A builder for every family of masks that people use, named as its field names it."""

from flashmask.mask.families.documents import (
    causal_blockwise,
    causal_document,
    chunked_local,
    document,
    document_window,
    prefix_lm_document,
    shared_question,
)
from flashmask.mask.families.padding import key_padding, left_padding
from flashmask.mask.families.positions import (
    attention_sink,
    block_causal,
    causal,
    full,
    global_sliding_window,
    prefix_lm,
    sliding_window,
)
from flashmask.mask.families.sparse import (
    eviction,
    hash_order,
    hash_sparse,
    qk_sparse,
    random_eviction,
)
from flashmask.mask.families.trees import tree

__all__ = [
    "attention_sink",
    "block_causal",
    "causal",
    "causal_blockwise",
    "causal_document",
    "chunked_local",
    "document",
    "document_window",
    "eviction",
    "full",
    "global_sliding_window",
    "hash_order",
    "hash_sparse",
    "key_padding",
    "left_padding",
    "prefix_lm",
    "prefix_lm_document",
    "qk_sparse",
    "random_eviction",
    "shared_question",
    "sliding_window",
    "tree",
]
