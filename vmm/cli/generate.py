# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``python -m vmm generate``: the trace of a modelled workload, or all of the suite."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmm.errors import Invalid

if TYPE_CHECKING:
    from vmm.sim.generators.registry import Generator
    from vmm.sim.trace import Trace

_ENDINGS = (".vmmtrace", ".vmmtrace.gz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a generator, or one of the suite")
    parser.add_argument(
        "output", metavar="OUT", nargs="?", help="file to write, compressed if it ends in .gz"
    )
    parser.add_argument("--list", action="store_true", help="the generators and their parameters")
    parser.add_argument("--suite", metavar="DIR", help="write the whole suite into a folder")
    parser.add_argument("--seed", type=int, help="of the random numbers")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="another parameter; may be given several times",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.list + (arguments.suite is not None) + (arguments.name is not None) != 1:
        raise Invalid("generate takes one of NAME OUT, --suite DIR and --list")
    if arguments.list:
        if arguments.set or arguments.seed is not None:
            raise Invalid("--list takes no parameters")
        _print_list()
    elif arguments.suite is not None:
        _write_suite(Path(arguments.suite), arguments)
    else:
        if arguments.output is None:
            raise Invalid("there is nowhere to write: name the file OUT")
        _write(Path(arguments.output), _make(arguments.name, arguments))
    return 0


def _make(name: str, arguments: argparse.Namespace) -> Trace:
    from vmm.sim import suite
    from vmm.sim.generators.registry import GENERATORS, generator

    if name in suite.SUITE:
        return suite.trace(name, **_given(generator(suite.SUITE[name][0]), arguments))
    if name not in GENERATORS:
        known = ", ".join([*GENERATORS, *(each for each in suite.SUITE if each not in GENERATORS)])
        raise Invalid(f"there is no workload {name!r}; known are {known}")
    chosen = generator(name)
    return chosen.generate(_given(chosen, arguments))


def _given(chosen: Generator, arguments: argparse.Namespace) -> dict[str, Any]:
    from vmm.sim.generators.parameters import from_text

    given: dict[str, Any] = {}
    for text in arguments.set:
        key, equals, value = text.partition("=")
        if not equals:
            raise Invalid(f"--set takes KEY=VALUE, not {text!r}")
        given[key] = from_text(chosen.parameters, key, value)
    if arguments.seed is not None:
        if "seed" in given:
            raise Invalid("the seed is given twice")
        given["seed"] = arguments.seed
    return given


def _write(path: Path, trace: Trace) -> None:
    from vmm.sim import trace_file

    if not path.name.endswith(_ENDINGS):
        raise Invalid(f"OUT is {path.name!r}; its name ends in .vmmtrace or .vmmtrace.gz")
    trace_file.write(path, trace)
    print(f"{len(trace)} events written to {path.name}")


def _write_suite(folder: Path, arguments: argparse.Namespace) -> None:
    from vmm.sim import suite

    if arguments.set:
        raise Invalid("--set is for one workload; --suite takes only --seed")
    folder.mkdir(parents=True, exist_ok=True)
    for name in suite.SUITE:
        _write(folder / f"{name}.vmmtrace.gz", _make(name, arguments))


def _print_list() -> None:
    from vmm.sim import suite
    from vmm.sim.generators.parameters import Parameters, describe
    from vmm.sim.generators.registry import GENERATORS, generator

    common = {row[0]: row for row in describe(Parameters)}
    for name in GENERATORS:
        chosen = generator(name)
        print(f"{name}: {chosen.text}")
        for key, default, text in describe(chosen.parameters):
            if common.get(key, ("", None, ""))[1] != default:
                print(f"  {key:<14}{_plain(default):<12}{text}")
        print()
    print("all of them:")
    for key, default, text in common.values():
        print(f"  {key:<14}{_plain(default):<12}{text}")
    print("\nthe suite:")
    for name, (kind, own) in suite.SUITE.items():
        changed = " ".join(f"{key}={_plain(value)}" for key, value in own.items())
        print(f"  {name:<16}{kind:<16}{changed}".rstrip())


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
