# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Trees of tokens: every node sees the path to its root (speculative decoding, tree rollouts)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flashmask.mask.checks import check_count
from flashmask.mask.families.columns import Device, as_batch, stack_columns
from flashmask.mask.flash_mask import FlashMask


def tree(
    parents: Sequence[int] | Sequence[Sequence[int]] | Tensor,
    *,
    context: int = 0,
    device: Device = None,
) -> FlashMask:
    """A node sees itself and its ancestors, and the context before the tree.

    Nodes come in depth-first preorder: every subtree is contiguous. In another order the mask would
    need more than two intervals per column; sort the tokens first.

    Args:
        parents: parent of every node, -1 for a root; one list, or one per batch entry.
        context: number of tokens before the tree; they are causal among themselves.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, S, 1]`, S = context + number of nodes. To decode with the context
        in a key cache, take `.last_rows(number of nodes)`.

    Raises:
        ValueError: a parent that does not come before its node, nodes that are not in preorder, or
            trees of different sizes in one batch.
    """
    check_count("context", context)
    batch = as_batch("parents", parents, 1)
    if len({len(entry) for entry in batch}) > 1:
        raise ValueError(
            f"parents must have the same number of nodes in every batch entry, "
            f"but has {[len(entry) for entry in batch]}"
        )
    ends = torch.tensor([_subtree_ends(entry) for entry in batch], dtype=torch.int32)
    lts = torch.cat((torch.full((len(batch), context), ends.shape[-1]), ends), dim=1) + context
    return stack_columns(lts.to(device), causal=True, seqlen_q=lts.shape[-1])


def _subtree_ends(parents: Sequence[int]) -> list[int]:
    """Return one past the last node of every node's subtree."""
    ends = [len(parents)] * len(parents)
    path: list[int] = []
    for node, parent in enumerate(parents):
        while path and path[-1] != parent:
            ends[path.pop()] = node
        if not path and parent != -1:
            raise ValueError(
                f"parents must list the nodes in depth-first preorder, but node {node} has parent "
                f"{parent}, which is not the node before it nor an ancestor of that"
            )
        path.append(node)
    return ends
