# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""FlashMask: the mask as an object, made once and used by all layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashmask.mask.checks import check_block_mask, check_bounds, check_sizes
from flashmask.mask.dense import BLOCK, MAX_DENSE_ELEMENTS, bounds_to_dense
from flashmask.mask.lowering import lower
from flashmask.mask.planning import build_plan, versions
from flashmask.mask.pytree import register_node

if TYPE_CHECKING:
    from flashmask.mask.describe import Description


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FlashMask:
    """A column-wise attention mask: bounds, causal flag, sizes, and the plan the kernels work from.

    A mask is immutable, and a pytree node: it can be an input of functions under `torch.compile`,
    `torch.export` and activation checkpointing. The sizes and the causal flag are static, the
    tensors are not, so a new mask of the same size compiles nothing again.

    Args:
        startend_row_indices: the bounds, int32 `[B, Hm, Sk, C]` with C in {1, 2, 4} (see
            `lower` for their meaning), or None for plain full or causal attention. Not copied.
        causal: whether the causal triangle (aligned to the bottom right) is hidden as well.
        block_mask: int32 `[B, Hm, ceil(Sq/128), ceil(Sk/128)]`, 0 hides a block of 128 x 128; or
            None.
        seqlen_q: Sq, number of query rows; by default the number of key columns.
        seqlen_k: Sk, number of key columns; by default read from the bounds.
        plan: what `prepared()` built. Leave it out.

    Raises:
        TypeError: a tensor has the wrong dtype.
        ValueError: a shape, or the number of bounds, breaks the rules above.
    """

    startend_row_indices: Tensor | None = None
    causal: bool = False
    block_mask: Tensor | None = None
    seqlen_q: int = None  # type: ignore[assignment]  # filled in by __post_init__
    seqlen_k: int = None  # type: ignore[assignment]
    plan: Tensor | None = None
    # Version counters of the tensors at the moment the plan was built; None where that is unknown.
    _planned_versions: tuple[int, ...] | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        bounds = self.startend_row_indices
        if bounds is not None:
            check_bounds(bounds, self.causal)
        if self.seqlen_k is None:
            if bounds is None and self.seqlen_q is None:
                raise ValueError(
                    "seqlen_k must be given when startend_row_indices is None, but is None; "
                    "pass the number of keys"
                )
            object.__setattr__(
                self, "seqlen_k", self.seqlen_q if bounds is None else bounds.shape[2]
            )
        if self.seqlen_q is None:
            object.__setattr__(self, "seqlen_q", self.seqlen_k)
        check_sizes(bounds, self.seqlen_q, self.seqlen_k)
        if self.block_mask is not None:
            check_block_mask(self.block_mask, bounds, self.seqlen_q, self.seqlen_k)

    # --- what it is ---

    @property
    def batch(self) -> int:
        """B, the number of batch entries the tensors hold; 1 stands for any batch."""
        held = {t.shape[0] for t in (self.startend_row_indices, self.block_mask) if t is not None}
        return max(held - {1}, default=1)

    @property
    def heads(self) -> int:
        """Hm, the number of mask heads the tensors hold.

        Query head h uses mask head h // (Hq // Hm).
        """
        held = [t.shape[1] for t in (self.startend_row_indices, self.block_mask) if t is not None]
        return max(held, default=1)

    @property
    def device(self) -> torch.device | None:
        """Device of the tensors, None if there are none."""
        for tensor in (self.startend_row_indices, self.block_mask):
            if tensor is not None:
                return tensor.device
        return None

    def lowered(self) -> Tensor:
        """Return LTS, LTE, UTS, UTE of every column, int32 `[B, Hm, 4, Sk]`; see `lower`."""
        return lower(
            self.startend_row_indices, self.causal, self.seqlen_q, self.seqlen_k, device=self.device
        )

    def visible(
        self, rows: tuple[int, int] | None = None, *, max_elements: int | None = MAX_DENSE_ELEMENTS
    ) -> Tensor:
        """Return the dense mask of some rows, bool `[B, Hm, stop - start, Sk]`, True is visible.

        Args:
            rows: (start, stop); all rows by default.
            max_elements: refuse to build a larger result; None for no limit.

        Raises:
            ValueError: the result would be larger than `max_elements`.
        """
        return bounds_to_dense(
            self.startend_row_indices,
            self.causal,
            self.seqlen_q,
            self.seqlen_k,
            self.block_mask,
            rows=rows,
            max_elements=max_elements,
            device=self.device,
        )

    def to_dense(self, *, max_elements: int | None = MAX_DENSE_ELEMENTS) -> Tensor:
        """Return the whole dense mask, bool `[B, Hm, Sq, Sk]`; see `visible`."""
        return self.visible(max_elements=max_elements)

    def to_mask_mod(
        self, *, num_heads: int | None = None
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return the mask as a FlexAttention `mask_mod`; see `masks.to_mask_mod`."""
        from flashmask.mask.convert import to_mask_mod

        return to_mask_mod(self, num_heads=num_heads)

    def describe(self, *, head_dim: int = 128, num_heads: int | None = None) -> Description:
        """Return density, tile counts, expected work and memory to print; see `masks.describe`."""
        from flashmask.mask.describe import describe

        return describe(self, head_dim=head_dim, num_heads=num_heads)

    def __repr__(self) -> str:
        bounds = self.startend_row_indices
        parts = [
            "bounds=None" if bounds is None else f"bounds={list(bounds.shape)}",
            f"causal={self.causal}",
        ]
        if self.block_mask is not None:
            parts.append(f"block_mask={list(self.block_mask.shape)}")
        parts.append(f"seqlen_q={self.seqlen_q}, seqlen_k={self.seqlen_k}")
        if self.plan is not None:
            parts.append("prepared")
        if self.device is not None:
            parts.append(f"device={str(self.device)!r}")
        return f"FlashMask({', '.join(parts)})"

    # --- the plan ---

    def prepared(self, device: torch.device | str | None = None) -> FlashMask:
        """Return this mask with its plan built, so that every layer reuses it.

        A no-op if the plan is there.

        Where no compiled planner serves the device, the mask comes back as it is: it works without
        a plan, and the kernels then plan on every call.

        Args:
            device: where the mask will be used. Only needed for a mask without tensors; CPU by
                default.

        Raises:
            RuntimeError: the bounds or the block mask were changed in place after the plan was
                built.
        """
        edited = versions(self.startend_row_indices, self.block_mask)
        if self.plan is not None:
            if edited is not None and self._planned_versions not in (None, edited):
                raise RuntimeError(
                    "the bounds or the block mask of this FlashMask were changed in place after "
                    "its plan was built; make a new FlashMask from the changed tensor"
                )
            return self
        plan = build_plan(
            self.startend_row_indices,
            self.block_mask,
            self.causal,
            self.seqlen_q,
            self.seqlen_k,
            self.device or torch.device("cpu" if device is None else device),
        )
        if plan is None:
            return self
        mask = self._replace(plan=plan)
        object.__setattr__(mask, "_planned_versions", edited)
        return mask

    def __getstate__(self) -> dict[str, Any]:
        if self.plan is not None:
            self.prepared()  # refuses to copy a plan which is out of date
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # The tensors of a copy count their edits from here.
        edited = versions(self.startend_row_indices, self.block_mask)
        object.__setattr__(self, "_planned_versions", None if self.plan is None else edited)

    # --- other masks made from it ---

    def _replace(self, **changes: Any) -> FlashMask:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        return FlashMask(**{**fields, **changes})

    def _map(self, function: Callable[[Tensor], Tensor]) -> FlashMask:
        """Apply a function to the bounds and the block mask; the plan is left behind."""
        bounds, block_mask = self.startend_row_indices, self.block_mask
        return self._replace(
            startend_row_indices=None if bounds is None else function(bounds),
            block_mask=None if block_mask is None else function(block_mask),
            plan=None,
        )

    def to(self, device: torch.device | str) -> FlashMask:
        """Return the mask on another device.

        A plan is left behind: each kind of device plans for itself.
        """
        if self.device is None or self.device == torch.device(device):
            return self
        return self._map(lambda tensor: tensor.to(device))

    def expand(self, batch: int) -> FlashMask:
        """Return the mask for `batch` batch entries, sharing memory, without a plan.

        Raises:
            ValueError: the mask holds neither 1 nor `batch` entries.
        """
        if self.batch not in (1, batch):
            raise ValueError(f"batch must be {self.batch}, the batch of this mask, but is {batch}")
        return self._map(lambda tensor: tensor.expand(batch, *tensor.shape[1:]))

    def __getitem__(self, entries: int | slice) -> FlashMask:
        """Return the mask of one batch entry or of a slice of them, without a plan.

        One entry keeps its batch dimension, of size 1.
        """
        if not isinstance(entries, slice):
            index = entries + self.batch if entries < 0 else entries
            if not 0 <= index < self.batch:
                raise IndexError(
                    f"the batch entry must be below {self.batch}, the batch of this mask, "
                    f"but is {entries}"
                )
            entries = slice(index, index + 1)
        return self.expand(self.batch)._map(lambda tensor: tensor[entries])

    def last_rows(self, rows: int) -> FlashMask:
        """Return the mask of the last query rows only.

        This is what decoding with a key cache and chunked prefill need. The causal triangle is
        aligned to the bottom right, so it needs no change; every bound moves up by Sq - rows.

        Raises:
            ValueError: there are not that many rows, or a block mask does not line up with the cut.
        """
        if not 0 <= rows <= self.seqlen_q:
            raise ValueError(f"rows must lie between 0 and seqlen_q={self.seqlen_q}, but is {rows}")
        cut = self.seqlen_q - rows
        if self.block_mask is not None and cut % BLOCK:
            raise ValueError(
                f"with a block_mask the number of dropped rows must be a multiple of {BLOCK}, "
                f"but is {cut}"
            )
        bounds = self.startend_row_indices
        return self._replace(
            startend_row_indices=None
            if bounds is None
            else (bounds.clamp(0, self.seqlen_q) - cut).clamp_min(0),
            block_mask=None if self.block_mask is None else self.block_mask[:, :, cut // BLOCK :],
            seqlen_q=rows,
            plan=None,
        )

    def __and__(self, other: FlashMask) -> FlashMask:
        """Visible where both masks are; see `masks.mask_and`."""
        from flashmask.mask.compose import mask_and

        return mask_and(self, other)

    def __or__(self, other: FlashMask) -> FlashMask:
        """Visible where either mask is; see `masks.mask_or`."""
        from flashmask.mask.compose import mask_or

        return mask_or(self, other)


register_node(
    FlashMask,
    children=("startend_row_indices", "block_mask", "plan"),
    context=("causal", "seqlen_q", "seqlen_k"),
    reset=("_planned_versions",),
)
# A mask holds tensors and numbers only, so torch.load may rebuild one with weights_only=True.
torch.serialization.add_safe_globals([FlashMask])
