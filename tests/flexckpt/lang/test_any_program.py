# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Well-formed nonsense: whatever a program says, it makes exact tilings or an AoaError."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexckpt.errors import AoaError
from flexckpt.lang import Program, compile_program
from flexckpt.model import TensorSpec
from tests.flexckpt.lang.evaluate import evaluate, spec

_SOURCE = {
    "a": spec((4, 6), torch.float32),
    "b": spec((4, 6), torch.float32, parts=2, axis=1),
    "c": spec((6,), torch.bfloat16),
    "s": spec((), torch.float32),
    "z": spec((0, 6), torch.float32),
    "l.0.w": spec((2, 3, 4), torch.float32),
    "l.1.w": spec((2, 3, 4), torch.float32, parts=3, axis=1),
    "l.1.e.0": spec((4, 6), torch.float32),
    "l.1.e.2": spec((4, 6), torch.float32),
}
_DEST = {
    "a": spec((6, 4), torch.float32, parts=2),
    "x": spec((8, 6), torch.float32, parts=2, axis=0),
    "y": spec((4, 12), torch.float32, parts=4, axis=1),
    "l.0.w": spec((2, 3, 4), torch.float32),
    "x.0": TensorSpec((4, 3), None),
    "x.1": TensorSpec((4, 3), torch.bfloat16),
}
_NAMES = [*_SOURCE, *_DEST, "t", "_", "l.$LAYER_ID.w", "l.$LAYER_ID.e.$EXPERT_ID", "x.*", "l.1.e.*"]
_NAMES += ["l.$LAYER_ID.e.*", "x.$LAYER_ID_OFFSET", "l.$LAYER_ID_OFFSET.w", "t[0:2]", "t.$LAYER_ID"]
_ATTRIBUTES = [
    "permute='[]'",
    "permute='[1,0]'",
    "permute=[0,2,1]",
    "dtype='float16'",
    "tp=2",
    "tp=[1,2]",
]
_ATTRIBUTES += ["src_dtype='float32'", "dst_dtype='bfloat16'", "sizes=[2,2]", "sizes='[1,5]'"]
_ATTRIBUTES += [
    "stack=0",
    "unstack=0",
    "unstack=-1",
    "reshape=[-1]",
    "reshape=[3,-1]",
    "reshape=[]",
]
_ATTRIBUTES += ["pad=8", "unpad=1", "num_heads=2", "num_heads=4", "num_kv_heads=2"]
_ATTRIBUTES += [
    "num_key_value_groups=1",
    "fused_qkv",
    "fused_qkv_old",
    "fused_ffn",
    "stack",
    "unstack",
]
_ATTRIBUTES += [f"axis={n}" for n in (0, 0, 0, 1, 1, -1, 2, 7)]


@st.composite
def _statements(draw: st.DrawFn) -> str:
    names = st.sampled_from([*_NAMES, *_SOURCE, *_SOURCE, "t", "x", "y"])
    few = st.lists(names, min_size=1, max_size=draw(st.sampled_from([1, 1, 3])))
    left = [name + draw(st.sampled_from(["", "", "^T"])) for name in draw(few)]
    right = draw(st.lists(names, min_size=1, max_size=draw(st.sampled_from([1, 1, 3]))))
    attributes = draw(
        st.lists(st.sampled_from(_ATTRIBUTES), max_size=draw(st.sampled_from([0, 1, 3])))
    )
    attributes.sort(key=lambda text: "=" in text)  # flag words stand before attributes
    return f"{', '.join(left)} -> {', '.join([*right, *attributes])}"


def _compiled(aoa: list[str], reverse: bool, described: bool, strict: bool) -> Program | None:
    sides = (_DEST, _SOURCE) if reverse else (_SOURCE, _DEST)
    try:
        return compile_program(
            aoa, sides[0], sides[1] if described else None, reverse=reverse, strict=strict
        )
    except AoaError:
        return None


@settings(max_examples=600, deadline=None)
@given(st.lists(_statements(), max_size=3), st.booleans(), st.booleans(), st.booleans())
def test_any_program(aoa: list[str], reverse: bool, described: bool, strict: bool) -> None:
    program = _compiled(aoa, reverse, described, strict)
    if program is None:
        return
    source = _DEST if reverse else _SOURCE
    arrays = {name: np.zeros(s.shape) for name, s in source.items()}
    for variable in program.outputs.values():
        evaluate(variable, arrays)
    assert all(isinstance(line, str) for line in program.statements())
