# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""G2: the content of a page follows it to the address that it is mapped at next."""

from __future__ import annotations

from typing import Any

from benchmarks.vmm.gpu.context import Context, FailedError
from benchmarks.vmm.gpu.work import open_both

ROUNDS = 20
PAGES = 16


def run(context: Context) -> dict[str, Any]:
    """Writes a number into each page, scatters the pages over a new range and finds the numbers.

    The order at the new addresses is another one in each round, so that a mapping which stayed
    behind shows.
    """
    driver, work = open_both(context.rehearse)
    stream = work.streams[0]
    with driver:
        size = driver.capabilities().granularity
        old, new = (driver.va_reserve(PAGES * size) for _ in range(2))
        pages = [driver.page_create(size) for _ in range(PAGES)]
        stamp = 1
        for round_ in range(ROUNDS):
            step = (1, 3, 5, 7, 9, 11, 13, 15)[round_ % 8]  # odd: a permutation of 16
            for number, page in enumerate(pages):
                driver.map(old + number * size, size, page)
            driver.set_access(old, PAGES * size)
            for number in range(PAGES):
                work.write(stream, old + number * size, size, stamp + number)
            wrong = work.mismatches()  # waits: an unmap takes effect at once
            driver.unmap(old, PAGES * size)
            for number, page in enumerate(pages):
                driver.map(new + number * step % PAGES * size, size, page)
            driver.set_access(new, PAGES * size)
            for number in range(PAGES):
                at = new + number * step % PAGES * size
                work.expect(stream, at, size, stamp + number)
            wrong += work.mismatches()
            if wrong:
                raise FailedError(f"in round {round_} {wrong} words did not follow their page")
            driver.unmap(new, PAGES * size)
            stamp += PAGES
        for page in pages:
            driver.page_release(size, page)
        for base in (old, new):
            driver.va_free(base, PAGES * size)
    return {"rounds": ROUNDS, "pages": PAGES, "page_bytes": size, "wrong_words": 0}
