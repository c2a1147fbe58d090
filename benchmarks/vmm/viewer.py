# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How long a page of the viewer takes to open: `python -m benchmarks.vmm.viewer`.

Each load gets a new, empty profile of headless Chromium, and counts until the page has unpacked its
data, drawn the first view and waited two frames (its mark ``vmm-ready``). A second figure follows
from the mark to the end of the first change by hand: the cursor moved and drawn. Building the page
is timed apart. The data is a made-up recording with pages, tags and stacks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.vmm.synthetic_recording import synthetic_recording
from vmm.sim.trace_file import write
from vmm.view.open_file import open_recording
from vmm.view.page_file import write_page

TARGET_SECONDS = 3.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# From the start of the navigation: what the page says, then how long a change takes.
READY = "window.__vmmReady > 0 ? window.__vmmReady : 0"
CHANGE = """(async () => {
  const begin = performance.now();
  vmmView.setCursor(vmmView.store, Math.floor(vmmView.store.recording.n / 3));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - begin;
})()"""
TAB = """(async (name) => {
  const begin = performance.now();
  vmmView.tabs.open(name);
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - begin;
})"""


def build(path: Path, events: int) -> dict[str, Any]:
    """Writes the page; the seconds that reading and building took, and sizes in bytes."""
    source = path.with_suffix(".vmmtrace")
    trace = synthetic_recording(events)
    write(source, trace)
    begin = time.perf_counter()
    recording = open_recording(source)
    read = time.perf_counter()
    size = write_page(path, [recording])
    built = time.perf_counter()
    return {
        "events": len(recording),
        "file_bytes": source.stat().st_size,
        "page_bytes": size,
        "read_s": round(read - begin, 3),
        "build_s": round(built - read, 3),
    }


def load(driver: Any, browser: str, path: Path) -> dict[str, float]:
    """Seconds of one load in a new browser, and of each view opened after that."""
    started = driver.chromium.launch(executable_path=browser, args=ARGUMENTS)
    try:
        page = started.new_page(viewport={"width": 1280, "height": 800})
        page.goto(path.as_uri())
        while not (ready := page.evaluate(READY)):
            page.wait_for_timeout(5)
        figures = {"open_s": ready / 1e3, "move_cursor_s": page.evaluate(CHANGE) / 1e3}
        shown = (
            "[...document.querySelectorAll('#tabs button:not([hidden])')].map(e => e.id.slice(4))"
        )
        for name in page.evaluate(shown):
            figures[f"show_{name}_s"] = page.evaluate(f"{TAB}({json.dumps(name)})") / 1e3
        return figures
    finally:
        started.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="about so many events")
    parser.add_argument("--loads", type=int, default=5, help="loads, whose median is reported")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"There is none of {', '.join(BROWSERS)}: nothing was measured.", file=sys.stderr)
        return 1
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "page.html"
        figures = build(path, arguments.events)
        loads = [load(driver, browser, path) for _ in range(arguments.loads)]
    figures |= {
        name: round(statistics.median(each[name] for each in loads), 3) for name in loads[0]
    }
    figures["opens_s"] = [round(each["open_s"], 3) for each in loads]
    figures["target_s"] = TARGET_SECONDS
    figures["met"] = figures["open_s"] < TARGET_SECONDS
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
