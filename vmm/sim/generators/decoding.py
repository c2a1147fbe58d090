# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Prefill and decoding of a transformer: tensors that live for one layer or one token."""

from __future__ import annotations

from collections.abc import Sequence

from vmm.sim.generators.graph import Executor, Op
from vmm.sim.generators.kv_cache import KvCache, Request
from vmm.sim.generators.layers import BF16, FP32, INT64, Shape, layer, linear, norm
from vmm.sim.generators.tape import Tape

_SHOWN = 2  # layers that run one tensor after the other


class Decoder:
    """Runs a model of `layers` on one stream. Logits are made of the last token of a request.

    Nothing but the cache outlives a layer, and layers are alike, so the tensors of the first ones
    stand for all; the time of the others is that of one long kernel.
    """

    def __init__(self, tape: Tape, stream: int, shape: Shape, layers: int, cache: KvCache) -> None:
        self._tape, self._stream, self._shape = tape, stream, shape
        self._layers, self._cache = layers, cache
        self._executor = Executor(tape, stream)
        self._weights = sum(shape.layer_weights().values()) * layers * BF16

    def prefill(self, requests: Sequence[Request]) -> None:
        """Fills the caches of requests that run as one batch without padding."""
        rows = sum(request.length for request in requests)
        for request in requests:
            self._cache.fit(request)
        x = self._run(rows)
        rest = max(self._layers - _SHOWN, 0) / self._layers
        self._tape.compute(flops=rows * self._weights * rest, stream=self._stream)
        self._sample(x, rows, len(requests))

    def decode(self, requests: Sequence[Request], tokens: int) -> None:
        """So many tokens more for each request; the tensors of one token stand for all."""
        for request in requests:
            request.length += tokens
            self._cache.fit(request)
        x = self._run(len(requests))
        cached = sum(self._tape.size(part) for each in requests for part in each.cache)
        self._tape.compute(moved=tokens * (self._weights + cached), stream=self._stream)
        self._sample(x, len(requests), len(requests))

    def _run(self, rows: int) -> int:
        size = rows * self._shape.hidden * BF16
        x = self._tape.alloc(size, "activation", self._stream)
        ops = layer(self._shape, rows)
        for _ in range(min(self._layers, _SHOWN)):
            x = self._executor.forward(ops, {"x": x}, ("y",), save=False)["y"]
        return x

    def _sample(self, x: int, rows: int, chosen: int) -> None:
        shape = self._shape
        wide = chosen * shape.vocabulary
        ops = [
            norm("norm", "x", "n", rows, shape.hidden),
            Op("last", ("n",), (("rows", chosen * shape.hidden * BF16),)),
            linear("head", "rows", "logits", chosen, shape.hidden, shape.vocabulary),
            Op("cast", ("logits",), (("logits 32", wide * FP32),)),
            Op("softmax", ("logits 32",), (("probabilities", wide * FP32),)),
            Op("sort", ("probabilities",), (("sorted", wide * FP32), ("order", wide * INT64))),
            Op("choose", ("sorted", "order"), (("token", chosen * INT64),)),
        ]
        self._executor.forward(ops, {"x": x}, save=False)
