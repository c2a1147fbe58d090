# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""compile_program: text and the tensors of both sides to a program."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from flexckpt.errors import AoaError
from flexckpt.lang.inverse import invert, turn
from flexckpt.lang.parser import parse
from flexckpt.lang.program import Program
from flexckpt.lang.run import Run
from flexckpt.lang.tree import Misplaced, Statement, Text
from flexckpt.model import TensorSpec
from flexckpt.quiet_gc import quiet_gc

Layout = Literal["paddle", "torch"]
Strict = bool | Mapping[str, str]

_AXES = {"paddle": 1, "torch": 0}
_KINDS = ("missing", "unexpected", "unmatched")
_ACTIONS = ("error", "warn", "ignore")


def compile_program(
    aoa: str | Sequence[str],
    source: Mapping[str, TensorSpec],
    dest: Mapping[str, TensorSpec] | None,
    *,
    reverse: bool = False,
    strict: Strict = True,
    layout: Layout = "paddle",
    free_dtypes: Collection[str] = (),
) -> Program:
    """Compile a mapping.

    Args:
        aoa: the text, or a list of statements.
        source: the tensors there are.
        dest: the tensors that are wanted, of all ranks; None for whatever the program leaves.
        reverse: compile the inverse of the text: ``source`` is what its forward program makes.
        strict: what to do where a destination has no source (``missing``), where nothing uses a
            tensor of the source (``unexpected``; without ``dest``: that a variable of its name
            hides), and where a pattern matches nothing (``unmatched``): each ``error``, ``warn`` or
            ``ignore``. True is all errors, False all ignored.
        layout: ``torch`` makes 0 the axis of the layout macros where a statement names none, not 1.
        free_dtypes: destinations whose dtype is not checked.

    Raises:
        AoaError: AOA1xx where the text is no program, AOA2xx where a macro cannot be expanded,
            AOA3xx where the program does not fit the tensors, AOA401 where there is no inverse.
    """
    text = Text(aoa)
    rules = _rules(strict)
    if layout not in _AXES:
        raise AoaError("AOA104", f"layout must be 'paddle' or 'torch', not {layout!r}")
    axis = _AXES[layout]
    with quiet_gc():
        return _compile(text, source, dest, reverse, rules, axis, free_dtypes)


def _compile(
    text: Text,
    source: Mapping[str, TensorSpec],
    dest: Mapping[str, TensorSpec] | None,
    reverse: bool,
    rules: Mapping[str, str],
    axis: int,
    free_dtypes: Collection[str],
) -> Program:
    statements = parse(text)
    if dest is not None and free_dtypes:
        free = dict.fromkeys(free_dtypes)
        dest = {k: replace(spec, dtype=None) if k in free else spec for k, spec in dest.items()}
    if reverse:
        return _reversed(text, statements, source, dest, rules, axis)
    run = Run(text, source, dest, rules, axis)
    run.execute(statements)
    return run.finish()


def expand_program(
    aoa: str | Sequence[str],
    source: Mapping[str, TensorSpec],
    dest: Mapping[str, TensorSpec] | None,
    layout: Layout = "paddle",
) -> list[str]:
    """The statements of a program without macros.

    Raises:
        AoaError: AOA1xx and AOA2xx.
    """
    text = Text(aoa)
    run = Run(text, source, dest, _rules(True), _AXES[layout])
    run.expand(parse(text))
    return run.finish_expanded()


def _reversed(
    text: Text,
    statements: Sequence[Statement],
    source: Mapping[str, TensorSpec],
    dest: Mapping[str, TensorSpec] | None,
    rules: Mapping[str, str],
    axis: int,
) -> Program:
    """The inverse: of the evaluated program if all tensors are described, else of statements."""
    for statement in statements:
        if statement.get("dtype") is not None:
            turn_or_raise(text, statement)
    if dest is not None:
        lenient = {**rules, "missing": "ignore", "unexpected": "ignore"}
        forward = Run(text, dest, source, lenient, axis, lenient=True, aim="source")
        try:
            forward.execute(statements)
        except AoaError as error:
            if error.code not in ("AOA201", "AOA301"):
                raise
        else:
            program = invert(forward.finish(), dest)
            forward.judge(program, rules)
            return program
    turned = [turn_or_raise(text, s) for s in reversed(statements)]
    run = Run(text, source, dest, rules, axis, lenient=True)
    run.execute(turned)
    program = run.finish()
    program.assumed = tuple(text.excerpt(s) for s in turned if _cuts_equally(s))
    return program


def _cuts_equally(statement: Statement) -> bool:
    """Whether a turned statement splits a tensor into parts of which only the number is known."""
    right = statement.right
    several = len(right) > 1 or any(name.array or "*" in name.text for name in right)
    plain = statement.flag is None and statement.get("unstack") is None
    return several and plain and statement.get("sizes") is None


def turn_or_raise(text: Text, statement: Statement) -> Statement:
    try:
        return turn(statement)
    except Misplaced as problem:
        raise text.error(
            problem.code, problem.message, statement.entry, problem.span, statement=statement.number
        ) from None


def _rules(strict: Strict) -> dict[str, str]:
    if isinstance(strict, bool):
        return dict.fromkeys(_KINDS, "error" if strict else "ignore")
    rules = dict.fromkeys(_KINDS, "error")
    if not isinstance(strict, Mapping):
        raise AoaError("AOA104", f"strict must be a bool or a dictionary, not {strict!r}")
    for kind, action in strict.items():
        if kind not in _KINDS or action not in _ACTIONS:
            raise AoaError(
                "AOA104",
                f"strict maps {', '.join(_KINDS)} to {', '.join(_ACTIONS)}, not {kind!r} to "
                f"{action!r}",
            )
        rules[kind] = action
    return rules
