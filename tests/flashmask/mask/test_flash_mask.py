# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The mask object: rules, immutability, plan, pytree, and its life under torch.compile."""

import copy
import dataclasses
import io
import pickle

import pytest
import torch
import torch.utils._pytree as pytree
from torch._dynamo.utils import counters

from flashmask import FlashMask, masks
from flashmask.mask import flash_mask, planning


def random_mask(seed=0, rows=16, columns=16, count=2):
    generator = torch.Generator().manual_seed(seed)
    bounds = torch.randint(
        0, rows + 1, (2, 3, columns, count), generator=generator, dtype=torch.int32
    )
    return FlashMask(bounds, causal=True, seqlen_q=rows)


def test_sizes_come_from_the_bounds():
    mask = FlashMask(torch.zeros(1, 1, 7, 2, dtype=torch.int32))
    assert (mask.seqlen_q, mask.seqlen_k, mask.causal, mask.batch, mask.heads) == (
        7,
        7,
        False,
        1,
        1,
    )
    plain = FlashMask(causal=True, seqlen_q=3, seqlen_k=5)
    assert (plain.batch, plain.heads, plain.device) == (1, 1, None)
    assert FlashMask(seqlen_q=4).seqlen_k == 4
    assert FlashMask(seqlen_k=4).seqlen_q == 4


def bounds(*shape, dtype=torch.int32):
    return torch.zeros(shape, dtype=dtype)


