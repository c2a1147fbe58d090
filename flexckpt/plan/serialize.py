# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Plans as text, so that one made on a login node serves a job."""

import json
from typing import Any

from flexckpt.errors import FlexckptError
from flexckpt.index import Stored
from flexckpt.plan.copies import Copy
from flexckpt.plan.planner import Plan

VERSION = 1


def plan_to_json(plan: Plan) -> str:
    """A plan as JSON text, which :func:`plan_from_json` reads."""
    fields = {
        "version": VERSION,
        "names": plan.names,
        "shards": [[list(stored), dtype] for stored, dtype in plan.shards],
        "copies": [list(copy) for copy in plan.copies],
        "ends": plan.ends,
        "scalars": list(plan.scalars.items()),
        "stand_ins": plan.stand_ins,
    }
    return json.dumps(fields, separators=(",", ":"))


def plan_from_json(text: str) -> Plan:
    """The plan of a text that :func:`plan_to_json` made.

    Raises:
        FlexckptError: ARG101 if it is no such text.
    """
    try:
        fields = json.loads(text)
        if fields["version"] != VERSION:
            raise ValueError(f"version {fields['version']!r}, known is {VERSION}")
        return Plan(
            [(Stored(*map(_tuples, stored)), str(dtype)) for stored, dtype in fields["shards"]],
            [Copy(*map(_tuples, copy)) for copy in fields["copies"]],
            list(map(int, fields["ends"])),
            {int(target): int(count) for target, count in fields["scalars"]},
            list(map(str, fields["stand_ins"])),
            list(map(str, fields["names"])),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        what = f"{type(error).__name__}: {error}"
        raise FlexckptError("ARG101", f"the text is not a plan of flexckpt ({what})") from None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
