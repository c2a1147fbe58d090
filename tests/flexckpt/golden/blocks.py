# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Blocks of random programs without layout macros: walks, families of layers and experts."""

import random
from collections.abc import Sequence

from tests.flexckpt.golden import numpy_language as nl
from tests.flexckpt.golden.program import Program

SIZES = (1, 2, 2, 3, 4, 4, 5, 6, 8)
DTYPES = ("float32", "float32", "float32", "bfloat16", "float16")
RANKS = (1, 2, 2, 2, 3, 3, 4)
CASTS = ("float32", "bfloat16", "float16")


def spell(rng: random.Random, text: str) -> str:
    """The same statement with other blanks and quotes."""
    if rng.random() < 0.3:
        text = text.replace(" -> ", "->").replace(", ", ",")
    if rng.random() < 0.3:
        text = text.replace("=", " = ").replace("'", '"')
    return text


def factors(n: int) -> list[int]:
    return [k for k in (2, 3, 4, 6) if n % k == 0]


def rand_shape(rng: random.Random, ranks: Sequence[int] = RANKS) -> tuple[int, ...]:
    ndim = rng.choice(ranks)
    return tuple(rng.choice(SIZES if ndim < 4 else (1, 2, 3, 4)) for _ in range(ndim))


def walk(p: Program, tag: str) -> None:
    """Primitives over a pool of variables; in reverse, each variable is read once."""
    rng = p.rng
    shape = rand_shape(rng)
    dtype = rng.choice(DTYPES)
    pool = [p.source(f"{tag}.in.{i}", _vary(rng, shape), dtype) for i in range(rng.randint(1, 3))]
    pool += [p.source(f"{tag}.other", rand_shape(rng), dtype)] if rng.random() < 0.3 else []
    fresh = iter(range(1000))

    def new() -> str:
        if not p.reverse and p.has_dest and rng.random() < 0.12:
            return rng.choice(pool)  # hides what the name meant before
        return f"{tag}.{rng.choice(('v', 'mid_w', 'Out.weight'))}{next(fresh)}"

    for _ in range(rng.randint(1, 7)):
        name = rng.choice(pool)
        op = rng.choice((_rename, _permute, _turn, _split, _split, _concat, _concat, _cast, _array))
        made, gone = op(p, name, pool, new, f"{tag}.a{next(fresh)}")
        if p.reverse:
            pool = [n for n in pool if n not in gone]
        pool = list(dict.fromkeys(pool + made))
    if p.reverse:
        for name in pool:
            p.output(name)
        return
    live = [n for n in pool if n in p.env.variables] or pool
    for name in rng.sample(live, min(len(live), rng.randint(1, 3))):
        p.output(name)
    if rng.random() < 0.4:
        p.output(rng.choice(pool))


