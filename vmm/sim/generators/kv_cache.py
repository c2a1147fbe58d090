# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Requests that decode together, each with a key-value cache that grows as it gets longer."""

from __future__ import annotations

from dataclasses import dataclass, field

from vmm.sim.generators.tape import Tape


@dataclass
class Request:
    """Lengths in tokens. `cache` are allocations that hold `room` tokens each."""

    length: int
    final: int
    room: int = 0
    cache: list[int] = field(default_factory=list)


class KvCache:
    """Caches of `parts` tensors that share `token_bytes` per token.

    A full cache is copied into one with `growth` times the room, in multiples of `block` tokens,
    one part after the other, as concatenating caches do.
    """

    def __init__(
        self, tape: Tape, stream: int, parts: int, token_bytes: int, block: int, growth: float
    ) -> None:
        self._tape, self._stream, self._parts = tape, stream, parts
        self._token, self._block, self._growth = token_bytes, block, growth

    def fit(self, request: Request) -> None:
        """Makes room for the request's length."""
        if request.length <= request.room:
            return
        wish = max(request.length, int(request.room * self._growth))
        request.room = -(-wish // self._block) * self._block
        size = -(-request.room * self._token // self._parts)
        old, request.cache = request.cache, []
        for part in range(self._parts):
            new = self._tape.alloc(size, "kv cache", self._stream)
            self._tape.compute(moved=2 * size, stream=self._stream)
            if old:
                self._tape.free(old[part])
            request.cache.append(new)

    def drop(self, request: Request) -> None:
        """The request is complete."""
        self._tape.free(*request.cache)
        request.cache = []
