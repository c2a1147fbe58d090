# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Injected failures: which calls fail is compared with a model of the language in a few lines."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vmm.drivers.driver import (
    DEVICE_LOST,
    DRIVER,
    INVALID,
    NOT_READY,
    OK,
    OUT_OF_MEMORY,
    Driver,
    MiB,
    Refused,
    last_error,
    library,
)

SIZE = 2 * MiB
ERRORS = {
    "oom": OUT_OF_MEMORY,
    "invalid": INVALID,
    "notready": NOT_READY,
    "perm": DRIVER,
    "lost": DEVICE_LOST,
}
CALLS = [
    "reserve",
    "va_free",
    "create",
    "release",
    "map",
    "unmap",
    "set_access",
    "memory_info",
    "stream_query",
    "stream_wait",
    "event_create",
    "event_destroy",
    "event_record",
    "event_query",
    "event_sync",
    "device_sync",
    "copy_out",
    "copy_in",
    "export",
]


def queries(driver: Driver, count: int) -> list[int]:
    return [driver.status("stream_query", 0, 1) for _ in range(count)]


def creates(driver: Driver, count: int) -> list[int]:
    statuses = []
    for _ in range(count):
        try:
            driver.create(SIZE)
            statuses.append(OK)
        except Refused as refused:
            statuses.append(refused.status)
    return statuses


def at(*numbers: int, of: int, status: int) -> list[int]:
    return [status if number in numbers else OK for number in range(1, of + 1)]


@pytest.mark.parametrize(
    ("rules", "want"),
    [
        ("create@7:oom", at(7, of=10, status=OUT_OF_MEMORY)),
        ("create@7", at(7, of=10, status=OUT_OF_MEMORY)),
        ("create@3..5:perm", at(3, 4, 5, of=10, status=DRIVER)),
        ("create@3..5:perm*2", at(3, 4, of=10, status=DRIVER)),
        ("create:notready*4", at(1, 2, 3, 4, of=10, status=NOT_READY)),
        ("create@8:oom*2", at(8, 9, of=10, status=OUT_OF_MEMORY)),
        ("create", [OUT_OF_MEMORY] * 10),
        ("any@2:invalid", at(2, of=10, status=INVALID)),
        ("create@over=8MiB:oom", at(*range(5, 11), of=10, status=OUT_OF_MEMORY)),
        ("create@over=0x800000", at(*range(5, 11), of=10, status=OUT_OF_MEMORY)),
        ("create@4:lost", [OK] * 3 + [DEVICE_LOST] * 7),
        ("create@p=1:invalid*3", at(1, 2, 3, of=10, status=INVALID)),
        ("create@p=0", [OK] * 10),
        ("map@1;unmap@1;event_query:notready*20", [OK] * 10),
        ("create@2;create@4:perm", at(2, of=3, status=OUT_OF_MEMORY) + [DRIVER] + [OK] * 6),
        ("create@2;create@2:perm", at(2, of=10, status=OUT_OF_MEMORY)),
        ("", [OK] * 10),
    ],
)
def test_which_calls_fail(rules: str, want: list[int]) -> None:
    with Driver(driver="null", fail=rules) as driver:
        assert creates(driver, 10) == want


def test_a_failed_call_does_not_reach_the_driver() -> None:
    with Driver(driver="null", fail="create@2:oom", checking=1) as driver:
        free = driver.memory().free
        creates(driver, 3)
        assert driver.memory().free == free - 2 * SIZE
        assert driver.call("count", 0, 0)[0] == 2  # Driver::kCreate
        with pytest.raises(Refused):
            driver.call("unmap", 0, 0, SIZE)
    with Driver(driver="null", fail="create@1:perm") as driver, pytest.raises(Refused) as refused:
        driver.create(SIZE)
    assert refused.value.reason == "the call create failed (injected)"


def test_a_lost_device_answers_nothing_any_more() -> None:
    with Driver(driver="null", devices=2, fail="event_query@3:lost") as driver:
        event = driver.event()
        driver.call("set_capturing", 0, 1, 1)
        assert driver.ask("capturing", 0, 1) == 1
        statuses = [driver.status("event_query", 0, event) for _ in range(4)]
        assert statuses == [OK, OK, DEVICE_LOST, DEVICE_LOST]
        assert driver.status("device_sync", 0) == DEVICE_LOST
        assert driver.status("device_sync", 1) == DEVICE_LOST
        assert driver.ask("capturing", 0, 1) == 0
        with pytest.raises(Refused):
            driver.memory()


def test_calls_are_counted_over_all_devices() -> None:
    with Driver(driver="null", devices=2, fail="create@3") as driver:
        driver.create(SIZE, 0)
        driver.create(SIZE, 1)
        with pytest.raises(Refused):
            driver.create(SIZE, 0)


