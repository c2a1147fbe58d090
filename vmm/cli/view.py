# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``python -m vmm view``: a recording, a snapshot or a trace as one HTML page, or as text."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from vmm.view.words import short_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("file", type=Path, help="a *.vmmtrace, a torch snapshot, or another trace")
    parser.add_argument(
        "--diff", type=Path, metavar="FILE2", help="a second file, to compare with the first"
    )
    parser.add_argument("--text", action="store_true", help="print to the terminal, no page")
    parser.add_argument(
        "--out", type=Path, metavar="PAGE", help="the page to write (FILE.html in this folder)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument(
        "--range",
        metavar="A:B",
        help="only events A to B - 1: event numbers, or times with a unit such as 10ms:1.5s",
    )
    parser.add_argument(
        "--device", type=int, metavar="N", help="the device, where a file has several"
    )


def run(arguments: argparse.Namespace) -> int:
    """Shows the file; returns the exit status."""
    from vmm.view.open_file import open_recording

    paths = [arguments.file, *([arguments.diff] if arguments.diff else [])]
    recordings = [open_recording(path, arguments.range, arguments.device) for path in paths]
    if arguments.text:
        from vmm.view import text

        if arguments.diff:
            text.print_diff(recordings[0], recordings[1])
        else:
            text.print_recording(recordings[0])
        return 0
    from vmm.view.page_file import write_page

    out = arguments.out or Path(f"{arguments.file.name}.html")
    size = write_page(out, recordings)
    print(f"{out}: {sum(map(len, recordings)):,} events, {short_bytes(size)}")
    if not all(recording.has_addresses for recording in recordings):
        print("There are no addresses in the file, so the page has no map and no free runs.")
    if arguments.open:
        webbrowser.open(out.resolve().as_uri())
    return 0
