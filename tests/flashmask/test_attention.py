# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Shapes, dtypes, heads and corner cases of the attention itself."""

import pytest
import torch

from flashmask import flashmask_attention
from tests.flashmask.oracle import FLOATS, INF, make_problem
from tests.flashmask.run import attend, check, same

DTYPES = list(FLOATS.values())


def random_bounds(B, heads, Sq, Sk, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (B, heads, Sk, count)
    return torch.randint(-3, Sq + 4, shape, dtype=torch.int32, generator=generator)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("D", [1, 3, 17, 40, 64, 80, 128, 192, 256])
def test_head_dims(backend, D, dtype):
    bounds = random_bounds(1, 1, 150, 150, 2)
    check(make_problem(1, 150, 150, 2, 1, D, D, dtype, bounds=bounds, causal=True), backend)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("D", "Dv"), [(64, 128), (192, 128), (40, 1), (5, 256)])
def test_value_head_dim_of_its_own(backend, D, Dv, dtype):
    check(make_problem(2, 130, 70, 2, 2, D, Dv, dtype, causal=True, lse_gradient=True), backend)


@pytest.mark.parametrize(
    ("Sq", "Sk"),
    [(1, 1), (1, 300), (300, 1), (127, 129), (128, 128), (129, 255), (257, 31), (2, 5)],
)
@pytest.mark.parametrize("causal", [True, False])
def test_sizes_around_the_tile(backend, Sq, Sk, causal):
    bounds = random_bounds(2, 1, Sq, Sk, 2, seed=Sq)
    problem = make_problem(
        2, Sq, Sk, 4, 2, 24, 24, torch.float32, bounds=bounds, causal=causal, lse_gradient=True
    )
    check(problem, backend)


