# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""One browser for all tests of the page; a page that was told to fetch nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vmm.sim.trace import Trace
from vmm.view.from_trace import from_trace
from vmm.view.page_file import write_page

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


class Opened:
    """A page of the viewer in the browser."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(f"{message.type}: {message.text}"))
        self.path = path
        page.goto(path.as_uri())
        self.settle("window.__vmmReady > 0")

    def settle(self, condition: str) -> None:
        """Waits until the condition holds in the page."""
        for _ in range(1000):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(10)
        raise AssertionError(f"the page never reached {condition}; errors: {self.errors}")

    def drawn(self) -> None:
        """Waits until what was changed is on the screen."""
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def open(self, tab: str) -> None:
        self.page.click(f"#tab-{tab}")
        self.drawn()

    def cursor(self, event: int) -> None:
        self.page.evaluate(f"vmmView.setCursor(vmmView.store, {event})")
        self.drawn()

    def value(self, selector: str) -> float:
        """The number behind a text of the page."""
        return float(self.page.get_attribute(selector, "data-value"))

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def tabs(self) -> list[str]:
        found = self.page.query_selector_all("#tabs button:not([hidden])")
        return [str(tab.get_attribute("id")).removeprefix("tab-") for tab in found]

    def check_quiet(self) -> None:
        """No error, no message, and nothing was asked for but the file itself."""
        assert self.errors == []
        assert self.requests == [self.path.as_uri()]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Shows traces (or finished recordings) in a new page."""
    contexts = []

    def opened(*shown: Any, scheme: str = "light", size: tuple[int, int] = (1280, 800)) -> Opened:
        names = ("first.vmmtrace", "second.vmmtrace")
        recordings = [
            from_trace(each, name) if isinstance(each, Trace) else each
            for each, name in zip(shown, names, strict=False)
        ]
        path = tmp_path / "page.html"
        write_page(path, recordings)
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": size[0], "height": size[1]}
        )
        page = Opened(context.new_page(), path)
        contexts.append((context, page))
        return page

    yield opened
    for context, page in contexts:
        context.close()
        assert page.errors == []
