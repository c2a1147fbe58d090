# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Programs that must be refused, as data. Some of them Paddle accepts, and makes garbage.

A row: statements separated by "; ", shapes of the source, of the destination or None,
whether in reverse. A shape is written "4x6", with "/bfloat16" behind it for another dtype than
float32.
"""

from typing import Any

_ROWS: list[tuple[str, str, str | None, bool]] = [
    # The text is not a program.
    ("a - b", "a:2x2", None, False),
    ("a -> b; ;", "a:2x2", None, False),
    ("a -> b/c", "a:2x2", None, False),
    ("a@x -> b", "a:2x2", None, False),
    ("0a -> b", "a:2x2", None, False),
    ("a -> 7", "a:2x2", None, False),
    ("a -> ", "a:2x2", None, False),
    (" -> b", "a:2x2", None, False),
    ("a", "a:2x2", None, False),
    ("a, -> b", "a:2x2", None, False),
    (", a -> b", "a:2x2", None, False),
    ("a -> b,", "a:2x2", None, False),
    ("a -> b -> c", "a:2x2", None, False),
    ("a a -> b", "a:2x2", None, False),
    ("a -> b, axis=", "a:2x2", None, False),
    ("a -> b, =0", "a:2x2", None, False),
    ("a -> b, axis 0", "a:2x2", None, False),
    ("a -> b, permute='[1,0]", "a:2x2", None, False),
    ("a -> b, dtype=bfloat16", "a:2x2", "b:2x2/bfloat16", False),
    ("a -> b, c, axis=0.5", "a:2x2", None, False),
    ("a^T^T -> b", "a:2x2", None, False),
    ("a -> b^T", "a:2x3", None, False),
    ("a[0:2] b -> c, axis=0", "a_0:2x2,a_1:2x2,b:2x2", None, False),
    ("a[2:0] -> c, axis=0", "a_0:2x2,a_1:2x2", None, False),
    ("a -> b[0:2, axis=0", "a:2x2", None, False),
    ("a -> b[0-2], axis=0", "a:2x2", None, False),
    ("a -> b[x:y], axis=0", "a:2x2", None, False),
    # Attributes.
    ("a, b -> c", "a:2x2,b:2x2", None, False),
    ("a -> b, c", "a:2x2", None, False),
    ("a, b -> c, dtype='float32'", "a:2x2,b:2x2", None, False),
    ("a -> b, color='red'", "a:2x2", None, False),
    ("a -> b, permute='[1,0]', dtype='bfloat16'", "a:2x2", "b:2x2/bfloat16", False),
    ("a -> b, permute='[1,0]', axis=0", "a:2x2", None, False),
    ("a, b -> c, axis=0, axis=1", "a:2x2,b:2x2", None, False),
    ("a -> b, dtype='float8'", "a:2x2", None, False),
    ("a -> b, dtype='int64'", "a:2x2", "b:2x2/int64", False),
    ("a -> b, src_dtype='float32'", "a:2x2", None, False),
    ("a -> b, dst_dtype='bfloat16'", "a:2x2", "b:2x2/bfloat16", False),
    ("a, b -> c, d, axis=0", "a:2x2,b:2x2", None, False),
    ("a, b -> c, axis='0'", "a:2x2,b:2x2", None, False),
    ("a -> b, permute='[0]'", "a:2x2", "b:2", False),
    ("a -> b, permute='[0,0]'", "a:2x3", "b:2x2", False),
    ("a -> b, permute='[0,2]'", "a:2x3", None, False),
    ("a -> b, permute='[0,1,2]'", "a:2x3", None, False),
    ("a -> b, permute='x'", "a:2x3", None, False),
    ("a -> b, permute='[1,0'", "a:2x3", None, False),
    # Names.
    ("b -> c", "a:2x2", "c:2x2", False),
    ("a, b -> c, axis=0", "a:2x2", "c:4x2", False),
    ("c -> d; a -> c", "a:2x2", "d:2x2", False),
    ("a^T -> c; x^T -> d", "a:2x2", "c:2x2,d:2x2", False),
    ("", "a:2x2", "b:2x2", False),
    ("a -> b", "a:2x2", "b:2x2,c:2x2", False),
    ("a -> _", "a:2x2", "a:2x2", False),
    ("a -> _; a -> b", "a:2x2", "b:2x2", False),
    ("nothing -> _", "a:2x2", "a:2x2", False),
    # Shapes.
    ("a, b -> c, axis=0", "a:2x2,b:2x3", "c:4x2", False),
    ("a, b -> c, axis=1", "a:2x2,b:3x2", "c:2x4", False),
    ("a, b -> c, axis=0", "a:2x2,b:2", "c:4x2", False),
    ("a, b -> c, axis=2", "a:2x2,b:2x2", None, False),
    ("a -> b, c, axis=2", "a:2x2", None, False),
    ("a -> b, c, axis=0", "a:3x2", None, False),
    ("a -> b, c, d, axis=1", "a:3x4", None, False),
    ("a -> t[0:3], axis=0", "a:4x2", None, False),
    ("a -> b", "a:2x2", "b:4x2", False),
    ("a -> b", "a:4x2", "b:2x2", False),
    ("a -> b", "a:2x3", "b:3x2", False),
    ("a -> b", "a:6", "b:2x3", False),
    ("a^T -> b", "a:2x3", "b:2x3", False),
    ("", "a:2x3", "a:3x2", False),
    # Dtypes.
    ("a -> b", "a:2x2", "b:2x2/bfloat16", False),
    ("", "a:2x2", "a:2x2/float16", False),
    ("a -> b, dtype='bfloat16'", "a:2x2", "b:2x2/float16", False),
    ("a, b -> c, axis=0", "a:2x2,b:2x2/bfloat16", "c:4x2", False),
    ("a -> b, src_dtype='float32', dst_dtype='float16'", "a:2x2", "b:2x2/bfloat16", False),
    # Macros.
    ("l.$LAYER_ID.w -> m.w", "l.0.w:2x2,l.1.w:2x2", None, False),
    ("l.$LAYER_ID.w -> l.$LAYER_ID.e.$EXPERT_ID.w", "l.0.w:2x2,l.1.w:2x2", None, False),
    ("l.$LAYER_ID_OFFSET.w -> m.w", "l.1.w:2x2", None, False),
    ("l.$LAYER_ID_OFFSET.w -> m.$LAYER_ID_OFFSET.w", "l.0.w:2x2", "m.0.w:2x2", False),
    ("e.*.*.w -> c, axis=0", "e.0.0.w:2x2", None, False),
    ("e.*.w -> c, axis=0", "a:2x2", "c:2x2", False),
    ("a -> e.*.w, axis=0", "a:2x2", "a:2x2", False),
    ("q, k, v -> f, fused_qkv", "q:4x2,k:2x2,v:2x2", None, False),
    ("q, k, v -> f, fused_qkv, num_heads=4", "q:4x2,k:2x2,v:2x2", None, False),
    (
        "q, k, v -> f, fused_qkv, num_heads=0, num_key_value_groups=2",
        "q:4x2,k:2x2,v:2x2",
        None,
        False,
    ),
    (
        "q, k, v -> f, fused_qkv, num_heads=4, num_key_value_groups=0",
        "q:4x2,k:2x2,v:2x2",
        None,
        False,
    ),
    (
        "q, k, v -> f, fused_qkv, num_heads=4, num_key_value_groups=3, axis=0",
        "q:4x2,k:3x2,v:3x2",
        None,
        False,
    ),
    (
        "q, k, v -> f, fused_qkv, num_heads=4, num_key_value_groups=2, axis=0",
        "q:6x2,k:2x2,v:2x2",
        None,
        False,
    ),
    (
        "q, k -> f, fused_qkv, num_heads=4, num_key_value_groups=2, axis=0",
        "q:4x2,k:2x2",
        None,
        False,
    ),
    ("f -> q, k, fused_qkv, num_heads=4, num_key_value_groups=2, axis=0", "f:8x2", None, False),
    (
        "f -> q, k, v, fused_qkv, num_heads=4, num_key_value_groups=2, axis=0",
        "f:9x2",
        None,
        False,
    ),
    (
        "q, k -> f, fused_qkv_old, num_heads=4, num_key_value_groups=2, axis=0",
        "q:4x2,k:2x2",
        None,
        False,
    ),
    (
        "q, k, v -> f, fused_qkv_old, num_heads=4, num_key_value_groups=3, axis=0",
        "q:4x2,k:3x2,v:3x2",
        None,
        False,
    ),
    ("f -> g, u, fused_ffn, axis=0", "f:3x2", None, False),
    ("g -> f, fused_ffn, axis=5", "g:4x2", "f:4x2", False),
    ("g, u, x -> f, fused_ffn, axis=0", "g:2x2,u:2x2,x:2x2", None, False),
    ("a, b -> c, d, fused_ffn, axis=0", "a:2x2,b:2x2", None, False),
    # Reverse.
    ("a -> b, dtype='bfloat16'", "b:2x2/bfloat16", "a:2x2", True),
    ("a, b -> c, axis=0", "c:5x2", "a:2x2,b:2x2", True),
    ("a -> b", "c:2x2", "a:2x2", True),
]


def _tensors(text: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for i, item in enumerate(filter(None, text.split(","))):
        name, shape = item.split(":")
        shape, _, dtype = shape.partition("/")
        dims = [int(n) for n in shape.split("x")]
        out[name] = {"shape": dims, "dtype": dtype or "float32", "start": 100 * i}
    return out


ERRORS: list[dict[str, Any]] = [
    {
        "statements": [s for s in text.split("; ") if s],
        "reverse": reverse,
        "source": _tensors(source),
        "dest": None if dest is None else _tensors(dest),
    }
    for text, source, dest, reverse in _ROWS
]
