# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Random calls, right and wrong: host and the checking decorator do what a model of them does."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vmm.drivers.driver import INVALID, OK, OUT_OF_MEMORY, Driver, Refused

SIZE = 64 << 10
SLOTS, PAGES = 6, 5

slots, counts, numbers = st.integers(0, SLOTS), st.integers(1, 3), st.integers(0, 7)
calls = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(1, 2)),
        st.tuples(st.just("release"), numbers, st.integers(1, 2)),
        st.tuples(st.just("map"), slots, st.integers(1, 2), numbers),
        st.tuples(st.just("unmap"), slots, counts),
        st.tuples(st.just("set_access"), slots, counts),
        st.tuples(st.just("put"), slots, st.integers(1, 255)),
        st.tuples(st.just("get"), slots),
    ),
    max_size=40,
)


@dataclass
class Page:
    units: int
    content: list[int]  # the first byte of each granule
    released: bool = False
    mappings: int = 0


@dataclass
class Model:
    """What the calls do to a range of SLOTS granules on a device of PAGES granules."""

    pages: list[Page] = field(default_factory=list)
    mapped: dict[int, Page] = field(default_factory=dict)  # first slot -> page
    access: set[int] = field(default_factory=set)  # first slots

    def used(self) -> int:
        return sum(page.units for page in self.pages if not page.released or page.mappings)

    def owner(self, slot: int) -> int | None:
        for first, page in self.mapped.items():
            if first <= slot < first + page.units:
                return first
        return None

    def whole(self, slot: int, count: int) -> list[int] | None:
        """The first slots of the mappings that make up the range exactly."""
        firsts = []
        at = slot
        while at < slot + count:
            if at not in self.mapped:
                return None
            firsts.append(at)
            at += self.mapped[at].units
        return firsts if at == slot + count else None

    def page(self, number: int, units: int) -> Page | None:
        page = self.pages[number] if number < len(self.pages) else None
        return page if page and not page.released and page.units == units else None

    def create(self, units: int) -> int:
        self.pages.append(Page(units, [0] * units))
        return OK

    def release(self, number: int, units: int) -> int:
        page = self.page(number, units)
        if page is None:
            return INVALID
        page.released = True
        return OK

    def map(self, slot: int, units: int, number: int) -> int:
        page = self.page(number, units)
        inside = slot + units <= SLOTS
        taken = any(self.owner(at) is not None for at in range(slot, slot + units))
        if page is None or not inside or taken:
            return INVALID
        self.mapped[slot] = page
        page.mappings += 1
        return OK

    def unmap(self, slot: int, count: int) -> int:
        firsts = self.whole(slot, count)
        if firsts is None:
            return INVALID
        for first in firsts:
            self.mapped.pop(first).mappings -= 1
            self.access.discard(first)
        return OK

    def set_access(self, slot: int, count: int) -> int:
        firsts = self.whole(slot, count)
        if firsts is None:
            return INVALID
        self.access.update(firsts)
        return OK

    def put(self, slot: int, value: int) -> int:
        first = self.owner(slot)
        if first is None or first not in self.access:
            return INVALID
        self.mapped[first].content[slot - first] = value
        return OK

    def get(self, slot: int) -> int:
        return OK if self.owner(slot) in self.access else INVALID


class Real:
    """The same calls on a driver."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.base = driver.reserve(SLOTS * SIZE)
        self.pages: list[int] = []

    def handle(self, number: int) -> int:
        return self.pages[number] if number < len(self.pages) else 12345

    def at(self, slot: int) -> int:
        return self.base + slot * SIZE

    def do(self, name: str, *arguments: int) -> int:
        try:
            match name, arguments:
                case "create", (units,):
                    self.pages.append(self.driver.create(units * SIZE))
                case "release", (number, units):
                    page = self.handle(number)
                    self.driver.call("page_release", 0, units * SIZE, page)
                    self.pages[number] = 12345  # the number may come back for another page
                case "map", (slot, units, number):
                    handle = self.handle(number)
                    self.driver.call("map", 0, self.at(slot), units * SIZE, handle)
                case "put", (slot, value):
                    self.driver.put(self.at(slot), bytes([value]))
                case "get", (slot,):
                    self.driver.get(self.at(slot), 1)
                case _, (slot, count):
                    self.driver.call(name, 0, self.at(slot), count * SIZE)
        except Refused as refused:
            return refused.status
        return OK


@settings(max_examples=200, deadline=None)
@given(calls)
def test_any_calls(script: list[tuple]) -> None:
    options = {"granularity": SIZE, "device_bytes": PAGES * SIZE}
    with (
        Driver(driver="host", **options) as host,
        Driver(driver="null", checking=1, **options) as null,
    ):
        model, reals = Model(), [Real(host), Real(null)]
        wrong = 0
        for name, *arguments in script:
            got = [real.do(name, *arguments) for real in reals]
            if name == "create" and got[0] == OUT_OF_MEMORY:
                # No free run of that many granules. Null, which has no places, may still say yes.
                if got[1] == OK:
                    assert model.used() + arguments[0] <= PAGES or any(
                        page.released and page.mappings for page in model.pages
                    )
                    null.call("page_release", 0, arguments[0] * SIZE, reals[1].pages.pop())
                continue
            want = getattr(model, name)(*arguments)
            wrong += want == INVALID
            assert got == [want, want], (name, arguments)
            if name == "get" and want == OK:
                first = model.owner(arguments[0])
                content = model.mapped[first].content[arguments[0] - first]
                assert host.get(reals[0].at(arguments[0]), 1) == bytes([content])
        assert host.memory().free == (PAGES - model.used()) * SIZE
        assert len(null.ask("violations").splitlines()) == wrong
        assert host.ask("violations") == ""
