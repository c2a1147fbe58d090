# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a mask costs, as numbers and as text: density, tiles, expected work, memory."""

from __future__ import annotations

import dataclasses

from flashmask.mask.counts import exact_visible_pairs, visible_keys_per_row
from flashmask.mask.dense import BLOCK
from flashmask.mask.flash_mask import FlashMask
from flashmask.mask.tiles import TileCounts, tile_counts


@dataclasses.dataclass(frozen=True)
class Description:
    """Numbers about a mask, for all its batch entries and mask heads together. Print it.

    Args:
        title: the mask in one line.
        pairs: number of (row, column) pairs, visible or not.
        visible: number of visible pairs.
        empty_rows: rows that see no key.
        rows: all rows.
        tiles: 128 x 128 tiles by class.
        heads_per_mask: how many query heads share one mask head.
        forward_flops: floating point operations of the two products over visible pairs.
        backward_flops: the same for the five products of the backward.
        mask_bytes: memory of bounds, block mask and plan.
        dense_bytes: memory of the same mask as dense booleans.
    """

    title: str
    pairs: int
    visible: int
    empty_rows: int
    rows: int
    tiles: TileCounts
    heads_per_mask: int
    forward_flops: int
    backward_flops: int
    mask_bytes: int
    dense_bytes: int

    @property
    def density(self) -> float:
        """Visible share of all pairs, 0 to 1."""
        return self.visible / self.pairs if self.pairs else 0.0

    def __str__(self) -> str:
        tiles = sum(self.tiles) or 1
        skip, full, partial = self.tiles
        lines = [
            self.title,
            f"  visible pairs  {self.visible:,} of {self.pairs:,} (density {self.density:.2%})",
            f"  rows           {self.rows:,}, of which {self.empty_rows:,} see no key",
            f"  tiles {BLOCK}x{BLOCK}  {sum(self.tiles):,}: skip {skip:,} ({skip / tiles:.1%}), "
            f"full {full:,} ({full / tiles:.1%}), partial {partial:,} ({partial / tiles:.1%})",
            f"  work           forward {_scaled(self.forward_flops, 1000)}FLOP, "
            f"backward {_scaled(self.backward_flops, 1000)}FLOP "
            f"({self.heads_per_mask} query heads per mask head)",
            f"  memory         {_scaled(self.mask_bytes, 1024)}B, "
            f"dense {_scaled(self.dense_bytes, 1024)}B",
        ]
        return "\n".join(lines)

    __repr__ = __str__


def describe(
    mask: FlashMask,
    *,
    head_dim: int = 128,
    value_head_dim: int | None = None,
    num_heads: int | None = None,
) -> Description:
    """Return density, tile counts, expected work and memory of a mask, in O(S).

    The work counts visible pairs only: 2 * (D + Dv) operations per pair forward (scores and
    output), 2 * (3 * D + 2 * Dv) backward (scores, dV, dP, dK, dQ).

    Args:
        mask: the mask.
        head_dim: D, of queries and keys.
        value_head_dim: Dv, of values; D by default.
        num_heads: number of query heads; that of mask heads by default.

    Raises:
        ValueError: `num_heads` is not a multiple of the number of mask heads.
    """
    num_heads = mask.heads if num_heads is None else num_heads
    if mask.heads == 0 or num_heads % mask.heads:
        raise ValueError(
            f"num_heads must be a multiple of {mask.heads}, the number of mask heads, "
            f"but is {num_heads}"
        )
    lowered = mask.lowered()
    visible = exact_visible_pairs(lowered, mask.seqlen_q, mask.block_mask)
    keys = visible_keys_per_row(lowered, mask.seqlen_q, mask.block_mask)
    pairs = visible.numel() * mask.seqlen_q * mask.seqlen_k
    value_dim = head_dim if value_head_dim is None else value_head_dim
    work = int(visible.sum()) * (num_heads // mask.heads)
    stored = (mask.startend_row_indices, mask.block_mask, mask.plan)
    return Description(
        title=repr(mask),
        pairs=pairs,
        visible=int(visible.sum()),
        empty_rows=int((keys == 0).sum()),
        rows=keys.numel(),
        tiles=tile_counts(lowered, mask.seqlen_q, mask.block_mask),
        heads_per_mask=num_heads // mask.heads,
        forward_flops=2 * (head_dim + value_dim) * work,
        backward_flops=2 * (3 * head_dim + 2 * value_dim) * work,
        mask_bytes=sum(t.numel() * t.element_size() for t in stored if t is not None),
        dense_bytes=pairs,
    )


def _scaled(value: float, base: int) -> str:
    """Return a number with a unit prefix, such as `1.50 G`."""
    prefixes = ["", "K", "M", "G", "T", "P"]
    while value >= base and len(prefixes) > 1:
        value /= base
        del prefixes[0]
    prefix = prefixes[0] + ("i" if base == 1024 and prefixes[0] else "")
    return f"{value:.0f} {prefix}" if value == int(value) else f"{value:.2f} {prefix}"
