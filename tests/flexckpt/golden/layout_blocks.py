# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Blocks around the macros for attention and gated layers, whose result depends on shards."""

from collections.abc import Callable

from tests.flexckpt.golden import numpy_language as nl
from tests.flexckpt.golden.blocks import spell
from tests.flexckpt.golden.program import Program, Shards, even, grid


def _attributes(p: Program, flag: str, axis: int, heads: tuple[int, int] | None) -> str:
    """The flag word and the attributes, in any order; axis 1 may be left out."""
    parts = []
    if heads is not None:
        parts += [f"num_heads={heads[0]}", f"num_key_value_groups={heads[1]}"]
    if axis != 1 or p.rng.random() < 0.5:
        parts.append(f"axis={axis}")
    if p.rng.random() < 0.3:
        p.rng.shuffle(parts)
    return ", ".join([flag, *parts])


def _side(p: Program, shape: tuple[int, ...], axis: int, ranks: int) -> Shards | None:
    """Shards of a fused tensor over ``ranks``, now and then cut on the other axis as well."""
    if len(shape) == 2 and shape[1 - axis] % 2 == 0 and p.rng.random() < 0.2:
        p.risks.add("shards_of_another_axis")
        step = shape[axis] // ranks
        return grid(
            shape, {axis: [step * i for i in range(1, ranks)], 1 - axis: [shape[1 - axis] // 2]}
        )
    if ranks == 1:
        return None
    shards = even(shape, axis, ranks)
    return shards * 2 if ranks == 2 and p.rng.random() < 0.2 else shards


def fused_qkv(p: Program, tag: str) -> None:
    """Query, key, value into groups, or back; with layers, transposes and biases."""
    rng = p.rng
    groups = rng.choice((1, 2, 2, 3))
    heads = groups * rng.choice((1, 2, 3))
    dim, other = rng.choice((1, 2)), rng.choice((1, 2, 3))
    ids = rng.choice(([], [0, 1], [3, 12]))
    bias = rng.random() < 0.2
    axis = 0 if bias else rng.randrange(2)
    fuse = rng.random() < 0.6
    flip = fuse and not bias and rng.random() < 0.3
    if not p.has_dest and groups == 1:
        p.risks.add("no_dest_alias")
    names = [
        f"{tag}.{'layers.$LAYER_ID.' if ids else ''}{n}.weight" for n in ("q", "k", "v", "qkv")
    ]

    def shape(rows: int) -> tuple[int, ...]:
        if bias:
            return (rows * dim,)
        return (rows * dim, other) if axis == 0 else (other, rows * dim)

    def at(i: int | None) -> list[str]:
        return [n.replace("$LAYER_ID", str(i)) for n in names]

    def run(env: nl.Env) -> None:
        for i in sorted(ids) if ids else [None]:
            *qkv, f = at(i)
            if fuse:
                values = [env.read(n) for n in qkv]
                arrays = [v.array.T if flip else v.array for v in values]
                env.write(f, nl.grouped(*arrays, heads, groups, axis), values[0])
            else:
                value = env.read(f)
                parts = nl.ungrouped(value.array, heads, groups, axis)
                for name, part in zip(qkv, parts, strict=True):
                    env.write(name, part, value)

    for i in ids or [None]:
        *qkv, f = at(i)
        rows = (heads, groups, groups)
        for name, count in zip(qkv, rows, strict=True):
            if fuse:
                p.source(name, shape(count)[::-1] if flip else shape(count))
            else:
                p.output(name)
        if fuse:
            p.output(f)
        else:
            p.source(f, shape(sum(rows)))
    mark = "^T" if flip else ""
    q, k, v, f = names
    sides = f"{q}{mark}, {k}{mark}, {v}{mark} -> {f}" if fuse else f"{f} -> {q}, {k}, {v}"
    p.step(spell(rng, f"{sides}, {_attributes(p, 'fused_qkv', axis, (heads, groups))}"), run)


def fused_ffn(p: Program, tag: str) -> None:
    _ranked(p, tag, ("gate", "up"), (1, 1), "fused_ffn", None)


def fused_qkv_old(p: Program, tag: str) -> None:
    groups = p.rng.choice((2, 4, 4))
    heads = groups * p.rng.choice((1, 2))
    _ranked(p, tag, ("q", "k", "v"), (heads, groups, groups), "fused_qkv_old", (heads, groups))


def _ranked(
    p: Program,
    tag: str,
    leaves: tuple[str, ...],
    weights: tuple[int, ...],
    flag: str,
    heads: tuple[int, int] | None,
) -> None:
    """Parts into a tensor laid out for ranks, back, or from ranks to other ranks."""
    rng = p.rng
    least = min(weights)
    ways = [r for r in (1, 2, 4) if least % r == 0] if heads else [1, 2, 3, 4]
    kind = rng.choice(("fuse", "unfuse", "relay"))
    src, dst = rng.choice(ways), rng.choice(ways) if p.has_dest else 1
    unit = rng.choice((1, 2)) * (1 if heads else 12)
    axis, other = rng.randrange(2), rng.choice((1, 2, 2))
    ids = rng.choice(([], [], [0, 1])) if kind == "fuse" else []

    def shape(rows: int) -> tuple[int, int]:
        return (rows * unit, other) if axis == 0 else (other, rows * unit)

    whole = shape(sum(weights))
    mid = "layers.$LAYER_ID." if ids else ""
    parts = [f"{tag}.{mid}{n}.weight" for n in leaves]
    fused, again = f"{tag}.{mid}fused.weight", f"{tag}.{mid}relaid.weight"
    text = _attributes(p, flag, axis, heads)

    def at(name: str, i: int | None) -> str:
        return name.replace("$LAYER_ID", str(i))

    if kind == "fuse":

        def run(env: nl.Env) -> None:
            for i in ids or [None]:
                values = [env.read(at(n, i)) for n in parts]
                env.write(at(fused, i), nl.ranked([v.array for v in values], dst, axis), values[0])

        for i in ids or [None]:
            for name, rows in zip(parts, weights, strict=True):
                p.source(at(name, i), shape(rows))
            p.output(at(fused, i), _side(p, whole, axis, dst))
        if p.reverse:
            p.risks.add("reverse_layout_count")
        p.step(spell(rng, f"{', '.join(parts)} -> {fused}, {text}"), run)
    elif kind == "unfuse":
        p.source(fused, whole, shards=_side(p, whole, axis, src))

        def run(env: nl.Env) -> None:
            value = env.read(fused)
            arrays = nl.unranked(value.array, weights, src, axis)
            for name, array in zip(parts, arrays, strict=True):
                env.write(name, array, value)

        for name in parts:
            p.output(name)
        if p.reverse:
            p.risks.add("reverse_unfuse")
        if not p.has_dest:
            p.risks.add("no_dest_alias")
        p.step(spell(rng, f"{fused} -> {', '.join(parts)}, {text}"), run)
    else:
        same = p.has_dest and not p.reverse and rng.random() < 0.5
        target = fused if same else again
        p.source(fused, whole, shards=_side(p, whole, axis, src))

        def run(env: nl.Env) -> None:
            value = env.read(fused)
            arrays = nl.unranked(value.array, weights, src, axis)
            env.write(target, nl.ranked(arrays, dst, axis), value)

        p.output(target, _side(p, whole, axis, dst))
        p.step(spell(rng, f"{fused} -> {target}, {text}"), run)


def captured(p: Program, tag: str) -> None:
    """A source tensor has the name that a macro of Paddle gives to a temporary."""
    groups, heads = 2, 4
    q, k, v = (p.source(f"{tag}.{n}", (r, 2)) for n, r in (("q", heads), ("k", 2), ("v", 2)))
    extra = p.source(f"{tag}.q0", (1, 2))
    p.risks.add("temporary_hides_source")

    def run(env: nl.Env) -> None:
        values = [env.read(n) for n in (q, k, v)]
        arrays = [x.array for x in values]
        env.write(f"{tag}.qkv", nl.grouped(*arrays, heads, groups, 0), values[0])

    p.step(
        f"{q}, {k}, {v} -> {tag}.qkv, fused_qkv, num_heads=4, num_key_value_groups=2, axis=0", run
    )
    p.step(f"{extra} -> {tag}.copy", lambda env: nl.cast(env, extra, f"{tag}.copy"))
    p.output(f"{tag}.qkv")
    p.output(f"{tag}.copy")


def beyond(p: Program, tag: str) -> None:
    """What Paddle refuses: stars over variables, stars beside placeholders."""
    layers, experts = 2, 3
    p.risks.add("extension")
    for i in range(layers):
        for e in range(experts):
            p.source(f"{tag}.L.{i}.e.{e}.a", (2, 2), shards=None)
            p.source(f"{tag}.L.{i}.e.{e}.b", (2, 2), shards=None)

    def fuse(env: nl.Env) -> None:
        for i in range(layers):
            for e in range(experts):
                pair = [f"{tag}.L.{i}.e.{e}.{n}" for n in "ab"]
                nl.concat(env, pair, f"{tag}.t.{i}.{e}.ab", 1)

    def gather(env: nl.Env) -> None:
        for i in range(layers):
            nl.concat(env, [f"{tag}.t.{i}.{e}.ab" for e in range(experts)], f"{tag}.out.{i}", 0)

    head = f"{tag}.L.$LAYER_ID.e.$EXPERT_ID"
    p.step(f"{head}.a, {head}.b -> {tag}.t.$LAYER_ID.$EXPERT_ID.ab, axis=1", fuse)
    if p.rng.random() < 0.5:
        p.step(f"{tag}.t.$LAYER_ID.*.ab -> {tag}.out.$LAYER_ID, axis=0", gather)
    else:
        for i in range(layers):
            names = [f"{tag}.t.{i}.{e}.ab" for e in range(experts)]
            target = f"{tag}.out.{i}"
            p.step(
                f"{tag}.t.{i}.*.ab -> {target}, axis=0",
                lambda env, names=names, target=target: nl.concat(env, names, target, 0),
            )
    for i in range(layers):
        p.output(f"{tag}.out.{i}")


Block = Callable[[Program, str], None]
