# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the planner knows of a tensor that is to be filled."""

from typing import NamedTuple

from flexckpt.boxes import Region


class Target(NamedTuple):
    """A target without its data.

    Attributes:
        key, state: which tensor.
        shape: global shape.
        dtype: name of its dtype ("bfloat16").
        regions: where its elements lie in its storage, in elements.
    """

    key: str
    state: str
    shape: tuple[int, ...]
    dtype: str
    regions: tuple[Region, ...]

    @property
    def numel(self) -> int:
        return sum(r.box.numel for r in self.regions)
