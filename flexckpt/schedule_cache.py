# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Schedules that are kept, because the same tensors move the same way after every training step."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import xxhash

from flexckpt.comm.group import Comm

T = TypeVar("T")
LIMIT = 16  # schedules that are kept

_kept: OrderedDict[tuple[object, ...], object] = OrderedDict()


def cached(what: object, comm: Comm, make: Callable[[], T]) -> T:
    """The result of ``make`` for the same ``what`` on the same ranks, kept from the last call.

    Every rank of ``comm`` calls this, and ``make`` runs on all ranks or on none.

    Args:
        what: everything that the result depends on in this process, with a repr that tells it
            apart.
        comm: the ranks.
        make: may exchange messages.
    """
    text = repr(what).encode()
    mine = xxhash.xxh3_128_hexdigest(text)
    told = comm.gather((mine, comm.global_rank(comm.rank)))
    key = (tuple(told), comm.rank)
    hit = key in _kept
    if all(comm.gather(hit)):
        _kept.move_to_end(key)
        return _kept[key]  # type: ignore[return-value]
    made = make()
    _kept[key] = made
    while len(_kept) > LIMIT:
        _kept.popitem(last=False)
    return made