def _vary(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with another length on one axis, now and then: still fit for concat there."""
    if rng.random() < 0.6:
        return shape
    axis = rng.randrange(len(shape))
    return (*shape[:axis], rng.choice(SIZES), *shape[axis + 1 :])


def _rename(p, name, pool, new, array):  # type: ignore[no-untyped-def]
    target = new()
    noop = p.has_dest and not p.reverse and p.rng.random() < 0.2
    text = f"{name} -> {target}" + (", axis=0" if noop else "")
    p.step(spell(p.rng, text), lambda env: nl.cast(env, name, target))
    return [target], [name]


def _permute(p, name, pool, new, array):  # type: ignore[no-untyped-def]
    target = new()
    perm = list(range(len(p.shape(name))))
    p.rng.shuffle(perm)
    text = f"{name} -> {target}, permute='{perm if p.rng.random() < 0.8 else '[]'}'"
    order = None if text.endswith("'[]'") else perm
    p.step(spell(p.rng, text), lambda env: nl.permute(env, name, target, order))
    return [target], [name]


def _turn(p, name, pool, new, array):  # type: ignore[no-untyped-def]
    target = new()
    p.step(spell(p.rng, f"{name}^T -> {target}"), lambda env: nl.permute(env, name, target))
    return [target], [name]


def _cast(p, name, pool, new, array):  # type: ignore[no-untyped-def]
    target = new()
    now, to = p.env.peek(name).dtype, p.rng.choice(CASTS)
    pair = p.reverse or p.rng.random() < 0.4
    if p.reverse and now != p.env.peek(name).origin:
        return [], []  # one cast between source and destination, or the inverse depends on rounding
    if p.reverse:
        p.risks.add("reverse_mixed_casts")
    text = f"{name} -> {target}, " + (
        f"src_dtype='{now}', dst_dtype='{to}'" if pair else f"dtype='{to}'"
    )
    p.step(spell(p.rng, text), lambda env: nl.cast(env, name, target, to))
    return [target], [name]


def _split(p, name, pool, new, array):  # type: ignore[no-untyped-def]
    choices = [(a, k) for a, n in enumerate(p.shape(name)) for k in factors(n)]
    if not choices:
        return [], []
    axis, parts = p.rng.choice(choices)
    targets = []
    while len(targets) < parts:
        name_ = new()
        targets += [name_] if name_ not in targets and name_ != name else []
    flip = p.rng.random() < 0.2
    on = len(p.shape(name)) - 1 - axis if flip else axis
    left = name + ("^T" if flip else "")
    p.step(
        spell(p.rng, f"{left} -> {', '.join(targets)}, axis={on}"),
        lambda env: nl.split(env, name, targets, on, flip),
    )
    return targets, [name]


def _concat(p, name, pool, new, array):  # type: ignore[no-untyped-def]
    value = p.env.peek(name)
    shape = value.array.shape
    axis = p.rng.randrange(len(shape))

    def fits(other: str) -> bool:
        b = p.env.peek(other)
        same = (b.dtype, b.origin, b.array.ndim) == (value.dtype, value.origin, len(shape))
        return same and all(
            m == n or k == axis for k, (m, n) in enumerate(zip(b.array.shape, shape, strict=True))
        )

    others = [n for n in pool if fits(n) and (not p.reverse or n != name)]
    if not others:
        return [], []
    if p.reverse:
        chosen = [name, *p.rng.sample(others, min(len(others), p.rng.randint(1, 2)))]
    else:
        chosen = [name, *p.rng.choices(others, k=p.rng.randint(1, 3))]
    p.rng.shuffle(chosen)
    if sum(p.env.peek(n).array.size for n in chosen) > 2000:
        return [], []
    if p.reverse and len({p.shape(n)[axis] for n in chosen}) > 1:
        p.risks.add("reverse_unequal_concat")
    target = new()
    flip = p.rng.random() < 0.2
    on = len(shape) - 1 - axis if flip else axis
    left = ", ".join(n + ("^T" if flip else "") for n in chosen)
    p.step(
        spell(p.rng, f"{left} -> {target}, axis={on}"),
        lambda env: nl.concat(env, chosen, target, on, flip),
    )
    return [target], chosen


def _array(p, name, pool, new, array):  # type: ignore[no-untyped-def]
    """Cut into an array and put together again in another order, or in the same."""
    choices = [(a, k) for a, n in enumerate(p.shape(name)) for k in factors(n)]
    if not choices:
        return [], []
    axis, parts = p.rng.choice(choices)
    first = p.rng.choice((0, 0, 1, 7))
    names = [f"{array}_{first + i}" for i in range(parts)]
    target = new()
    p.step(
        f"{name} -> {array}[{first}:{first + parts}], axis={axis}",
        lambda env: nl.split(env, name, names, axis),
    )
    order = list(names)
    left = f"{array}[{first}:{first + parts}]"
    if p.rng.random() < 0.7:
        p.rng.shuffle(order)
        left = ", ".join(order)
    p.step(f"{left} -> {target}, axis={axis}", lambda env: nl.concat(env, order, target, axis))
    return [target], [name]


def layers(p: Program, tag: str) -> None:
    """Statements with $LAYER_ID; the numbers of layers need not start at 0 or be in order."""
    rng = p.rng
    ids = rng.choice(([0, 1], [0, 1, 2], [2, 10, 3], [5], [0, 1, 10, 11]))
    shape = (rng.choice((2, 4, 6)), rng.choice((2, 4, 3)))
    leaf = [f"{tag}.layers.{{}}.{n}.weight" for n in ("gate", "up")]
    for i in rng.sample(ids, len(ids)):
        for name in leaf:
            p.source(name.format(i), shape)
    a, b = (n.format("$LAYER_ID") for n in leaf)
    c, d = f"{tag}.dec.$LAYER_ID.c", f"{tag}.dec.$LAYER_ID.d"
    kind = rng.choice(("rename", "turn", "concat", "split", "permute", "concat_turned"))

    def at(name: str, i: int) -> str:
        return name.replace("$LAYER_ID", str(i))

    def over(text: str, run) -> None:  # type: ignore[no-untyped-def]
        p.step(spell(rng, text), lambda env: [run(env, i) for i in sorted(ids)] and None)

    axis = rng.randrange(2)
    if kind == "rename":
        over(f"{a} -> {c}", lambda env, i: nl.cast(env, at(a, i), at(c, i)))
    elif kind == "turn":
        over(f"{a}^T -> {c}", lambda env, i: nl.permute(env, at(a, i), at(c, i)))
    elif kind == "permute":
        over(f"{a} -> {c}, permute='[1,0]'", lambda env, i: nl.permute(env, at(a, i), at(c, i)))
    elif kind == "split":
        over(
            f"{a} -> {c}, {d}, axis=0",
            lambda env, i: nl.split(env, at(a, i), [at(c, i), at(d, i)], 0),
        )
    else:
        flip = kind == "concat_turned"
        mark = "^T" if flip else ""
        over(
            f"{a}{mark}, {b}{mark} -> {c}, axis={axis}",
            lambda env, i: nl.concat(env, [at(a, i), at(b, i)], at(c, i), axis, flip),
        )
    for i in ids:
        p.output(at(c, i))
        if kind == "split":
            p.output(at(d, i))
        if not kind.startswith("concat"):
            p.output(at(b, i))


def experts(p: Program, tag: str) -> None:
    """$LAYER_ID with $EXPERT_ID; then experts gathered into one tensor by a star or a list."""
    rng = p.rng
    ids, count = rng.choice(([0], [0, 1], [1, 4])), rng.choice((2, 3, 4, 11))
    n, m = rng.choice((2, 4)), rng.choice((1, 2, 3))
    for i in ids:
        for e in rng.sample(range(count), count):
            for w in ("w1", "w3"):
                p.source(f"{tag}.layers.{i}.moe.experts.{e}.{w}.weight", (n, m), shards=None)
            p.source(f"{tag}.layers.{i}.moe.experts.{e}.w2.weight", (m, n), shards=None)
    src = f"{tag}.layers.$LAYER_ID.moe.experts.$EXPERT_ID.{{}}.weight"
    to = f"{tag}.out.$LAYER_ID.experts.$EXPERT_ID.gate_up"

    def at(name: str, i: int, e: int) -> str:
        return name.replace("$LAYER_ID", str(i)).replace("$EXPERT_ID", str(e))

    def fuse(env: nl.Env) -> None:
        for i in ids:
            for e in range(count):
                names = [at(src.format(w), i, e) for w in ("w1", "w3")]
                nl.concat(env, names, at(to, i, e), 0)

    p.step(f"{src.format('w1')}, {src.format('w3')} -> {to}, axis=0", fuse)
    for i in ids:
        parts = [at(to, i, e) for e in range(count)]
        whole, down = f"{tag}.out.{i}.experts.gate_up_proj", f"{tag}.out.{i}.experts.down_proj"
        if rng.random() < 0.5:
            for name in parts:
                p.output(name)
        else:
            _gather(p, parts, whole)
            p.output(whole)
        stars = [f"{tag}.layers.{i}.moe.experts.{e}.w2.weight" for e in range(count)]
        if p.reverse:
            p.risks.add("reverse_star")
        axis = rng.randrange(2)
        star = f"{tag}.layers.{i}.moe.experts.*.w2.weight"
        _gather(p, stars, down, star, axis)
        p.output(down)


def _gather(p: Program, names: list[str], target: str, text: str = "", axis: int = 0) -> None:
    left = text or ", ".join(names)
    p.step(f"{left} -> {target}, axis={axis}", lambda env: nl.concat(env, names, target, axis))


def unstack(p: Program, tag: str) -> None:
    """One tensor cut over the destinations that a star on the right finds."""
    rng = p.rng
    count, axis = rng.choice((2, 3, 4, 11)), rng.randrange(2)
    shape = [rng.choice((1, 2, 3)), rng.choice((1, 2, 3))]
    shape[axis] *= count
    whole = p.source(f"{tag}.experts.w", shape)
    names = [f"{tag}.experts.{e}.w" for e in range(count)]
    if p.reverse:
        p.risks.add("reverse_star")
    if not p.has_dest:
        p.risks.add("star_without_dest")
    p.step(
        f"{whole} -> {tag}.experts.*.w, axis={axis}", lambda env: nl.split(env, whole, names, axis)
    )
    for name in rng.sample(names, count):
        p.output(name)


def offset(p: Program, tag: str) -> None:
    """$LAYER_ID_OFFSET: layer n becomes layer n - 1."""
    ids = p.rng.choice(([1, 2], [1, 2, 3], [10, 9]))
    for i in ids:
        p.source(f"{tag}.mtp.{i}.w", (2, 3))
    if p.reverse:
        p.risks.add("reverse_offset")

    def run(env: nl.Env) -> None:
        for i in sorted(ids):
            nl.cast(env, f"{tag}.mtp.{i}.w", f"{tag}.new.{i - 1}.w")

    p.step(f"{tag}.mtp.$LAYER_ID_OFFSET.w -> {tag}.new.$LAYER_ID_OFFSET.w", run)
    for i in ids:
        p.output(f"{tag}.new.{i - 1}.w")


def passing(p: Program, tag: str) -> None:
    """Tensors nobody mentions, a deleted one, a kept one."""
    rng = p.rng
    for i in range(rng.randint(1, 2)):
        p.output(p.source(f"{tag}.same.{i}", rand_shape(rng, (0, 1, 2)), rng.choice(DTYPES)))
    if rng.random() < 0.6:
        gone = p.source(f"{tag}.gone", rand_shape(rng))
        p.step(f"{gone} -> _", lambda env: env.deleted.add(gone))
    if rng.random() < 0.4 and p.has_dest and not p.reverse:
        name = f"{tag}.kept"
        p.step(f"_ -> {name}", lambda env: None)
        p.kept[name] = rand_shape(rng)


def tied(p: Program, tag: str) -> None:
    """One tensor for two destinations, one of them perhaps turned."""
    if p.reverse:
        return passing(p, tag)
    name = p.source(f"{tag}.embed", rand_shape(p.rng, (2,)))
    for i in range(2):
        target = f"{tag}.tied.{i}"
        flip = p.rng.random() < 0.3
        run = nl.permute if flip else nl.cast
        p.step(
            f"{name}{'^T' if flip else ''} -> {target}",
            lambda env, run=run, target=target: run(env, name, target),
        )
        p.output(target)
    return None