def test_calls_in_a_range_of_addresses() -> None:
    with Driver(driver="null") as driver:
        base = driver.reserve(8 * SIZE)  # the same in every null driver
    where = f"{base + 2 * SIZE:#x}..{base + 4 * SIZE}"
    with Driver(driver="null", fail=f"map@at={where}:invalid;any@at={where}:perm*1") as driver:
        assert driver.reserve(8 * SIZE) == base
        page = driver.create(SIZE)
        slots = [driver.status("map", 0, base + n * SIZE, SIZE, page) for n in range(8)]
        assert slots == at(3, 4, of=8, status=INVALID)
        # The second rule saw those maps first, but the first rule had answered.
        assert driver.status("set_access", 0, base + 2 * SIZE, SIZE) == DRIVER
        assert driver.status("set_access", 0, base + 2 * SIZE, SIZE) == OK


def test_the_last_of_its_kind() -> None:
    rules = "unmap@last;release@last:perm;va_free@last*1;event_destroy@last"
    with Driver(driver="null", devices=2, fail=rules) as driver:
        base = [driver.reserve(4 * SIZE) for _ in range(2)]
        pages = [driver.create(SIZE) for _ in range(4)]
        for slot, page in enumerate(pages):
            driver.map(base[0] + slot * SIZE, SIZE, page)
        driver.create(SIZE, device=1)  # is not counted with those of device 0
        assert driver.status("unmap", 0, base[0] + SIZE, 2 * SIZE) == OK
        assert driver.status("unmap", 0, base[0], SIZE) == OK
        assert driver.status("unmap", 0, base[0] + 3 * SIZE, SIZE) == INVALID
        released = [driver.status("page_release", 0, SIZE, page) for page in pages]
        assert released == [OK, OK, OK, DRIVER]
        assert driver.status("va_free", 0, base[1], 4 * SIZE) == OK
        freed = [driver.status("va_free", 0, base[0], 4 * SIZE) for _ in range(2)]
        assert freed == [INVALID, OK]
        events = [driver.event() for _ in range(2)]
        assert [driver.status("event_destroy", 0, event) for event in events] == [OK, INVALID]


def test_chance_is_the_same_every_time_and_about_right() -> None:
    runs = []
    for seed in (3, 3, 4):
        with Driver(driver="null", fail=f"stream_query@p=0.25,seed={seed}") as driver:
            runs.append(queries(driver, 4000))
    assert runs[0] == runs[1] != runs[2]
    for run in runs:
        # Six standard deviations of a binomial distribution.
        assert abs(run.count(NOT_READY) - 1000) < 6 * (4000 * 0.25 * 0.75) ** 0.5
    # SplitMix64 as its authors give it.
    state, mask, want = 3, (1 << 64) - 1, []
    for _ in range(4000):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        want.append(NOT_READY if ((z ^ (z >> 31)) >> 11) / 2**53 < 0.25 else OK)
    assert runs[0] == want


def test_the_usual_errors() -> None:
    usual = {"create": OUT_OF_MEMORY, "reserve": OUT_OF_MEMORY}
    usual |= {"stream_query": NOT_READY, "event_query": NOT_READY}
    with Driver(driver="null", fail="any") as driver:
        buffer = bytes(8)
        asked = {
            "stream_query": ("stream_query", 0, 1),
            "event_query": ("event_query", 0, 1),
            "event_sync": ("event_sync", 0, 1),
            "map": ("map", 0, 0, SIZE, 1),
            "device_sync": ("device_sync", 0),
            "copy_in": ("copy_in", 0, 0, buffer, 8),
        }
        for name, call in asked.items():
            assert driver.status(*call) == usual.get(name, INVALID), name
        assert creates(driver, 1) == [OUT_OF_MEMORY]
        with pytest.raises(Refused) as refused:
            driver.reserve(SIZE)
        assert refused.value.status == OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("creat@7", 'in the rule "creat@7" the call must be any or one of reserve, va_free, '),
        ("", None),
        ("create;", 'in the rule "" the call must be any or one of '),
        ("create@0", "there must be 7, 3..5, last, p=, over= or at=, but there is"),
        ("create@5..3", 'but there is "5..3"'),
        ("create@x", 'behind @ there must be 7, 3..5, last, p=, over= or at=, but there is "x"'),
        ("create@-1", 'but there is "-1"'),
        ("create@7:enomem", "the error must be oom, invalid, notready, perm or lost, but is"),
        ("create@7:", 'or lost, but is ""'),
        ("create@last", "last is for unmap, release, va_free and event_destroy only"),
        ("any@last", "last is for unmap, release, va_free and event_destroy only"),
        ("map@over=1MiB", "over is for create only"),
        ("create@over=1MB", 'over must be a size like 64MiB, but is "1MB"'),
        ("create@at=0..1", "create has no address"),
        ("map@at=0x20..0x10", "at must be a range of addresses like 0x1000..0x2000, but is"),
        ("map@at=5", 'like 0x1000..0x2000, but is "5"'),
        ("map@p=1.5", 'p must be from 0 to 1, but is "1.5"'),
        ("map@p=nan", 'p must be from 0 to 1, but is "nan"'),
        ("map@p=0.5,sed=3", 'behind p there may be seed=NUMBER, but there is "sed=3"'),
        ("map*0", 'behind * there must be a number from 1, but there is "0"'),
        ("map:oom*", 'behind * there must be a number from 1, but there is ""'),
        ("map@99999999999999999999", "behind @ there must be"),
    ],
)
def test_a_text_that_breaks_a_rule(text: str, sentence: str | None) -> None:
    status = library().vmm_driver_check_failures(text.encode())
    assert (status == OK) == (sentence is None)
    if sentence is not None:
        assert last_error().startswith("fail: in the rule ")
        assert sentence in last_error()
        with pytest.raises(Refused) as refused:
            Driver(fail=text)
        assert sentence in refused.value.reason


