# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How the names in a distributed checkpoint become keys and states."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from flexckpt.states import STATES, WEIGHT, join_name, split_known

Path = tuple[str | int, ...]


def present_names(names: Iterable[str], paths: Mapping[str, Path]) -> dict[str, tuple[str, str]]:
    """``(key, state)`` of every tensor name.

    A name stays the key as it is stored, state "weight", but for the state of an optimizer, which
    gets the key of its parameter. ``optim.state.layers.0.w.exp_avg`` is one if it lies at
    ``(..., "state", "layers.0.w", "exp_avg")`` in the nested state dict, or, where the optimizer's
    state dict was flattened, if its name ends with ``state.layers.0.w.exp_avg`` and ``exp_avg`` is
    a known state. Its parameter is the one tensor named ``layers.0.w`` in its own dict; else the
    one whose name ends with ``.layers.0.w``; if there is none at all (an optimizer saved alone) and
    the state is a known one, the key is ``layers.0.w``. If several could be meant, the name stays
    as it is stored.

    Args:
        names: of all tensors of the checkpoint.
        paths: the keys of the nested state dict that lead to a name, where they are known.
    """
    names = list(names)
    states = {name: found for name in names if (found := _optimizer_state(name, paths.get(name)))}
    weights = [name for name in names if name not in states]
    by_leaf, by_tail = _leaves(weights, paths), _tails(weights)
    known = set(weights)
    out = {name: split_known(name, known) for name in weights}
    for name, (parameter, state) in states.items():
        candidates = by_leaf.get(parameter) or by_tail.get(parameter)
        if candidates is None and state in STATES and not parameter.isdigit():
            candidates = [parameter]
        one = candidates if candidates and len(candidates) == 1 else None
        out[name] = (one[0], state) if one else (name, WEIGHT)
    counts = Counter(out.values())
    return {name: pair if counts[pair] == 1 else (name, WEIGHT) for name, pair in out.items()}


def _optimizer_state(name: str, path: Path | None) -> tuple[str, str] | None:
    """Name of the parameter and of the state, if ``name`` is the state of an optimizer."""
    if path is not None and len(path) >= 3 and path[-3] == "state":
        return str(path[-2]), str(path[-1])
    head, _, state = name.rpartition(".")
    if state not in STATES or state == WEIGHT:
        return None
    if head.startswith("state."):
        return head.removeprefix("state."), state
    _, found, parameter = head.partition(".state.")
    return (parameter, state) if found else None


def _leaves(names: list[str], paths: Mapping[str, Path]) -> dict[str, list[str]]:
    """Names by what they are called in the innermost dict that holds them."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[str(paths.get(name, (name,))[-1])].append(name)
    return found


def _tails(names: list[str]) -> dict[str, list[str]]:
    """Names by each of their ends that follows a dot."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        at = name.find(".")
        while at >= 0:
            found[name[at + 1 :]].append(name)
            at = name.find(".", at + 1)
    return found


def stored_name(key: str, state: str) -> str:
    """The name under which a tensor is written, which :func:`present_names` reads back.

    The states of optimizers are named as torch's flattened optimizer state dicts name them
    (``StateDictOptions(flatten_optimizer_state_dict=True)``).
    """
    if state in STATES and state != WEIGHT:
        return f"state.{key}.{state}"
    return join_name(key, state)
