# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""States of a parameter (weight, moments, ...) and how they are written in flat names, as data."""

from collections.abc import Container
from typing import NamedTuple

WEIGHT = "weight"


class State(NamedTuple):
    """What is known of a state.

    Attributes:
        scalar: one value for the whole parameter, whatever its shape ("step").
        paddle: the suffix that Paddle's optimizers put behind the name of the parameter.
    """

    scalar: bool = False
    paddle: str | None = None


# The names are those of torch.optim where it has one; "master" is the fp32 copy of a 16-bit weight.
STATES: dict[str, State] = {
    WEIGHT: State(),
    "master": State(paddle=".w_0"),
    "exp_avg": State(paddle=".moment1_0"),
    "exp_avg_sq": State(paddle=".moment2_0"),
    "max_exp_avg_sq": State(paddle=".moment2_max_0"),
    "momentum_buffer": State(paddle=".velocity_0"),
    "step": State(scalar=True),
    "beta1_pow_acc": State(scalar=True, paddle=".beta1_pow_acc_0"),
    "beta2_pow_acc": State(scalar=True, paddle=".beta2_pow_acc_0"),
}

_PADDLE = {state.paddle: name for name, state in STATES.items() if state.paddle}


def split_name(name: str) -> tuple[str, str]:
    """``(key, state)`` of a flat name: of ``w@exp_avg``, ``w.moment1_0`` (Paddle) or ``w``."""
    key, at, state = name.rpartition("@")
    if at and key and state in STATES:
        return key, state
    head, dot, tail = name.rpartition(".")
    state = _PADDLE.get(dot + tail, "")
    return (head, state) if state and head else (name, WEIGHT)


def split_known(name: str, names: Container[str]) -> tuple[str, str]:
    """``(key, state)`` of a name in a file of others: a state only beside its parameter.

    So ``mlp.w_0`` stays the name of a weight unless there is an ``mlp``.
    """
    key, state = split_name(name)
    return (key, state) if key in names else (name, WEIGHT)


def join_name(key: str, state: str) -> str:
    """The flat name of a state of ``key``, which :func:`split_name` reads."""
    return key if state == WEIGHT else f"{key}@{state}"


def is_scalar(state: str) -> bool:
    """Whether a state holds one value for its whole parameter."""
    return state in STATES and STATES[state].scalar


# A master copy is its weight in fp32: where a checkpoint has one of the two, it serves for both.
STAND_INS = {"master": WEIGHT, WEIGHT: "master"}