BAD = {
    "dtype": (
        lambda: FlashMask(bounds(1, 1, 4, 2, dtype=torch.int64)),
        TypeError,
        r"\.to\(torch.int32\)",
    ),
    "not a tensor": (lambda: FlashMask([[1, 2]]), TypeError, "must be a tensor, but is a list"),
    "rank": (lambda: FlashMask(bounds(1, 4, 2)), ValueError, r"4 dimensions .* \(1, 4, 2\)"),
    "one bound": (lambda: FlashMask(bounds(1, 1, 4, 1)), ValueError, "2 or 4 .* but has 1"),
    "causal with four": (
        lambda: FlashMask(bounds(1, 1, 4, 4), causal=True),
        ValueError,
        "1 or 2 bounds per column with causal=True, but has 4",
    ),
    "columns": (
        lambda: FlashMask(bounds(1, 1, 4, 2), seqlen_k=5),
        ValueError,
        r"seqlen_k=5, but its shape is \(1, 1, 4, 2\)",
    ),
    "no size": (lambda: FlashMask(causal=True), ValueError, "seqlen_k must be given"),
    "negative": (lambda: FlashMask(seqlen_q=-1), ValueError, "seqlen_q must be at least 0"),
    "block mask shape": (
        lambda: FlashMask(seqlen_q=200, seqlen_k=300, block_mask=bounds(1, 1, 2, 2)),
        ValueError,
        r"\[B, Hm, 2, 3\] for seqlen_q=200 and seqlen_k=300",
    ),
    "block mask dtype": (
        lambda: FlashMask(seqlen_q=8, block_mask=bounds(1, 1, 1, 1, dtype=torch.bool)),
        TypeError,
        "block_mask must have dtype torch.int32",
    ),
    "block mask batch": (
        lambda: FlashMask(bounds(2, 1, 8, 2), block_mask=bounds(3, 1, 1, 1)),
        ValueError,
        "batch of 1 or 2",
    ),
    "block mask heads": (
        lambda: FlashMask(bounds(1, 2, 8, 2), block_mask=bounds(1, 3, 1, 1)),
        ValueError,
        "must divide one another",
    ),
    "block mask device": (
        lambda: FlashMask(bounds(1, 2, 8, 2), block_mask=bounds(1, 1, 1, 1).to("meta")),
        ValueError,
        "on the device of startend_row_indices, cpu, but is on meta",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_rules(name):
    build, error, message = BAD[name]
    with pytest.raises(error, match=message):
        build()


def test_it_is_immutable():
    mask = random_mask()
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.causal = False


def test_repr_is_one_line():
    assert repr(random_mask()) == (
        "FlashMask(bounds=[2, 3, 16, 2], causal=True, seqlen_q=16, seqlen_k=16, device='cpu')"
    )
    plain = FlashMask(seqlen_q=200, block_mask=bounds(1, 1, 2, 2), plan=bounds(3))
    assert repr(plain) == (
        "FlashMask(bounds=None, causal=False, block_mask=[1, 1, 2, 2], seqlen_q=200, "
        "seqlen_k=200, prepared, device='cpu')"
    )


def test_slices_and_expands_the_batch():
    mask = random_mask()
    dense = mask.to_dense()
    assert torch.equal(mask[1].to_dense(), dense[1:])
    assert torch.equal(mask[-1].to_dense(), dense[1:])
    assert torch.equal(mask[:1].to_dense(), dense[:1])
    assert [m.batch for m in mask] == [1, 1]
    with pytest.raises(IndexError, match="below 2, the batch of this mask, but is 2"):
        mask[2]
    wide = mask[0].expand(4)
    assert wide.startend_row_indices.stride(0) == 0
    assert torch.equal(wide.to_dense(), dense[:1].expand(4, -1, -1, -1))
    with pytest.raises(ValueError, match="batch must be 2"):
        mask.expand(3)
    mixed = FlashMask(mask[0].startend_row_indices, causal=True, block_mask=bounds(3, 1, 1, 1))
    assert mixed.batch == 3
    assert mixed[2].startend_row_indices.shape[0] == 1


def test_visible_rows():
    mask = random_mask()
    assert torch.equal(mask.visible((3, 9)), mask.to_dense()[:, :, 3:9])
    with pytest.raises(ValueError, match="max_elements=10"):
        mask.to_dense(max_elements=10)


def test_last_rows_keep_the_block_mask_aligned():
    blocks = torch.randint(0, 2, (1, 1, 3, 2), dtype=torch.int32)
    mask = FlashMask(causal=True, seqlen_q=384, seqlen_k=256, block_mask=blocks)
    assert torch.equal(mask.last_rows(128).to_dense(), mask.to_dense()[:, :, 256:])
    with pytest.raises(ValueError, match="multiple of 128, but is 184"):
        mask.last_rows(200)
    with pytest.raises(ValueError, match="between 0 and seqlen_q=384"):
        mask.last_rows(385)


def test_to_another_device():
    mask = random_mask()
    assert mask.to("cpu") is mask
    moved = mask.to("meta")
    assert moved.startend_row_indices.device.type == "meta"
    plain = FlashMask(causal=True, seqlen_q=3)
    assert plain.to("meta") is plain


def test_it_can_be_copied_pickled_and_saved():
    mask = random_mask()
    buffer = io.BytesIO()
    torch.save({"mask": mask}, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(mask),
        pickle.loads(pickle.dumps(mask)),
        torch.load(buffer)["mask"],
    ):
        assert repr(other) == repr(mask)
        assert torch.equal(other.startend_row_indices, mask.startend_row_indices)


# --- the plan ---


@pytest.fixture
def planner(monkeypatch):
    """A planner that counts its calls, in place of the compiled one."""
    calls = []

    def build_plan(*args):
        calls.append(args)
        return torch.zeros(1, 1, 8, dtype=torch.int32)

    monkeypatch.setattr(flash_mask, "build_plan", build_plan)
    return calls


def test_prepared_plans_once(planner):
    mask = random_mask()
    prepared = mask.prepared()
    assert mask.plan is None
    assert prepared.plan is not None
    assert prepared.prepared() is prepared
    assert len(planner) == 1
    assert prepared.startend_row_indices is mask.startend_row_indices


def test_prepared_without_a_planner_is_the_mask_itself(monkeypatch):
    monkeypatch.setattr(planning, "_can_plan", lambda device_type: False)
    mask = random_mask()
    assert mask.prepared() is mask
    assert FlashMask(causal=True, seqlen_q=4).prepared().plan is None


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_planned_mask_can_be_copied_and_the_copy_notices_edits(planner, way):
    mask = random_mask().prepared()
    copied = way(mask)
    assert copied.prepared() is copied
    assert torch.equal(copied.plan, mask.plan)
    copied.startend_row_indices.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        copied.prepared()


def test_a_stale_mask_is_not_copied(planner):
    mask = random_mask().prepared()
    mask.startend_row_indices.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        pickle.dumps(mask)


def test_edits_after_planning_are_noticed(planner):
    mask = random_mask().prepared()
    mask.startend_row_indices[0, 0, 0] = 5
    with pytest.raises(RuntimeError, match="changed in place after its plan was built"):
        mask.prepared()

    blocks = torch.ones(1, 1, 1, 1, dtype=torch.int32)
    mask = FlashMask(seqlen_q=5, block_mask=blocks).prepared()
    blocks.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        mask.prepared()


def test_tensors_without_versions_are_not_checked(planner):
    with torch.inference_mode():
        mask = random_mask().prepared()
        mask.startend_row_indices.zero_()
        assert mask.prepared() is mask


def test_masks_made_from_a_planned_one_have_no_plan(planner):
    mask = random_mask().prepared()
    for other in (mask[0], mask.expand(2), mask.last_rows(4), mask.to("meta")):
        assert other.plan is None


# --- torch ---


def test_pytree_round_trip():
    mask = random_mask()
    leaves, spec = pytree.tree_flatten(mask)
    assert [leaf is mask.startend_row_indices for leaf in leaves if leaf is not None] == [True]
    again = pytree.tree_unflatten(leaves, spec)
    assert repr(again) == repr(mask)
    placeholders = pytree.tree_map(lambda leaf: object(), mask)
    assert isinstance(placeholders, FlashMask)
    names = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path({"m": mask})[0]]
    assert names[0] == "['m'].startend_row_indices"
    loaded = pytree.treespec_loads(pytree.treespec_dumps(spec))
    assert repr(pytree.tree_unflatten(leaves, loaded)) == repr(mask)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_new_values_do_not_recompile(backend):
    def function(x, mask):
        mask = mask.prepared()
        hidden = mask.lowered().sum() + mask.startend_row_indices.float().sum()
        return x * hidden + mask.seqlen_q * mask.causal

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    x = torch.randn(3)
    for seed in range(4):
        mask = random_mask(seed)
        torch.testing.assert_close(compiled(x, mask), function(x, mask))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["recompiles"]


def test_prepared_masks_do_not_recompile(planner):
    def function(x, mask):
        return x * mask.prepared().plan.sum() + mask.startend_row_indices.sum()

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    x = torch.randn(3)
    for edits in range(4):
        mask = random_mask(edits)
        for _ in range(edits):
            mask.startend_row_indices.add_(0)
        mask = mask.prepared()
        torch.testing.assert_close(compiled(x, mask), function(x, mask))
    assert counters["stats"]["unique_graphs"] == 1


def test_new_sizes_become_dynamic():
    def function(x, mask):
        return x + mask.lowered().sum()

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    x = torch.randn(3)
    for size in (16, 24, 40, 56):
        mask = random_mask(size, rows=size, columns=size)
        torch.testing.assert_close(compiled(x, mask), function(x, mask))
    assert counters["stats"]["unique_graphs"] == 2


def test_masks_can_be_made_inside_a_compiled_function():
    def function(lengths):
        mask = FlashMask(lengths, causal=True) if lengths.dim() == 4 else None
        return mask.visible().sum() + masks.sliding_window(16, window=3).to_dense().sum()

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    values = random_mask().startend_row_indices
    assert torch.equal(compiled(values), function(values))


def test_export_takes_a_mask():
    class Model(torch.nn.Module):
        def forward(self, x, mask):
            return x + mask.lowered().sum()

    x = torch.ones(2)
    program = torch.export.export(Model(), (x, random_mask()))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    other = random_mask(1)
    assert torch.equal(loaded(x, other), Model()(x, other))


def test_checkpoint_takes_a_mask():
    def function(x, mask):
        return (x * mask.lowered().sum()).sin()

    x = torch.randn(3, requires_grad=True)
    mask = random_mask()
    out = torch.utils.checkpoint.checkpoint(function, x, mask, use_reentrant=False)
    (grad,) = torch.autograd.grad(out.sum(), x)
    (expected,) = torch.autograd.grad(function(x, mask).sum(), x)
    assert torch.equal(grad, expected)
