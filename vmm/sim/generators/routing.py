# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How many tokens each expert of a rank gets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Routing:
    """Popularity of the local experts of each layer, drifting from step to step.

    Popularity starts gamma distributed (shape `gamma`) and takes a log-normal factor (`drift`)
    each step. The tokens of a layer and microbatch are `rows` times a rank imbalance, uniform in
    1 ± `imbalance`, split by a Dirichlet distribution with concentrations
    `concentration` · experts · popularity.
    """

    def __init__(
        self,
        random: np.random.Generator,
        layers: int,
        experts: int,
        gamma: float,
        drift: float,
        imbalance: float,
        concentration: float,
    ) -> None:
        self._random, self._drift, self._imbalance = random, drift, imbalance
        self._concentration = concentration
        self._popularity: NDArray[np.float64] = random.gamma(gamma, size=(layers, experts))

    def step(self) -> None:
        """Popularity drifts."""
        shape = self._popularity.shape
        self._popularity *= np.exp(self._drift * self._random.standard_normal(shape))

    def split(self, layer: int, rows: int) -> list[int]:
        """Tokens per local expert; their sum is near `rows`."""
        popularity = self._popularity[layer] / self._popularity[layer].sum()
        experts = len(popularity)
        alpha = np.maximum(self._concentration * experts * popularity, 1e-3)
        total = rows * self._random.uniform(1 - self._imbalance, 1 + self._imbalance)
        return [int(each) for each in total * self._random.dirichlet(alpha)]