@pytest.mark.parametrize(
    ("causal", "count"), [(True, 0), (True, 1), (True, 2), (False, 0), (False, 2), (False, 4)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_forms_of_bounds(backend, causal, count, dtype):
    bounds = random_bounds(2, 1, 200, 180, count, seed=count) if count else None
    check(make_problem(2, 200, 180, 2, 2, 32, 32, dtype, bounds=bounds, causal=causal), backend)


@pytest.mark.parametrize(("Hq", "Hk"), [(6, 6), (6, 3), (6, 2), (6, 1)])
@pytest.mark.parametrize("mask", ["one", "key", "query"])
def test_heads(backend, Hq, Hk, mask):
    heads = {"one": 1, "key": Hk, "query": Hq}[mask]
    bounds = random_bounds(2, heads, 140, 140, 2, seed=Hk)
    problem = make_problem(2, 140, 140, Hq, Hk, 16, 16, torch.float32, bounds=bounds, causal=True)
    check(problem, backend)


@pytest.mark.parametrize("with_bounds", [True, False])
@pytest.mark.parametrize(("bounds_heads", "block_heads"), [(1, 1), (1, 4), (4, 1), (2, 4), (4, 2)])
def test_block_mask(backend, with_bounds, bounds_heads, block_heads):
    generator = torch.Generator().manual_seed(block_heads)
    blocks = torch.randint(0, 2, (2, block_heads, 3, 4), dtype=torch.int32, generator=generator)
    problem = make_problem(
        2,
        300,
        390,
        4,
        2,
        16,
        16,
        torch.float32,
        bounds=random_bounds(2, bounds_heads, 300, 390, 2) if with_bounds else None,
        causal=True,
        block_mask=blocks,
    )
    check(problem, backend)


def test_any_nonzero_block_is_kept(backend):
    problem = make_problem(1, 200, 200, 1, 1, 8, 8, torch.float32)
    problem.block_mask = torch.tensor([[[[7, 0], [-1, 1]]]], dtype=torch.int32)
    check(problem, backend)


EMPTY = [
    (0, 9, 9, 2, 1),
    (2, 0, 9, 2, 1),
    (2, 9, 0, 2, 1),
    (2, 0, 0, 2, 1),
    (2, 9, 9, 0, 1),
    (2, 9, 9, 0, 0),
]


@pytest.mark.parametrize(("B", "Sq", "Sk", "Hq", "Hk"), EMPTY)
@pytest.mark.parametrize("masked", [True, False])
def test_empty(backend, B, Sq, Sk, Hq, Hk, masked):
    problem = make_problem(B, Sq, Sk, Hq, Hk, 8, 5, torch.float32, lse_gradient=True)
    if masked:
        problem.bounds = torch.zeros(B, 1, Sk, 2, dtype=torch.int32)
        problem.block_mask = torch.ones(B, 1, -(-Sq // 128), -(-Sk // 128), dtype=torch.int32)
    result = attend(problem, backend)
    assert result.out.shape == (B, Sq, Hq, 5)
    assert result.lse.shape == (B, Hq, Sq)
    assert not result.out.any()
    assert (result.lse == -INF).all()
    for grad, tensor in zip(result.grads, (problem.query, problem.key, problem.value), strict=True):
        assert grad.shape == tensor.shape
        assert not grad.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_which_see_nothing_give_nothing(backend, dtype):
    bounds = torch.tensor([50, 90], dtype=torch.int32).expand(1, 1, 160, 2)
    problem = make_problem(
        1, 160, 160, 2, 1, 16, 16, dtype, bounds=bounds, causal=True, lse_gradient=True
    )
    clean = check(problem, backend)
    # Whatever their gradients hold, nothing of it may arrive anywhere.
    for poison in (float("nan"), INF):
        problem.grad_out[:, 50:90] = poison
        problem.grad_lse[:, :, 50:90] = poison
        for a, b in zip(attend(problem, backend).grads, clean.grads, strict=True):
            assert torch.equal(a, b)


def test_a_row_hidden_in_its_first_tiles_and_visible_later(backend):
    bounds = torch.zeros(1, 1, 700, 2, dtype=torch.int32)
    bounds[:, :, :600, 1] = 130  # rows below 130 see columns from 600 on only
    bounds[:, :, :, 0] = 300
    check(make_problem(1, 300, 700, 1, 1, 32, 32, torch.float32, bounds=bounds), backend)


@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_visible_nan_is_never_hidden(backend, where, dtype):
    problem = make_problem(1, 200, 200, 2, 2, 16, 16, dtype, causal=True)
    getattr(problem, where)[0, 150, 1, 3] = float("nan")
    result = attend(problem, backend)
    hit = [150] if where == "query" else range(150, 200)
    for row in hit:
        assert result.out[0, row, 1].isnan().any()
        if where != "value":
            assert result.lse[0, 1, row].isnan()
    # The other head knows nothing of it, nor do rows which do not see it. A value is an exception:
    # hidden ones are multiplied by 0, and 0 * NaN is NaN.
    assert not result.out[0, :, 0].isnan().any()
    if where != "value":
        assert not result.out[0, :150, 1].isnan().any()
    assert result.grads[0][0, 150, 1].isnan().any()


UNSEEN = {
    "lower": (0, 200, 0, 0),
    "upper": (200, 200, 0, 200),
    "both": (90, 200, 0, 140),
    "both, other order": (0, 140, 90, 200),
    "clamped": (-5, 900, 0, 0),
}


@pytest.mark.parametrize("bounds", UNSEEN.values(), ids=UNSEEN)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_that_no_row_sees_may_hold_anything(isa, dtype, bounds):
    """Padding: with the C++ kernels no NaN of it reaches an output or a gradient."""
    hidden = [0, 3, 130, 199]  # among others, which are seen
    mask = torch.tensor([200, 200, 0, 0], dtype=torch.int32).repeat(1, 1, 200, 1)
    mask[:, :, hidden] = torch.tensor(bounds, dtype=torch.int32)
    problem = make_problem(1, 200, 200, 4, 2, 24, 16, dtype, bounds=mask, lse_gradient=True)
    clean = check(problem, "cpu")
    problem.key[:, hidden] = problem.value[:, hidden] = float("nan")
    assert same(clean, attend(problem, "cpu"))
    assert not clean.grads[1][:, hidden].any()
    assert not clean.grads[2][:, hidden].any()


@pytest.mark.parametrize("before", [0, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_visible_nan_beside_a_large_score(isa, dtype, before):
    """Wherever they are: a maximum of vectors may lose either of them, and the row must not.

    With other keys `before`, there is a maximum already.
    """
    width = 33
    nan, large = (x.flatten() for x in torch.meshgrid(*[torch.arange(width)] * 2, indexing="ij"))
    nan, large = nan[nan != large], large[nan != large]
    rows = torch.arange(len(nan))
    key = torch.zeros(len(nan), before + width, 1, 16)
    key[rows, before + nan, 0, 0] = float("nan")
    key[rows, before + large, 0, 0] = 100
    query, value = torch.ones(len(nan), 1, 1, 16), torch.ones_like(key)
    out, lse = flashmask_attention(
        query.to(dtype), key.to(dtype), value.to(dtype), return_softmax_lse=True
    )
    assert out.isnan().all()
    assert lse.isnan().all()


@pytest.mark.parametrize("large", [-3e4, 3e4])
def test_scores_far_from_zero(backend, large):
    problem = make_problem(1, 140, 140, 1, 1, 4, 4, torch.float32, causal=True)
    problem.query[..., 0], problem.key[..., 0] = 1.0, large  # no stand-in for -inf would do
    result = attend(problem, backend)
    assert result.lse.isfinite().all()
    assert result.out.abs().amax(-1).gt(0).all()


@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0])
def test_softmax_scale_with_and_without_bounds(backend, scale):
    for bounds in (None, random_bounds(1, 1, 90, 90, 2)):
        problem = make_problem(1, 90, 90, 2, 1, 16, 16, torch.float32, bounds=bounds, causal=True)
        problem.softmax_scale = scale
        check(problem, backend)


def test_the_default_scale(backend):
    problem = make_problem(1, 90, 90, 1, 1, 16, 16, torch.float32)
    given = attend(problem, backend, softmax_scale=0.25)
    assert torch.equal(attend(problem, backend).out, given.out)


@pytest.mark.parametrize(("Sq", "Sk"), [(90, 90), (40, 90), (90, 40)])
@pytest.mark.parametrize("window", [0, 7, (3, 11), (2**31, 0), [0, 200]])
@pytest.mark.parametrize("causal", [True, False])
def test_window_size(backend, Sq, Sk, window, causal):
    left, right = (window, window) if isinstance(window, int) else window
    problem = make_problem(2, Sq, Sk, 2, 1, 16, 16, torch.float32)
    ours = attend(problem, backend, window_size=window, causal=causal)
    position = torch.arange(Sq)[:, None] + Sk - Sq
    keys = torch.arange(Sk)[None, :]
    seen = (keys >= position - left) & (keys <= position + (0 if causal else right))
    q, k, v = (t.transpose(1, 2).double() for t in (problem.query, problem.key, problem.value))
    scores = (q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 4).masked_fill(~seen, -INF)
    expected = scores.softmax(-1).nan_to_num(0) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(ours.out.double().transpose(1, 2), expected, atol=2e-5, rtol=0)


def test_results_never_alias_inputs(backend):
    q = torch.randn(1, 5, 1, 4)
    bounds = torch.full((1, 1, 5, 1), 5, dtype=torch.int32)
    out, lse = flashmask_attention(
        q, q, q, bounds, causal=True, return_softmax_lse=True, backend=backend
    )
    before = q.clone()
    out.zero_()
    lse.zero_()
    assert torch.equal(q, before)


def test_only_the_out_or_only_the_lse_may_get_a_gradient(backend):
    problem = make_problem(1, 70, 70, 2, 1, 8, 8, torch.float32, causal=True, lse_gradient=True)
    inputs = [t.requires_grad_() for t in (problem.query, problem.key, problem.value)]

    def outputs():
        return flashmask_attention(*inputs, causal=True, return_softmax_lse=True, backend=backend)

    both = torch.autograd.grad(outputs(), inputs, (problem.grad_out, problem.grad_lse))
    first = torch.autograd.grad(outputs()[0], inputs, problem.grad_out)
    second = torch.autograd.grad(outputs()[1], inputs, problem.grad_lse)
    for a, b, c in zip(both, first, second, strict=True):
        torch.testing.assert_close(a, b + c, atol=1e-5, rtol=1e-5)


def test_reference_is_exact_in_float64():
    problem = make_problem(1, 12, 12, 2, 1, 4, 3, torch.float64)
    bounds = random_bounds(1, 2, 12, 12, 2)
    inputs = [t.requires_grad_() for t in (problem.query, problem.key, problem.value)]

    def run(q, k, v):
        out, lse = flashmask_attention(
            q, k, v, bounds, causal=True, return_softmax_lse=True, backend="reference"
        )
        return out, lse.masked_fill(lse == -INF, 0)

    assert torch.autograd.gradcheck(run, inputs)


def test_reference_in_several_row_blocks(monkeypatch):
    from flashmask.impl import reference

    problem = make_problem(2, 100, 100, 2, 1, 8, 8, torch.float32, causal=True, lse_gradient=True)
    monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", 7 * 2 * 2 * 100)
    check(problem, "reference")


@pytest.mark.parametrize("size", [1e4, 1e6, 1.5e10, 1e16, 1e30])
def test_scores_of_any_size(isa, size):
    """The larger of two scores wins; the difference is exact whatever their size."""
    query = torch.tensor(size).reshape(1, 1, 1, 1)
    key, value = (torch.tensor(x).reshape(1, 2, 1, 1) for x in ([1.0, -1.0], [3.0, 5.0]))
    out, lse = flashmask_attention(
        query, key, value, softmax_scale=1.0, return_softmax_lse=True, backend="cpu"
    )
    assert out.item() == 3.0
    assert lse.item() == pytest.approx(size, rel=1e-6)


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e39, -1e300])
def test_extreme_scales_show_nan(isa, scale):
    query, key = torch.randn(1, 5, 1, 8), torch.randn(1, 9, 1, 8)
    query[0, 2] = float("nan")
    out = flashmask_attention(query, key, key, softmax_scale=scale, backend="cpu")
    assert out[0, 2].isnan().all()
    assert out[0, :2].isfinite().all()
    if scale == 0.0:
        torch.testing.assert_close(out[0, :2, 0], key.mean(1)[0].expand(2, 8))


def test_no_query_heads_with_a_block_mask(cpu_kernels):
    query = torch.randn(1, 5, 0, 8, requires_grad=True)
    key = torch.randn(1, 5, 2, 8, requires_grad=True)
    bounds = torch.zeros(1, 0, 5, 2, dtype=torch.int32)
    blocks = torch.ones(1, 2, 1, 1, dtype=torch.int32)
    flashmask_attention(query, key, key, bounds, block_mask=blocks).sum().backward()
    assert not key.grad.any()


@pytest.mark.parametrize(("heads_q", "heads_k"), [(8, 1), (12, 2), (33, 3)])
def test_many_query_heads_for_a_kv_head(backend, heads_q, heads_k):
    """Few kv heads: the backward pass is cut by query heads as well."""
    bounds = random_bounds(1, heads_q, 300, 300, 2)
    problem = make_problem(
        1, 300, 300, heads_q, heads_k, 32, 32, torch.float32, bounds=bounds, causal=True
    )
    check(problem, backend)


@pytest.mark.parametrize("large", [4.0, 16.0])
def test_half_precision_keeps_up_with_large_inputs(isa, large):
    """fp16 scores are exact products: outlier channels and large logits cost nothing."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 200, 2, 64) for _ in range(3))
    query, key = query * large, key * large
    query[..., 3] *= 30
    inputs = [x.half() for x in (query, key, value)]
    out = flashmask_attention(*inputs, causal=True, backend="cpu")
    exact = flashmask_attention(*(x.double() for x in inputs), causal=True, backend="reference")
    assert (out.double() - exact).abs().max() < 2e-3
