# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The page: one HTML file with everything in it, which asks the network for nothing."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from importlib.resources import files

from vmm.errors import Invalid
from vmm.sim.atomic_file import new_file
from vmm.view.bundle import bundle
from vmm.view.contents import contents
from vmm.view.recording import Recording

STYLES = ("theme.css", "layout.css", "views.css")
ENTRY = "main.js"


def html(recordings: Sequence[Recording]) -> str:
    """The page of one recording, or of two to compare. Raises `Invalid` for another number."""
    if not 1 <= len(recordings) <= 2:
        raise Invalid(f"a page shows one or two recordings, not {len(recordings)}")
    folder = files("vmm.view").joinpath("page")
    texts = {
        item.name: item.read_text(encoding="utf-8")
        for item in folder.iterdir()
        if item.name.endswith((".js", ".css", ".html"))
    }
    data = "\n".join(
        # Base64 has no character that could end the element.
        f'<script type="text/plain" class="recording">{base64.b64encode(contents(each)).decode()}'
        "</script>"
        for each in recordings
    )
    page = texts["page.html"]
    parts = {
        "<!-- style -->": f"<style>\n{''.join(texts[name] for name in STYLES)}</style>",
        "<!-- data -->": data,
        "<!-- script -->": f'<script type="module">\n{bundle(texts, ENTRY)}</script>',
    }
    for mark, text in parts.items():
        head, found, tail = page.partition(mark)
        assert found, f"page.html has no {mark}"
        page = head + text + tail
    return page


def write_page(path: str | os.PathLike[str], recordings: Sequence[Recording]) -> int:
    """Writes the page, whole or not at all. Returns its bytes."""
    data = html(recordings).encode()
    with new_file(path) as file:
        file.write(data)
    return len(data)
