# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Kills processes that save version after version onto the same path, and looks at what is left.

Run as a program, because it forks; prints how often each outcome was met.
"""

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter

import torch

import flexckpt

TENSORS = 12


def versioned(version: int) -> dict[str, torch.Tensor]:
    return {f"t{n}": torch.full((64, n + 1), version, dtype=torch.int32) for n in range(TENSORS)}


def save_forever(path: str, version: int, told: int) -> None:
    """Save versions after ``version``, and tell each that is committed."""
    while True:
        version += 1
        saving = flexckpt.save(
            versioned(version), path, extra={"version": version}, async_=bool(version % 2)
        )
        saving.wait()
        os.write(told, version.to_bytes(4, "little"))


def version_at(path: str) -> int:
    """The version that is at ``path``, which must be the same in every element."""
    targets = versioned(-1)
    report = flexckpt.load(targets, path)
    found = {n for t in targets.values() for n in t.flatten().tolist()}
    if found != {report.extra["version"]}:
        raise SystemExit(f"mixed versions {found}, the index says {report.extra}")
    return int(found.pop())


def main(path: str, kills: int) -> None:
    torch.set_num_threads(1)
    chance = random.Random(7)
    flexckpt.save(versioned(0), path, extra={"version": 0})
    version, outcomes = 0, Counter[str]()
    for _ in range(kills):
        ours, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                save_forever(path, version, told)
            os._exit(1)
        os.close(told)
        time.sleep(chance.uniform(0.0, 0.08))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if status != signal.SIGKILL:
            raise SystemExit(f"the saving process ended by itself, status {status}")
        with os.fdopen(ours, "rb") as pipe:
            said = pipe.read()
        committed = int.from_bytes(said[-4:], "little") if said else version
        version = version_at(path)
        if version not in (committed, committed + 1):
            raise SystemExit(f"version {committed} was committed, but {version} is there")
        left = [name for name in os.listdir(os.path.dirname(path)) if name.endswith(".partial")]
        if len(left) > 1:
            raise SystemExit(f"left-over folders are not removed: {left}")
        outcomes["new, not told" if version > committed else "told"] += 1
        outcomes["left over"] += len(left)
    flexckpt.save(versioned(version), path)
    print(dict(outcomes), os.listdir(os.path.dirname(path)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
