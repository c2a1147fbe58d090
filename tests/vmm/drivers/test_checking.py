# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The checking decorator refuses each way of breaking the contract.

It runs over null, which believes everything, and over host.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.vmm.drivers.driver import INVALID, OK, Driver, MiB, Refused

SIZE = 2 * MiB


class Site(NamedTuple):
    """A range of four pages, of which the first two are mapped; the second page is released."""

    driver: Driver
    base: int
    pages: list[int]
    event: int

    def call(self, name: str, *arguments: object) -> object:
        return self.driver.call(name, 0, *arguments)


@pytest.fixture(params=["null", "host"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with Driver(driver=request.param, checking=1, device_bytes="32MiB") as driver:
        base = driver.reserve(4 * SIZE)
        pages = [driver.create(SIZE) for _ in range(3)]
        driver.map(base, SIZE, pages[0], access=False)
        driver.map(base + SIZE, SIZE, pages[1])
        driver.call("page_release", 0, SIZE, pages[1])
        yield Site(driver, base, pages, driver.event())


MISUSES: dict[str, tuple[Callable[[Site], object], str]] = {
    "overlap": (
        lambda s: s.call("map", s.base + SIZE, SIZE, s.pages[2]),
        "map on device 0: [{a+1}, {a+2}) overlaps the mapping [{a+1}, {a+2})",
    ),
    "overlap of a bigger page": (
        lambda s: s.call("map", s.base + SIZE, 2 * SIZE, s.driver.create(2 * SIZE)),
        "map on device 0: [{a+1}, {a+3}) overlaps the mapping [{a+1}, {a+2})",
    ),
    "outside": (
        lambda s: s.call("map", s.base + 4 * SIZE, SIZE, s.pages[2]),
        "map on device 0: [{a+4}, {a+5}) is not inside a reserved range",
    ),
    "across the end": (
        lambda s: s.call("map", s.base + 3 * SIZE, 2 * SIZE, s.driver.create(2 * SIZE)),
        "map on device 0: [{a+3}, {a+5}) is not inside a reserved range",
    ),
    "partial handle": (
        lambda s: s.call("map", s.base + 2 * SIZE, 2 * SIZE, s.pages[2]),
        "map on device 0: page {p2} has 2097152 bytes, not 4194304",
    ),
    "map of a released page": (
        lambda s: s.call("map", s.base + 2 * SIZE, SIZE, s.pages[1]),
        "map on device 0: page {p1} was never created or is released",
    ),
    "map of no page": (
        lambda s: s.call("map", s.base + 2 * SIZE, SIZE, 999),
        "map on device 0: page 999 was never created or is released",
    ),
    "address between granules": (
        lambda s: s.call("map", s.base + 2 * SIZE + 4096, SIZE, s.pages[2]),
        "map on device 0: 2097152 bytes at {b} are not multiples of the granularity 2097152",
    ),
    "unmap of nothing": (
        lambda s: s.call("unmap", s.base + 2 * SIZE, SIZE),
        "unmap on device 0: nothing is mapped at {a+2}",
    ),
    "unmap of more than is mapped": (
        lambda s: s.call("unmap", s.base, 3 * SIZE),
        "unmap on device 0: nothing is mapped at {a+2}",
    ),
    "partial unmap": (
        lambda s: s.call("unmap", s.base, SIZE // 2),
        "unmap on device 0: 1048576 bytes at {a+0} are not multiples of the granularity 2097152",
    ),
    "access to nothing": (
        lambda s: s.call("set_access", s.base + SIZE, 2 * SIZE),
        "set_access on device 0: nothing is mapped at {a+2}",
    ),
    "touch without access": (
        lambda s: s.driver.put(s.base, b"x"),
        "copy_in on device 0: no access was set for the page at {a+0}",
    ),
    "touch of nothing": (
        lambda s: s.driver.get(s.base + 2 * SIZE - 1, 2),
        "copy_out on device 0: nothing is mapped at {a+2}",
    ),
    "second release of a mapped page": (
        lambda s: s.call("page_release", SIZE, s.pages[1]),
        "page_release on device 0: page {p1} was never created or is released",
    ),
    "release of a part": (
        lambda s: s.call("page_release", SIZE // 2, s.pages[0]),
        "page_release on device 0: page {p0} has 2097152 bytes, not 1048576",
    ),
    "free of a range in use": (
        lambda s: s.call("va_free", s.base, 4 * SIZE),
        "va_free on device 0: the range [{a+0}, {a+4}) still has a page mapped at {a+0}",
    ),
    "free of a part": (
        lambda s: s.call("va_free", s.base, SIZE),
        "va_free on device 0: the range at {a+0} has 8388608 bytes, not 2097152",
    ),
    "free of no range": (
        lambda s: s.call("va_free", s.base + 2 * SIZE, SIZE),
        "va_free on device 0: no reserved range begins at {a+2}",
    ),
    "empty page": (
        lambda s: s.driver.create(0),
        "page_create on device 0: size must not be 0",
    ),
    "odd range": (
        lambda s: s.driver.reserve(SIZE + 1),
        "va_reserve on device 0: 2097153 bytes at 0x0 are not multiples of the granularity 2097152",
    ),
    "export of no page": (
        lambda s: s.call("page_export", 999),
        "page_export on device 0: page 999 was never created or is released",
    ),
    **{
        f"{name} of no event": (
            lambda s, name=name, behind=behind: s.call(name, s.event + 9, *behind),
            f"{name} on device 0: there is no event {{e}}",
        )
        for name, behind in {
            "event_query": [],
            "event_sync": [],
            "event_destroy": [],
            "event_record": [1],
        }.items()
    },
    "wait for no event": (
        lambda s: s.call("stream_wait", 1, s.event + 9),
        "stream_wait on device 0: there is no event {e}",
    ),
    "no device": (
        lambda s: s.driver.call("event_query", 7, s.event),
        "event_query on device 7: there is no such device",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_is_refused_and_remembered(site: Site, misuse: str) -> None:
    call, sentence = MISUSES[misuse]
    for step in range(6):
        sentence = sentence.replace(f"{{a+{step}}}", f"{site.base + step * SIZE:#x}")
    for number, page in enumerate(site.pages):
        sentence = sentence.replace(f"{{p{number}}}", str(page))
    sentence = sentence.replace("{b}", f"{site.base + 2 * SIZE + 4096:#x}")
    sentence = sentence.replace("{e}", str(site.event + 9))
    assert site.driver.ask("violations") == ""
    with pytest.raises(Refused) as refused:
        call(site)
    assert refused.value.status == INVALID
    assert refused.value.reason == sentence
    assert site.driver.ask("violations") == sentence + "\n"


def test_the_right_calls_pass_and_nothing_is_left(site: Site) -> None:
    driver, base, pages, event = site
    driver.map(base + 3 * SIZE, SIZE, pages[0])  # an alias
    assert driver.ask("leaks") == (
        "not given back: 1 address ranges, 2 pages, 3 mappings, 1 events"
    )
    driver.call("set_access", 0, base, 2 * SIZE)
    driver.put(base + SIZE - 2, b"four")
    driver.call("unmap", 0, base, 2 * SIZE)
    driver.call("unmap", 0, base + 3 * SIZE, SIZE)
    for page in (pages[0], pages[2]):
        driver.call("page_release", 0, SIZE, page)
    driver.call("va_free", 0, base, 4 * SIZE)
    driver.call("event_destroy", 0, event)
    assert driver.ask("violations") == ""
    assert driver.ask("leaks") == ""


def test_a_driver_without_aliases_gets_none() -> None:
    with Driver(driver="null", checking=1, alias=0) as driver:
        assert driver.capabilities().alias == 0
        base = driver.reserve(2 * SIZE)
        page = driver.create(SIZE)
        driver.map(base, SIZE, page)
        with pytest.raises(Refused, match="is mapped already and the driver has no aliases"):
            driver.map(base + SIZE, SIZE, page)
        driver.call("unmap", 0, base, SIZE)
        driver.map(base + SIZE, SIZE, page)


def test_what_the_driver_refuses_is_not_in_the_model() -> None:
    with Driver(driver="null", checking=1, device_bytes="2MiB") as driver:
        driver.create(SIZE)
        with pytest.raises(Refused):
            driver.create(SIZE)
        assert driver.ask("violations") == ""
        assert driver.ask("leaks").startswith("not given back: 0 address ranges, 1 pages, 0 map")


def test_a_child_of_fork_breaks_no_rule() -> None:
    with Driver(driver="null", checking=1) as driver:
        driver.ask("abandon")
        assert driver.status("unmap", 0, 4096, SIZE) not in (OK, INVALID)
        assert driver.ask("violations") == ""