def test_every_call_has_a_name() -> None:
    for name in [*CALLS, "any"]:
        assert library().vmm_driver_check_failures(f"{name}@3:oom".encode()) == OK
    library().vmm_driver_check_failures(b"nothing")
    assert f"one of {', '.join(CALLS)}, but" in last_error()


numbers = st.integers(1, 12)
ranges = st.tuples(numbers, numbers).map(sorted).map(lambda pair: f"{pair[0]}..{pair[1]}")
places = st.one_of(st.none(), numbers.map(str), ranges)
written = st.tuples(places, st.sampled_from(sorted(ERRORS)), st.one_of(st.none(), numbers))


def failing(place: str | None, times: int | None) -> list[int]:
    """The numbers of the calls that one rule lets fail, of twenty."""
    first, last = 1, 20
    if place:
        begin, _, end = place.partition("..")
        first = int(begin)
        last = int(end) if end else (20 if times else first)
    hit = [number for number in range(1, 21) if first <= number <= last]
    return hit[:times] if times else hit


@settings(max_examples=150, deadline=None)
@given(st.lists(written, min_size=1, max_size=3))
def test_any_rules_do_what_a_model_of_them_does(
    rules: list[tuple[str | None, str, int | None]],
) -> None:
    text = ";".join(
        "stream_query" + (f"@{place}" if place else "") + f":{error}" + (f"*{n}" if n else "")
        for place, error, n in rules
    )
    # A rule is used up by the calls that it made fail, not by those where another came first.
    used = [0] * len(rules)
    want = []
    for number in range(1, 21):
        status = OK
        for index, (place, error, times) in enumerate(rules):
            if number not in failing(place, None if not times else 20):
                continue
            if status != OK or (times and used[index] >= times):
                continue
            used[index] += 1
            status = ERRORS[error]
        want.append(status if DEVICE_LOST not in want else DEVICE_LOST)
    with Driver(driver="null", fail=text) as driver:
        assert queries(driver, 20) == want


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="createmap_unloy@:;*=.,0123456789xpKMGiB", max_size=30))
def test_any_text_is_understood_or_refused_with_a_sentence(text: str) -> None:
    if library().vmm_driver_check_failures(text.encode()) != OK:
        assert last_error().startswith('fail: in the rule "')
        assert any(f'"{part}"' in last_error() for part in text.split(";"))


@pytest.mark.parametrize("error", ["perm", "oom"])
def test_whatever_call_fails_all_can_be_given_back(error: str) -> None:
    def take(driver: Driver, mapped: dict[int, int], pages: list[int], base: int) -> None:
        rng = random.Random(5)
        for _ in range(30):
            at = base + rng.randrange(8) * SIZE
            if at in mapped:
                driver.call("unmap", 0, at, SIZE)
                pages.append(mapped.pop(at))
                continue
            if not pages:
                pages.append(driver.create(SIZE))
            driver.call("map", 0, at, SIZE, pages[-1])
            mapped[at] = pages.pop()
            driver.call("set_access", 0, at, SIZE)

    statuses = []
    for number in range(2, 90):
        rules = f"any@{number}:{error}"
        with Driver(driver="host", device_bytes="32MiB", checking=1, fail=rules) as driver:
            base = driver.reserve(8 * SIZE)
            mapped: dict[int, int] = {}
            pages: list[int] = []
            try:
                take(driver, mapped, pages, base)
                continue  # the number was too big
            except Refused as refused:
                statuses.append(refused.status)
            for at in mapped:
                driver.call("unmap", 0, at, SIZE)
            for page in [*pages, *mapped.values()]:
                driver.call("page_release", 0, SIZE, page)
            driver.call("va_free", 0, base, 8 * SIZE)
            assert driver.ask("leaks") == ""
            assert driver.ask("violations") == ""
            assert driver.memory() == (32 * MiB, 32 * MiB)
    assert len(statuses) > 30
    assert set(statuses) == {ERRORS[error]}
