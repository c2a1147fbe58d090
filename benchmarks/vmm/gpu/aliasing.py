# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""G3: what is written through one of two addresses of a page is read through the other.

The allocator relies on it only between operations that a stream or an event orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.vmm.gpu.context import Context, FailedError, SkippedError
from benchmarks.vmm.gpu.work import open_both

ROUNDS = 200
PAGES = 4


def run(context: Context) -> dict[str, Any]:
    driver, work = open_both(context.rehearse)
    first, second = work.streams
    with driver:
        capabilities = driver.capabilities()
        if not capabilities.alias:
            raise SkippedError("the driver says that a page cannot be mapped twice")
        size = capabilities.granularity
        length = PAGES * size
        one, other = (driver.va_reserve(length) for _ in range(2))
        pages = [driver.page_create(size) for _ in range(PAGES)]
        for base in (one, other):
            for number, page in enumerate(pages):
                driver.map(base + number * size, size, page)
            driver.set_access(base, length)

        def same_stream(stamp: int) -> None:
            work.write(first, one, length, stamp)
            work.expect(first, other, length, stamp)
            work.write(first, other, length, stamp + 1)
            work.expect(first, one, length, stamp + 1)

        def other_stream(stamp: int) -> None:
            work.busy(first, 200_000)  # the reader would be early if it did not wait
            work.write(first, one, length, stamp)
            work.after(second, first)
            work.expect(second, other, length, stamp)
            work.after(first, second)

        def handed_over(stamp: int) -> None:
            """As the allocator does it: the old address goes while the new one is in use."""
            work.write(first, one, length, stamp)
            work.write(first, other, length, stamp + 1)
            work.expect(first, other, length, stamp + 1)
            if work.mismatches():
                raise FailedError("a write through the second address was lost")
            driver.unmap(one, length)
            work.expect(first, other, length, stamp + 1)
            wrong = work.mismatches()
            for number, page in enumerate(pages):
                driver.map(one + number * size, size, page)
            driver.set_access(one, length)
            if wrong:
                raise FailedError(f"{wrong} words changed when the first address was unmapped")

        results = {}
        cases: dict[str, tuple[Callable[[int], None], int]] = {
            "same stream": (same_stream, ROUNDS),
            "other stream after an event": (other_stream, ROUNDS),
            "first address unmapped": (handed_over, ROUNDS // 10),
        }
        stamp = 1 << 32
        for name, (case, rounds) in cases.items():
            for _ in range(rounds):
                case(stamp)
                stamp += 2
            results[name] = work.mismatches()
        if any(results.values()):
            raise FailedError(
                f"words that were read through the other address were stale: {results}"
            )
        for base in (one, other):
            driver.unmap(base, length)
            driver.va_free(base, length)
        for page in pages:
            driver.page_release(size, page)
    return {"rounds": ROUNDS, "bytes": length, "wrong_words": results}
