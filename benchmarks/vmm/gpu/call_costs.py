# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""G1: what the calls of the driver cost, by the size of a page and by how many one call covers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.vmm.gpu.context import Context
from benchmarks.vmm.gpu.raw_driver import RawDriver
from benchmarks.vmm.gpu.work import open_both

MIB = 1 << 20
PAGE_SIZES = tuple(size * MIB for size in (2, 4, 8, 16, 32, 64, 128))
BATCHES = (1, 8, 32)  # pages that one set_access or unmap covers
BYTES = 1024 * MIB  # mapped in each round
LEAST_PAGES = 32  # of the largest sizes: more bytes, so that every batch is full


def microseconds(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter_ns()
    answer = call()
    return (time.perf_counter_ns() - begin) / 1000, answer


def one_round(driver: RawDriver, page: int, count: int, batch: int) -> dict[str, float]:
    """Microseconds per call, the median over the calls of each kind."""
    times: dict[str, list[float]] = {}

    def timed(name: str, *arguments: int) -> Any:
        took, answer = microseconds(lambda: getattr(driver, name)(*arguments))
        times.setdefault(name, []).append(took)
        return answer

    base = timed("va_reserve", page * count)
    pages = [timed("page_create", page) for _ in range(count)]
    for number, handle in enumerate(pages):
        timed("map", base + number * page, page, handle)
    pieces = [(base + first * page, batch * page) for first in range(0, count, batch)]
    for piece in pieces:
        timed("set_access", *piece)
    for piece in pieces:
        timed("unmap", *piece)
    for handle in pages:
        timed("page_release", page, handle)
    timed("va_free", base, page * count)
    return {name: statistics.median(values) for name, values in times.items()}


def run(context: Context) -> dict[str, Any]:
    driver, _ = open_both(context.rehearse)
    rows = []
    began = time.perf_counter()
    with driver:
        free, _ = driver.memory()
        for page in PAGE_SIZES:
            for batch in BATCHES:
                count = max(LEAST_PAGES, BYTES // page) // batch * batch
                if count * page > free * 0.9 or time.perf_counter() - began > context.seconds * 0.8:
                    continue
                rounds = 1 if context.rehearse else 3
                found = [one_round(driver, page, count, batch) for _ in range(rounds)]
                medians = {
                    name: round(statistics.median(one[name] for one in found), 2)
                    for name in found[0]
                }
                rows.append({"page_mib": page // MIB, "pages": count, "batch": batch, **medians})
        costs = event_costs(driver)
    return {"unit": "us per call", "rows": rows, "events": costs}


def event_costs(driver: RawDriver) -> dict[str, float]:
    """The calls behind a fence: on an idle stream, medians of 200."""
    times: dict[str, list[float]] = {"event_record": [], "event_query": [], "stream_wait": []}
    event = driver.event_create()
    for _ in range(200):
        for name, arguments in (
            ("event_record", (event, 0)),
            ("event_query", (event,)),
            ("stream_wait", (0, event)),
        ):
            call = getattr(driver, name)
            took, _ = microseconds(lambda call=call, arguments=arguments: call(*arguments))
            times[name].append(took)
    driver.event_destroy(event)
    return {name: round(statistics.median(values), 2) for name, values in times.items()}
