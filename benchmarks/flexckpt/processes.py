# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Where calls are measured: in ranks that stay for all rounds, or in a fresh process each.

    python -m benchmarks.flexckpt.processes MODULE FUNCTION SETTINGS ARGUMENTS

is what each process runs. FUNCTION takes the settings and the arguments; its result is printed by
rank 0 as the last line, in JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.flexckpt.measure import (
    Contender,
    Cost,
    measured,
    medians,
    together,
)
from benchmarks.flexckpt.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def start(
    function: Callable[..., Any],
    settings: Settings,
    arguments: dict[str, Any] | None = None,
    *,
    ranks: int = 1,
    python: str = sys.executable,
) -> Any:
    """Runs ``function(settings, **arguments)`` in new processes; the result of rank 0.

    With several ranks, each has the variables that `torch.distributed` wants and one thread.

    Raises:
        RuntimeError: if a rank fails; its last lines are the message.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, "-m", "benchmarks.flexckpt.processes", function.__module__]
    command += [function.__qualname__, settings.to_json(), json.dumps(arguments or {})]
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    if ranks > 1:
        environment["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        logs = [stack.enter_context(open(Path(folder, str(rank)), "w+")) for rank in range(ranks)]
        result = Path(folder, "result")
        environment["BENCHMARK_RESULT"] = str(result)
        children = [
            subprocess.Popen(
                command,
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=settings.workdir,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(logs)
        ]
        try:
            wait_for(children, logs)
        finally:
            for child in children:
                child.kill()
        return json.loads(result.read_text())


def wait_for(children: list[subprocess.Popen[bytes]], logs: list[Any]) -> None:
    """Until all are done, or the first one failed."""
    todo = dict(enumerate(children))
    while todo:
        for rank, child in list(todo.items()):
            try:
                code = child.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
            del todo[rank]
            if code:
                logs[rank].seek(0)
                raise RuntimeError(f"rank {rank} ended with {code}:\n{logs[rank].read()[-3000:]}")


def on_ranks(
    contenders: Callable[..., dict[str, Contender]],
    settings: Settings,
    arguments: dict[str, Any] | None = None,
    *,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Rows of the contenders that ``contenders(settings, **arguments)`` makes on each gloo rank.

    All run once unmeasured, then interleaved, in processes that stay.
    """
    where = {"module": contenders.__module__, "name": contenders.__qualname__}
    return start(
        rank_main,
        settings,
        {**where, "arguments": arguments or {}},
        ranks=settings.ranks,
        python=python,
    )


def rank_main(
    settings: Settings, module: str, name: str, arguments: dict[str, Any]
) -> dict[str, Any]:
    """One rank: every contender once per round, a barrier around each."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    contenders = getattr(importlib.import_module(module), name)(settings, **arguments)
    costs: dict[str, list[Cost]] = {contender: [] for contender in contenders}
    for done in range(settings.rounds + 1):
        for key, contender in contenders.items():
            mine = measured(contender, dist.barrier)
            all_costs: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(all_costs, mine)
            if done:  # the first round warms up
                costs[key].append(together(all_costs))
    dist.barrier()
    dist.destroy_process_group()
    return {key: medians(rounds) for key, rounds in costs.items()}


def in_fresh_processes(
    contenders: dict[str, tuple[Callable[..., Contender], dict[str, Any]]],
    settings: Settings,
    pythons: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Rows of contenders, each call in a process of its own, interleaved.

    A contender is a function and its arguments; in the process it returns what is then measured
    once. Imports and preparations are not timed. One unmeasured round fills the page cache.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for done in range(settings.rounds + 1):
        for name, (function, arguments) in contenders.items():
            where = {"module": function.__module__, "name": function.__qualname__}
            python = (pythons or {}).get(name, sys.executable)
            cost = start(once, settings, {**where, "arguments": arguments}, python=python)
            if done:
                costs[name].append(Cost(*cost))
    return {name: medians(rounds) for name, rounds in costs.items()}


def once(settings: Settings, module: str, name: str, arguments: dict[str, Any]) -> Cost:
    """Measures one contender in this process."""
    return measured(getattr(importlib.import_module(module), name)(settings, **arguments))


def main() -> None:
    module, name, settings, arguments = sys.argv[1:]
    function = getattr(importlib.import_module(module), name)
    result = function(Settings.from_json(settings), **json.loads(arguments))
    if os.environ.get("RANK", "0") == "0":
        Path(os.environ["BENCHMARK_RESULT"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
