# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Writes golden_programs.json.gz: random programs with what real Paddle makes of them.

Run from the root of the repository with a Python that has paddlepaddle 3.3.1::

    python -m tests.flexckpt.golden.make_golden

Every program is also evaluated in NumPy. Where both agree, the case says ``verdict: paddle``.
Where they differ the program must be of a kind that Paddle is known to get wrong (``RISKS``); then
the case holds NumPy's values, what Paddle gave, and the reason. Anything else stops the script.
"""

import gzip
import json
import random
from pathlib import Path
from typing import Any

from tests.flexckpt.golden import blocks as b
from tests.flexckpt.golden import layout_blocks as lb
from tests.flexckpt.golden.error_programs import ERRORS
from tests.flexckpt.golden.paddle_engine import evaluate
from tests.flexckpt.golden.program import Program

PROGRAMS = 480
SEED = 20261201
FILE = Path(__file__).with_name("golden_programs.json.gz")

RISKS = {
    "reverse_unequal_concat": "the inverse of a concat of unequal parts cuts into equal ones",
    "reverse_star": "a star is matched against the wrong side in reverse",
    "reverse_offset": "a layer offset is matched against the wrong side in reverse",
    "reverse_layout_count": "in reverse the number of ranks is taken from the wrong side",
    "reverse_unfuse": "the inverse of an unfusing macro asks for the shards of no name",
    "reverse_mixed_casts": "parts of one tensor with casts of their own cannot be joined again",
    "shards_of_another_axis": "the number of ranks counts shards of other axes as well",
    "temporary_hides_source": "a temporary of a macro hides a source tensor of the same name",
    "no_dest_alias": "temporaries of a macro stay among the outputs",
    "star_without_dest": "a star on the right needs destinations",
    "extension": "stars over variables and beside placeholders are an extension",
}

WEIGHTED: list[tuple[lb.Block, int]] = [
    (b.walk, 10),
    (b.layers, 3),
    (b.experts, 2),
    (b.unstack, 1),
    (b.offset, 1),
    (b.passing, 2),
    (b.tied, 1),
    (lb.fused_qkv, 3),
    (lb.fused_ffn, 4),
    (lb.fused_qkv_old, 3),
    (lb.captured, 1),
    (lb.beyond, 1),
]


def build(seed: int) -> tuple[Program, dict[str, Any]]:
    rng = random.Random(f"{SEED}/{seed}")
    mode = rng.choices(("dest", "no_dest", "reverse"), (6, 2, 3))[0]
    program = Program(rng, reverse=mode == "reverse", has_dest=mode != "no_dest")
    kinds, weights = zip(*WEIGHTED, strict=True)
    for i in range(rng.choice((1, 1, 1, 2, 2, 3))):
        block = rng.choices(kinds, weights)[0]
        program.blocks.append(block.__name__)
        block(program, rng.choice(("model", "net", "m", "T")) + str(i))
    case = program.reverse_case() if program.reverse else program.forward_case()
    return program, case


def judged(program: Program, case: dict[str, Any], seed: int) -> dict[str, Any]:
    try:
        paddle: Any = evaluate(case)
    except Exception as error:  # whatever it raises is the finding
        paddle = type(error).__name__
    if paddle == case["expect"]:
        return case | {"verdict": "paddle"}
    if not program.risks:
        raise SystemExit(f"program {seed}: Paddle and NumPy differ\n{json.dumps(case)}\n{paddle}")
    verdict = "paddle_refuses" if isinstance(paddle, str) else "paddle_wrong"
    return case | {"verdict": verdict, "paddle": paddle, "why": sorted(program.risks)}


def errors() -> list[dict[str, Any]]:
    out = []
    for case in ERRORS:
        try:
            evaluate(case)
            said = "accepts"
        except Exception as error:  # whatever it raises is the finding
            said = type(error).__name__
        out.append(dict(case) | {"verdict": "error", "paddle": said})
    return out


def main() -> None:
    cases = []
    for seed in range(PROGRAMS):
        program, case = build(seed)
        cases.append({"id": f"p{seed:03d}", **judged(program, case, seed)})
    refused = [{"id": f"e{i:03d}", **case} for i, case in enumerate(errors())]
    data = {"about": "see make_golden.py", "risks": RISKS, "programs": cases, "errors": refused}
    text = json.dumps(data, separators=(",", ":"))
    with open(FILE, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as f:
        f.write(text.encode())
    counts: dict[str, int] = {}
    for case in cases + refused:
        key = case["verdict"] + (" (accepts)" if case.get("paddle") == "accepts" else "")
        counts[key] = counts.get(key, 0) + 1
    print(counts, f"{FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
