# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Names are text whatever is in them, nothing is fetched, both themes and empty files work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.vmm.synthetic_recording import synthetic_recording
from vmm.sim.trace import from_events
from vmm.view.from_trace import from_trace
from vmm.view.page_file import html

HOSTILE = [
    "</script><script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "\"quotes\" & 'quotes' &amp; `ticks` ${window.hit = 1}",
    "наименование — 名前 — שם — \u202e\u0000",
]
CLOSED = [
    "default-src 'none'",
    "script-src 'unsafe-inline'",
    "style-src 'unsafe-inline'",
]


def hostile() -> Any:
    trace = synthetic_recording(2000, seed=1, live=40, step=400)
    tags = ["", *HOSTILE, *HOSTILE]
    stacks = [[[text, 3, text]] * 3 for text in tags]
    trace.header.update(tags=tags, stacks=[stacks[i % len(stacks)] for i in range(29)])
    trace.header.update(source=HOSTILE[0], notes=HOSTILE)
    return from_trace(trace, HOSTILE[1])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_names_are_text(show: Any, scheme: str) -> None:
    opened = show(hostile(), hostile(), scheme=scheme)
    for tab in opened.tabs():
        opened.open(tab)
        opened.page.hover(f"#view-{tab}")
    assert opened.page.evaluate("window.hit") is None
    assert opened.page.evaluate("document.querySelectorAll('img, script.recording').length") == 0
    opened.open("timeline")
    legend = opened.text("#view-timeline .legend")
    assert all(text.rstrip("\u0000") in legend for text in HOSTILE)
    assert all(text.rstrip("\u0000") in opened.text("#notes") for text in HOSTILE)
    names = opened.page.evaluate(
        "[...document.querySelectorAll('#diff-growth tbody tr')].map(row => row.dataset.name)"
    )
    assert set(HOSTILE) <= set(names)
    opened.check_quiet()


def test_no_tag_of_the_page_can_be_closed_by_its_data() -> None:
    page = html([hostile()])
    assert page.count("</script>") == page.count("<script") == 2
    assert all(text not in page for text in HOSTILE[:2])
    policy = page[: page.index("<title>")]
    assert all(rule in policy for rule in CLOSED)
    assert "http://" not in page.replace('http-equiv="', "")
    assert "https://" not in page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(show: Any, scheme: str) -> None:
    opened = show(synthetic_recording(500, live=20), scheme=scheme)

    def brightness() -> float:
        color = opened.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return float(np.mean([int(part) for part in color[4:-1].split(",")]))

    def picture() -> str:
        return str(opened.page.evaluate("document.querySelector('#overview').toDataURL()"))

    before, drawn = brightness(), picture()
    assert (before > 128) == (scheme == "light")
    opened.page.click("#theme")
    opened.drawn()
    assert (brightness() > 128) == (scheme == "dark")
    assert picture() != drawn
    opened.page.click("#theme")
    opened.drawn()
    assert (brightness(), picture()) == (before, drawn)
    opened.check_quiet()


@pytest.mark.parametrize("size", [(800, 900), (1600, 1000)])
def test_nothing_is_wider_than_the_window(show: Any, size: tuple[int, int]) -> None:
    opened = show(synthetic_recording(1500, live=40), hostile(), size=size)
    for tab in opened.tabs():
        opened.open(tab)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= size[0]
        overlapping = opened.page.evaluate(_OVERLAPS)
        assert overlapping == []
    opened.check_quiet()


# Pairs of elements with text of their own whose boxes cover one another.
_OVERLAPS = """(() => {
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const seen = [...document.querySelectorAll('#page *, header *')].filter(
    (e) => own(e) && e.checkVisibility() && !e.closest('select, .event-list, .stack, .history'));
  const found = [];
  for (const [i, a] of seen.entries()) {
    const ra = a.getBoundingClientRect();
    for (const b of seen.slice(i + 1)) {
      if (a.contains(b) || b.contains(a) || a.closest('.cursor-bar') !== b.closest('.cursor-bar'))
        continue;
      const rb = b.getBoundingClientRect();
      const wide = Math.min(ra.right, rb.right) - Math.max(ra.left, rb.left);
      const high = Math.min(ra.bottom, rb.bottom) - Math.max(ra.top, rb.top);
      const inline = [a, b].some((e) => getComputedStyle(e).display === 'inline');
      if (wide > 2 && high > 2 && !inline) found.push([a.textContent, b.textContent]);
    }
  }
  return found;
})()"""


def test_a_trace_without_addresses_has_no_map(show: Any) -> None:
    trace = from_events([(0, "a", 0, 700), (10, "a", 1, 300), (20, "f", 0), (30, "a", 2, 100)])
    opened = show(trace)
    assert opened.tabs() == ["timeline", "events", "lifetime"]
    assert "no addresses" in opened.text("#notes")
    assert opened.value("#peak-live") == 1000
    assert opened.page.query_selector("#peak-held") is None
    for tab in opened.tabs():
        opened.open(tab)
    opened.check_quiet()


def test_a_trace_with_addresses_alone_has_a_map_of_blocks(show: Any) -> None:
    trace = from_events([(0, "a", 0, 700), (10, "a", 1, 300), (20, "f", 0), (30, "a", 2, 100)])
    trace.extra["addr"] = np.array([4096, 4096 + 700, 0, 4096])
    opened = show(trace)
    assert opened.tabs() == ["timeline", "map", "events", "lifetime"]
    assert "trace of requests" in opened.text("#file")
    opened.open("map")
    opened.cursor(1)
    assert opened.value("#map-blocks") == 2
    assert opened.value("#map-bytes") == 1000
    assert not opened.page.is_visible("canvas.pages")
    opened.check_quiet()


def test_a_file_without_events_says_so(show: Any) -> None:
    opened = show(from_events([]))
    assert opened.text("#nothing") == "The file holds no events."
    assert not opened.page.is_visible("#page")
    opened.check_quiet()


def test_a_file_of_marks_alone_is_shown(show: Any) -> None:
    opened = show(from_events([(0, "m", -1), (5, "m", -1)]))
    assert opened.value("#peak-live") == 0
    for tab in opened.tabs():
        opened.open(tab)
    opened.check_quiet()
