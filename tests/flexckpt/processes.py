# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Runs a function in several gloo processes, which stay alive for the next one.

A process that imports torch costs seconds, so up to four of them are kept until the tests end. Each
run gets a process group of its own. A process that died or hangs is killed and replaced.
"""

import atexit
import contextlib
import datetime
import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

MOST_RANKS = 4
GRACE_S = 10.0  # how long the other ranks may go on after one has failed


class Outcome(NamedTuple):
    """How a rank ended.

    Attributes:
        value: what the function returned.
        error: the traceback, or a sentence if the process died or hung; None if it returned.
        died: whether the process ended without an answer.
    """

    value: Any = None
    error: str | None = None
    died: bool = False


class RankError(AssertionError):
    """At least one rank failed. The message holds the traceback of each that did."""


def run_ranks(
    function: Callable[..., Any], size: int, *args: Any, timeout: float = 60.0
) -> list[Any]:
    """What ``function(*args)`` returns on each of ``size`` ranks of a gloo process group.

    The function must be importable (of a module, not a lambda); it finds its rank by
    ``torch.distributed.get_rank()``. Arguments and results travel pickled.

    Raises:
        RankError: if a rank raises, dies or is not done within ``timeout`` seconds.
    """
    outcomes = _run(function, size, args, timeout, GRACE_S)
    failed = [f"rank {rank}: {o.error}" for rank, o in enumerate(outcomes) if o.error]
    if failed:
        raise RankError("\n".join([f"{function.__qualname__} failed", *failed]))
    return [o.value for o in outcomes]


def run_to_outcomes(
    function: Callable[..., Any], size: int, *args: Any, timeout: float = 60.0
) -> list[Outcome]:
    """Like :func:`run_ranks` for ranks that are meant to fail: how each of them ended."""
    return _run(function, size, args, timeout, timeout)


def _run(
    function: Callable[..., Any], size: int, args: Any, timeout: float, grace: float
) -> list[Outcome]:
    if not 1 <= size <= MOST_RANKS:
        raise ValueError(f"size must be 1 to {MOST_RANKS}, not {size}")
    job = pickle.dumps((function, args))
    with tempfile.TemporaryDirectory() as folder:
        workers = [_worker(rank) for rank in range(size)]
        for rank, worker in enumerate(workers):
            worker.start_job((rank, size, folder, timeout, job))
        outcomes = _collect(workers, timeout, grace, Path(folder))
    for rank, (worker, outcome) in enumerate(zip(workers, outcomes, strict=True)):
        if outcome.died:
            worker.kill()
            del _pool[rank]
    return outcomes


def _collect(workers: "list[_Worker]", timeout: float, grace: float, folder: Path) -> list[Outcome]:
    deadline = time.monotonic() + timeout
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < len(workers):
        busy = [rank for rank in range(len(workers)) if rank not in outcomes]
        pipes = [workers[rank].pipe for rank in busy]
        ready = connection.wait(pipes, max(0.0, deadline - time.monotonic()))
        for rank in busy:
            if workers[rank].pipe in ready:
                outcomes[rank] = workers[rank].answer()
        if any(o.error for o in outcomes.values()):
            deadline = min(deadline, time.monotonic() + grace)
        if not ready:
            for rank in busy:
                stack = workers[rank].stack(folder / f"stack{rank}")
                outcomes[rank] = Outcome(error=f"still busy, stopped in\n{stack}", died=True)
    return [outcomes[rank] for rank in range(len(workers))]


class _Worker:
    """A process and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()

    def start_job(self, job: Any) -> None:
        with contextlib.suppress(OSError):  # a dead process is noticed by answer()
            self.pipe.send(job)

    def answer(self) -> Outcome:
        try:
            outcome: Outcome = pickle.loads(self.pipe.recv_bytes())
            return outcome
        except (EOFError, OSError):
            self.process.join()
            return Outcome(error=f"died with exit code {self.process.exitcode}", died=True)

    def stack(self, path: Path) -> str:
        """Where the process is busy; empty if it is not even listening."""
        if not path.exists():
            return ""
        os.kill(self.process.pid or 0, signal.SIGUSR1)
        for _ in range(100):
            if path.stat().st_size:
                break
            time.sleep(0.01)
        return path.read_text()

    def kill(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


_pool: dict[int, _Worker] = {}


def _worker(rank: int) -> _Worker:
    worker = _pool.get(rank)
    if worker is not None and not worker.process.is_alive():
        worker.kill()
        worker = None
    if worker is None:
        worker = _pool[rank] = _Worker()
    return worker


@atexit.register
def _stop() -> None:
    for worker in _pool.values():
        worker.kill()
    _pool.clear()


def _serve(pipe: "connection.Connection") -> None:
    """Life of a process: jobs until the pipe is closed."""
    torch.set_num_threads(1)
    while True:
        try:
            rank, size, folder, timeout, job = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        with open(Path(folder) / f"stack{rank}", "w") as stack:
            faulthandler.register(signal.SIGUSR1, file=stack)
            answer = _answer(rank, size, folder, timeout, job)
            faulthandler.unregister(signal.SIGUSR1)
        pipe.send_bytes(answer)


def _answer(rank: int, size: int, folder: str, timeout: float, job: bytes) -> bytes:
    try:
        function, args = pickle.loads(job)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=timeout),
        )
        torch.manual_seed(0)
        return pickle.dumps(Outcome(function(*args)))
    except BaseException:
        return pickle.dumps(Outcome(error=traceback.format_exc()))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
