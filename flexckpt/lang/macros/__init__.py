# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""From the form of a statement to its routine; every flag word has a file of its own."""

from typing import NamedTuple

from flexckpt.errors import AoaError
from flexckpt.lang.macros import ffn, plain, qkv, qkv_old, stacking
from flexckpt.lang.routine import Builder, Routine
from flexckpt.lang.tree import Value


class Form(NamedTuple):
    """What all statements that share a routine have in common.

    Attributes:
        left, right: which names carry ``^T``, one entry per name after expansion. On the right it
            only comes about when a statement is turned around.
        attributes: key, value, and the text of the value.
        axis: of the layout macros where the statement names none.
        parts: of a fused tensor in the source and in the destination.
    """

    flag: str | None
    left: tuple[bool, ...]
    right: tuple[bool, ...]
    attributes: tuple[tuple[str, Value, str], ...]
    axis: int = 1
    parts: tuple[int, int] = (1, 1)


_MACROS = {
    None: plain.build,
    "stack": stacking.build_stack,
    "unstack": stacking.build_unstack,
    "fused_qkv": qkv.build,
    "fused_qkv_old": qkv_old.build,
    "fused_ffn": ffn.build,
}


def build(form: Form) -> Routine:
    """The routine of a form.

    Raises:
        AoaError: AOA103 or AOA203, without a place.
    """
    lefts, rights = len(form.left), len(form.right)
    builder = Builder(lefts, rights)
    operands = list(range(lefts))
    for i, transposed in enumerate(form.left):
        if transposed:
            operands[i] = builder.temporary("{}_transpose_tmp", i)
            builder.step("permute", (i,), (operands[i],), (), ', permute = "[]"')
    results = list(range(lefts, lefts + rights))
    for i, transposed in enumerate(form.right):
        if transposed:
            results[i] = builder.temporary("{}_transpose_tmp", lefts + i)
    if lefts > 1 and rights > 1 and form.flag is None:
        raise AoaError(
            "AOA203", f"{lefts} names on the left and {rights} on the right: one side has one name"
        )
    values = {key: value for key, value, _ in form.attributes}
    note = "".join(f", {key}={raw}" for key, _, raw in form.attributes)
    _MACROS[form.flag](builder, operands, results, values, note, form.axis, form.parts)
    for i, transposed in enumerate(form.right):
        if transposed:
            builder.step("permute", (results[i],), (lefts + i,), (), ', permute = "[]"')
    return builder.routine()
