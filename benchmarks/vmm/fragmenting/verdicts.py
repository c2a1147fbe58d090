# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the figures of a trace are judged by."""

from __future__ import annotations

from typing import Any, NamedTuple

# Fractions, and pages moved per step at 1.03 of what is live at most.
F_PEAK_GOAL, F_PEAK_FLOOR = 0.01, 0.03
C_STAR = 0.01
WORSE_THAN_EXPANDABLE = 0.003
MOVES_ONE_STREAM, MOVES_STREAMS = 50, 300
DRIVER_SHARE = 0.01  # of the time of a step
JUDGED_AT = "1.03"

OURS, RIVAL = "vmm", "torch-expandable"


class Verdict(NamedTuple):
    """`met` None: it could not be judged, `limit` says why."""

    rule: str
    value: Any
    limit: Any
    met: bool | None


def verdicts(cells: dict[str, dict[str, Any]], multi_stream: bool, steps: int) -> list[Verdict]:
    """The verdicts on our allocator for one trace, from the cells of all allocators."""
    ours, rival = cells[OURS], cells.get(RIVAL, {})
    f_peak, tight = ours["f_peak"], ours["at"][JUDGED_AT]
    found = [
        Verdict("F_peak, goal", f_peak, F_PEAK_GOAL, f_peak <= F_PEAK_GOAL),
        Verdict("F_peak, floor", f_peak, F_PEAK_FLOOR, f_peak <= F_PEAK_FLOOR),
        Verdict("C*", ours["c_star"], C_STAR, ours["c_star"] <= C_STAR),
    ]
    rule = "F_peak below expandable" if multi_stream else "F_peak no worse than expandable"
    if "f_peak" not in rival:
        found.append(Verdict(rule, f_peak, "torch-expandable was not run", None))
    elif multi_stream:
        found.append(Verdict(rule, f_peak, rival["f_peak"], f_peak < rival["f_peak"]))
    else:
        limit = rival["f_peak"] + WORSE_THAN_EXPANDABLE
        found.append(Verdict(rule, f_peak, limit, f_peak <= limit))
    limit = MOVES_STREAMS if multi_stream else MOVES_ONE_STREAM
    moves, rule = tight["steals_median_step"], f"moves per step at {JUDGED_AT}"
    if steps > 1:
        found.append(Verdict(rule, moves, limit, moves <= limit))
    else:
        found.append(Verdict(rule, moves, "the trace has no second step", None))
    for name in ("ooms", "syncs"):
        found.append(Verdict(f"{name} at {JUDGED_AT}", tight[name], 0, tight[name] == 0))
    rule = f"driver time at {JUDGED_AT}, without new pages"
    share = tight.get("driver_share_without_growth")
    if share is None:
        found.append(Verdict(rule, "", "the trace has no second step", None))
    else:
        found.append(Verdict(rule, share, DRIVER_SHARE, share <= DRIVER_SHARE))
    return found
