# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``python -m vmm convert``: other tools' memory traces as a vmm-trace, a summary, or a check."""

from __future__ import annotations

import argparse
from pathlib import Path

from vmm.errors import Invalid


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", help="a trace or snapshot of any supported format")
    parser.add_argument(
        "output", metavar="OUT", nargs="?", help="file to write, compressed if it ends in .gz"
    )
    parser.add_argument("--device", type=int, help="the device to read, where the file has several")
    parser.add_argument("--info", action="store_true", help="print what is in the trace")
    parser.add_argument(
        "--exact",
        action="store_true",
        help="replay a torch snapshot through the model of torch's allocator and compare addresses",
    )
    parser.add_argument(
        "--settings",
        metavar="KEY:VALUE,...",
        help="for --exact: PYTORCH_CUDA_ALLOC_CONF, where the snapshot does not tell it",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.settings is not None and not arguments.exact:
        raise Invalid("--settings is for --exact")
    if arguments.exact:
        if arguments.output is not None or arguments.info:
            raise Invalid("--exact writes no file and no summary")
        return _exact(arguments)
    if arguments.output is None and not arguments.info:
        raise Invalid("there is nothing to do: name the file OUT, or ask for --info or --exact")
    from vmm.sim import trace_file
    from vmm.sim.readers import read_any

    trace = read_any(arguments.input, device=arguments.device)
    if arguments.info:
        from vmm.sim.trace_summary import summary

        for name, value in summary(trace):
            print(f"{name + ':':<18}{value}")
    if arguments.output is not None:
        if not arguments.output.removesuffix(".gz").endswith(".vmmtrace"):
            raise Invalid(
                f"OUT is {arguments.output!r}; its name ends in .vmmtrace or .vmmtrace.gz"
            )
        trace_file.write(arguments.output, trace)
        print(f"{len(trace)} events written to {Path(arguments.output).name}")
    return 0


def _exact(arguments: argparse.Namespace) -> int:
    from vmm.sim.exact import check_exact
    from vmm.sim.models.torch_settings import TorchSettings
    from vmm.sim.readers import read_snapshot

    snapshot = read_snapshot(arguments.input, device=arguments.device)
    given = arguments.settings
    result = check_exact(snapshot, None if given is None else TorchSettings.from_text(given))
    print(result)
    return 0 if result.exact else 1
