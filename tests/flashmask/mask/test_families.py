# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Every builder against the definition of its family: which row sees which column."""

import itertools
import sys

import numpy as np
import pytest
import torch

from flashmask import masks

S = 96
LENGTHS = [20, 1, 33, 0, 42]
PARTS = [[10, 4, 6], [5, 9], [30], [12, 0, 8, 12]]
PREFIXES = [(5, 20), (0, 1), (33, 33), (10, 42)]
SPANS = [(3, 10), (10, 12), (40, 96)]
BLOCKS = [20, 30, 46]

i = np.arange(S)[:, None]
j = np.arange(S)[None, :]


def ids(lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


def same(labels):
    return labels[:, None] == labels[None, :]


def starts(lengths):
    return np.repeat(np.cumsum(lengths) - lengths, lengths)


def shared_question():
    document = ids([sum(parts) for parts in PARTS])
    part = ids(list(itertools.chain(*PARTS)))
    question = np.concatenate([np.arange(sum(p)) < p[0] for p in PARTS])
    return (i >= j) & same(document) & (question[None, :] | same(part))


def prefix_lm_document():
    lengths = [length for _, length in PREFIXES]
    prefix = np.repeat([p for p, _ in PREFIXES], lengths)
    in_prefix = np.arange(S) - starts(lengths) < prefix
    return same(ids(lengths)) & ((i >= j) | in_prefix[None, :])


def qk_sparse():
    visible = i >= j
    for start, stop in SPANS:
        visible &= ~((i >= start) & (i < stop) & (j >= start) & (j < stop))
    return visible


def causal_blockwise():
    block = ids(BLOCKS)
    return (i >= j) & (same(block) | (block == len(BLOCKS) - 1)[:, None])


def global_window():
    return (i < 4) | (j < 4) | ((i - j <= 9) & (j - i <= 6))


FAMILIES = {
    "full": (lambda: masks.full(S), True | (i >= j)),
    "causal": (lambda: masks.causal(S), i >= j),
    "window": (lambda: masks.sliding_window(S, window=7), (i >= j) & (i - j < 7)),
    "two sided": (
        lambda: masks.sliding_window(S, left=5, right=2),
        (i - j >= -2) & (i - j <= 5),
    ),
    "left only": (lambda: masks.sliding_window(S, left=5), i - j <= 5),
    "right only": (lambda: masks.sliding_window(S, right=3), j - i <= 3),
    "causal document": (lambda: masks.causal_document(LENGTHS), (i >= j) & same(ids(LENGTHS))),
    "document": (lambda: masks.document(LENGTHS), same(ids(LENGTHS))),
    "shared question": (lambda: masks.shared_question(PARTS), shared_question()),
    "global window": (
        lambda: masks.global_sliding_window(S, num_global=4, left=9, right=6),
        global_window(),
    ),
    "causal blockwise": (lambda: masks.causal_blockwise(BLOCKS), causal_blockwise()),
    "prefix": (lambda: masks.prefix_lm(S, 17), (i >= j) | (j < 17)),
    "prefix document": (lambda: masks.prefix_lm_document(PREFIXES), prefix_lm_document()),
    "qk sparse": (lambda: masks.qk_sparse(S, SPANS), qk_sparse()),
    "block causal": (lambda: masks.block_causal(S, block=10), i // 10 >= j // 10),
    "sink": (
        lambda: masks.attention_sink(S, sink=3, window=8),
        (i >= j) & ((j < 3) | (i - j < 8)),
    ),
    "document window": (
        lambda: masks.document_window(LENGTHS, window=6),
        (i >= j) & same(ids(LENGTHS)) & (i - j < 6),
    ),
    "chunked": (lambda: masks.chunked_local(S, chunk=25), (i >= j) & (i // 25 == j // 25)),
    "key padding": (lambda: masks.key_padding(S, 70), (i >= j) & (j < 70)),
    "key padding, both sides": (
        lambda: masks.key_padding(S, 70, causal=False),
        (j < 70) & (i >= 0),
    ),
    "left padding": (lambda: masks.left_padding(S, 13), (i >= j) & (j >= 13)),
    "left padding, both sides": (
        lambda: masks.left_padding(S, 13, causal=False),
        (j >= 13) & (i >= 0),
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_family_sees_what_it_should(name):
    build, visible = FAMILIES[name]
    mask = build()
    assert mask.startend_row_indices.shape[:3] == (1, 1, S)
    assert np.array_equal(mask.to_dense()[0, 0].numpy(), visible)


@pytest.mark.parametrize(
    "build",
    [
        masks.full,
        masks.causal,
        lambda n, **k: masks.sliding_window(n, window=7, **k),
        lambda n, **k: masks.sliding_window(n, left=5, right=2, **k),
        lambda n, **k: masks.attention_sink(n, sink=3, window=8, **k),
        lambda n, **k: masks.global_sliding_window(n, num_global=4, left=9, right=6, **k),
        lambda n, **k: masks.prefix_lm(n, 17, **k),
        lambda n, **k: masks.block_causal(n, block=10, **k),
        lambda n, **k: masks.key_padding(n, 40, **k),
        lambda n, **k: masks.left_padding(n, 13, causal=False, **k),
    ],
)
def test_fewer_rows_are_the_last_rows(build):
    square = build(S)
    dense = square.to_dense()[0, 0]
    for rows in (0, 1, 33, S):
        assert torch.equal(build(S, seqlen_q=rows).to_dense()[0, 0], dense[S - rows :])
        assert torch.equal(square.last_rows(rows).to_dense()[0, 0], dense[S - rows :])


def test_more_rows_than_keys_come_before_all_keys():
    position = np.arange(10)[:, None] - 4
    key = np.arange(6)[None, :]
    window = masks.sliding_window(6, window=2, seqlen_q=10).to_dense()[0, 0].numpy()
    assert np.array_equal(window, (position >= key) & (position - key < 2))
    both = masks.sliding_window(6, left=3, right=1, seqlen_q=10).to_dense()[0, 0].numpy()
    assert np.array_equal(both, (position - key <= 3) & (key - position <= 1))


UNLIMITED = {
    "window": (lambda n, rows: masks.sliding_window(S, window=n, seqlen_q=rows), masks.causal),
    "left": (lambda n, rows: masks.sliding_window(S, left=n, seqlen_q=rows), masks.full),
    "right": (lambda n, rows: masks.sliding_window(S, right=n, seqlen_q=rows), masks.full),
    "sink": (
        lambda n, rows: masks.attention_sink(S, sink=n, window=1, seqlen_q=rows),
        masks.causal,
    ),
    "sink window": (
        lambda n, rows: masks.attention_sink(S, sink=1, window=n, seqlen_q=rows),
        masks.causal,
    ),
    "around": (
        lambda n, rows: masks.global_sliding_window(
            S, num_global=1, left=n, right=n, seqlen_q=rows
        ),
        masks.full,
    ),
    "global": (
        lambda n, rows: masks.global_sliding_window(
            S, num_global=n, left=1, right=1, seqlen_q=rows
        ),
        masks.full,
    ),
    "block": (lambda n, rows: masks.block_causal(S, block=n, seqlen_q=rows), masks.full),
    "document window": (lambda n, _: masks.document_window([S], window=n), masks.causal),
    "chunk": (lambda n, _: masks.chunked_local(S, chunk=n), masks.causal),
}


@pytest.mark.parametrize("name", UNLIMITED)
@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 2**40, sys.maxsize])
def test_numbers_larger_than_everything_mean_no_limit(name, number):
    build, unlimited = UNLIMITED[name]
    mask = build(number, 7)  # documents and chunks have all rows
    assert torch.equal(mask.to_dense(), unlimited(S, seqlen_q=mask.seqlen_q).to_dense())


def test_hash_sparse_sees_its_bucket_in_sorted_order():
    rng = np.random.default_rng(3)
    q_bucket, k_bucket = rng.integers(0, 6, (2, 3, 50)), rng.integers(0, 6, (2, 3, 64))
    mask = masks.hash_sparse(torch.tensor(q_bucket), torch.tensor(k_bucket))
    q_order = masks.hash_order(torch.tensor(q_bucket)).numpy()
    k_order = masks.hash_order(torch.tensor(k_bucket)).numpy()
    for b, h in itertools.product(range(2), range(3)):
        q_position = np.arange(50)[:, None] + 14
        visible = (q_bucket[b, h][:, None] == k_bucket[b, h]) & (q_position >= np.arange(64))
        visible = visible[q_order[b, h]][:, k_order[b, h]]
        assert np.array_equal(mask.to_dense()[b, h].numpy(), visible)


def test_eviction_hides_a_key_from_its_row_on():
    at = torch.tensor([[3, 9, 6, 6, 9, 9, 9, 9, 9], [9, 2, 5, 7, 9, 8, 9, 9, 9]])
    visible = masks.eviction(at[None]).to_dense()[0].numpy()
    r, c = np.arange(9)[:, None], np.arange(9)[None, :]
    for head in range(2):
        assert np.array_equal(visible[head], (r >= c) & (r < at[head].numpy()[None]))


def test_random_eviction_keeps_the_cache_at_its_size():
    mask = masks.random_eviction(S, first_row=30, heads=2, batch=3, seed=5)
    assert mask.startend_row_indices.shape == (3, 2, S, 1)
    seen = mask.to_dense().sum(-1)
    assert torch.equal(seen, torch.arange(1, S + 1).clamp(max=30).expand(3, 2, S))
    again = masks.random_eviction(S, first_row=30, heads=2, batch=3, seed=5)
    assert torch.equal(mask.startend_row_indices, again.startend_row_indices)
    assert not torch.equal(mask.startend_row_indices[0, 0], mask.startend_row_indices[0, 1])


def tree_visible(parents):
    visible = np.zeros((len(parents), len(parents)), dtype=bool)
    for node in range(len(parents)):
        ancestor = node
        while ancestor != -1:
            visible[node, ancestor] = True
            ancestor = parents[ancestor]
    return visible


def random_preorder(rng, size):
    parents, path = [-1], [0]
    while len(parents) < size:
        if rng.integers(0, 3) == 0 and len(path) > 1:
            path.pop()
        else:
            parents.append(path[-1])
            path.append(len(parents) - 1)
    return parents


def test_tree_sees_its_ancestors():
    rng = np.random.default_rng(0)
    batch = [random_preorder(rng, 40), [*random_preorder(rng, 20), -1, *([20] * 19)]]
    mask = masks.tree(batch)
    for entry, parents in enumerate(batch):
        assert np.array_equal(mask.to_dense()[entry, 0].numpy(), tree_visible(parents))


def test_tree_after_a_context():
    parents = [-1, 0, 1, 0, 3, 3]
    mask = masks.tree(parents, context=5)
    chain = [-1, 0, 1, 2, 3, *[p + 5 for p in parents]]
    chain[5] = 4
    assert np.array_equal(mask.to_dense()[0, 0].numpy(), tree_visible(chain))
    assert mask.last_rows(6).to_dense()[0, 0, :, :5].all()


def test_tree_rejects_another_order():
    with pytest.raises(ValueError, match=r"preorder, but node 3 has parent 1"):
        masks.tree([-1, 0, 0, 1])


@pytest.mark.parametrize(
    "build",
    [masks.causal_document, masks.document, lambda x, **k: masks.document_window(x, window=9, **k)],
)
def test_batched_and_padded_documents(build):
    mask = build([[10, 20], [5, 5, 14], []], seqlen=32)
    assert mask.batch == 3
    visible = mask.to_dense()
    assert torch.equal(visible[0, 0, :30, :30], build([10, 20]).to_dense()[0, 0])
    assert torch.equal(visible[1, 0, :24, :24], build([5, 5, 14]).to_dense()[0, 0])
    assert not visible[0, 0, 30:].any()
    assert not visible[0, 0, :, 30:].any()
    assert not visible[2].any()


def test_lengths_may_be_a_tensor_or_nested_per_batch():
    lengths = torch.tensor([[10, 20], [15, 15]])
    assert torch.equal(
        masks.causal_document(lengths).startend_row_indices,
        masks.causal_document(lengths.tolist()).startend_row_indices,
    )
    assert masks.shared_question([PARTS, PARTS]).batch == 2
    assert masks.prefix_lm_document([PREFIXES, PREFIXES]).batch == 2
    assert masks.qk_sparse(S, [SPANS, [], [(0, 5)]]).batch == 3
    assert masks.qk_sparse(S, []).batch == 1
    assert masks.key_padding(S, torch.tensor([3, 96])).batch == 2
    assert masks.prefix_lm(S, [3, 4, 5]).batch == 3


BAD = {
    "unequal": (lambda: masks.document([[3], [4]]), "lengths must add up|must add up to the same"),
    "negative": (lambda: masks.causal_document([3, -1]), "at least 0, but is -1"),
    "too long": (lambda: masks.document([30, 4], seqlen=32), "at most seqlen=32"),
    "nesting": (lambda: masks.document([[[1]]]), "nested 1 deep"),
    "both windows": (lambda: masks.sliding_window(8, window=3, left=1), "not both"),
    "no window": (lambda: masks.sliding_window(8), "either window"),
    "negative window": (lambda: masks.sliding_window(8, window=-3), "window must be at least 0"),
    "prefix": (lambda: masks.prefix_lm(8, 9), "prefix must be at least 0 and at most 8"),
    "document prefix": (lambda: masks.prefix_lm_document([(5, 4)]), r"but holds \(5, 4\)"),
    "spans": (lambda: masks.qk_sparse(8, [(0, 4), (3, 6)]), r"but \(3, 6\) is or does"),
    "block": (lambda: masks.block_causal(8, block=0), "block must be at least 1"),
    "valid": (lambda: masks.key_padding(8, 9), "valid must be at least 0 and at most 8"),
    "buckets": (
        lambda: masks.hash_sparse(torch.zeros(2, 4), torch.zeros(3, 4)),
        "must agree in all but the last",
    ),
    "seqlen": (lambda: masks.causal(-1), "seqlen must be at least 0, but is -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_say_what_is_wrong(name):
    build, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        build()


def test_a_length_must_be_an_integer():
    with pytest.raises(TypeError, match=r"lengths must be an integer, but is 1.5"):
        masks.document([1.5, 2])


def test_lengths_from_numpy():
    expected = masks.causal_document([3, 5]).startend_row_indices
    for lengths in (np.array([3, 5]), [np.int64(3), np.int32(5)]):
        assert torch.equal(masks.causal_document(lengths).startend_row_indices, expected)


@pytest.mark.parametrize("wrong", ["abc", ["a", "b"]])
def test_text_is_not_a_list_of_lengths(wrong):
    with pytest.raises((TypeError, ValueError), match="lengths must be"):
        masks.causal_document(wrong)


def test_buckets_may_be_hashes_of_any_size():
    small = torch.tensor([2, 0, 1, 1, 0, 2, 0])
    large = small * 2**61 - 2**62
    assert torch.equal(
        masks.hash_sparse(large, large).startend_row_indices,
        masks.hash_sparse(small, small).startend_row_indices,
    )
