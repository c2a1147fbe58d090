# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A mapping applied to tensors in memory, and a mapping without its macros."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from flexckpt.boxes import Box, box_at, full_box
from flexckpt.errors import AoaError, CheckpointError, LayoutError
from flexckpt.lang import compile_program, expand_program
from flexckpt.lang.compile import Layout, Strict
from flexckpt.model import TensorSpec, same_values
from flexckpt.pieces import Piece, Variable
from flexckpt.states import WEIGHT, is_scalar, split_name


def transform(
    source: Mapping[str, torch.Tensor],
    aoa: str | Sequence[str],
    dest: Mapping[str, TensorSpec] | None = None,
    *,
    source_specs: Mapping[str, TensorSpec] | None = None,
    reverse: bool = False,
    strict: Strict = True,
    layout: Layout = "paddle",
) -> dict[str, torch.Tensor | list[torch.Tensor]]:
    """Apply a mapping to whole tensors.

    Names of optimizer states (``w.moment1_0``, ``w@exp_avg``) follow the mapping of ``w``, but no
    casts.

    Args:
        source: whole tensors by name; they are only read.
        aoa: the mapping, as text or as a list of statements.
        dest: the tensors that are wanted; None for every variable that is left at the end, whole.
        source_specs: shards of the source, where the mapping depends on them (``fused_ffn``,
            ``fused_qkv_old``); names that it lacks are whole.
        reverse: apply the inverse of the mapping.
        strict: as in :func:`flexckpt.lang.compile_program`, but a tensor of the source that nothing
            uses is no error unless ``strict`` says so by name.
        layout: as in :func:`flexckpt.lang.compile_program`.

    Returns:
        New tensors by name; where ``dest`` gives shards, a list with one tensor per shard.
        Destinations that keep their values (``_ -> b``) are absent.

    Raises:
        AoaError: if the mapping is malformed or does not fit.
        CheckpointError: CKP203, if a per-parameter scalar differs between tensors that are merged.
        LayoutError: if a tensor contradicts its spec, or a state's dtype differs from its source's.
    """
    tensors = _Tensors(source, source_specs or {})
    wanted = None if dest is None else _by_key(dest)
    if isinstance(strict, bool):
        kinds = ("missing", "unmatched") if strict else ()
        strict = {
            kind: "error" if kind in kinds else "ignore"
            for kind in ("missing", "unmatched", "unexpected")
        }
    program = compile_program(
        aoa,
        tensors.specs(),
        None if wanted is None else {key: _wanted(states) for key, states in wanted.items()},
        reverse=reverse,
        strict=strict,
        layout=layout,
    )
    out: dict[str, torch.Tensor | list[torch.Tensor]] = {}
    for key, variable in program.outputs.items():
        states = tensors.states_of(key, variable) if wanted is None else wanted[key]
        for name, spec in states.items():
            state = split_name(name)[1]
            again = program.twins.get(key, ())
            out[name] = tensors.build(name, state, variable, spec, again)
    return out


def expand(
    aoa: str | Sequence[str],
    source_specs: Mapping[str, TensorSpec],
    dest_specs: Mapping[str, TensorSpec] | None = None,
    *,
    layout: Layout = "paddle",
) -> list[str]:
    """The statements of a mapping after all macros, in the order in which they run.

    Raises:
        AoaError: AOA1xx and AOA2xx.
    """
    source = {key: _main(states) for key, states in _by_key(source_specs).items()}
    dest = None
    if dest_specs is not None:
        dest = {key: _main(states) for key, states in _by_key(dest_specs).items()}
    return expand_program(aoa, source, dest, layout)


def _by_key(specs: Mapping[str, TensorSpec]) -> dict[str, dict[str, TensorSpec]]:
    """Key -> name -> spec."""
    out: dict[str, dict[str, TensorSpec]] = {}
    for name, spec in specs.items():
        out.setdefault(split_name(name)[0], {})[name] = spec
    return out


def _main(states: Mapping[str, TensorSpec]) -> TensorSpec:
    """The spec that speaks for a key: its weight's, else that of the first state with its shape."""
    order = sorted(states, key=lambda n: (split_name(n)[1] != WEIGHT, is_scalar(split_name(n)[1])))
    return states[order[0]]


def _wanted(states: Mapping[str, TensorSpec]) -> TensorSpec:
    """The spec of a key of the destination; its dtype is that of the weight, else free."""
    if any(split_name(name)[1] == WEIGHT for name in states):
        return _main(states)
    return replace(_main(states), dtype=None)


class _Tensors:
    """The tensors of the source by key and state."""

    def __init__(self, source: Mapping[str, torch.Tensor], specs: Mapping[str, TensorSpec]) -> None:
        self._of: dict[str, dict[str, tuple[str, torch.Tensor]]] = {}
        named: dict[str, TensorSpec] = {}
        for name, tensor in source.items():
            if not isinstance(tensor, torch.Tensor):
                raise LayoutError("LAY104", f"{name} must be a tensor, not {type(tensor).__name__}")
            spec = specs.get(name)
            if spec is not None and tuple(spec.shape) != tuple(tensor.shape):
                raise LayoutError(
                    "LAY102",
                    f"{name} has shape {tuple(tensor.shape)}, but its spec says "
                    f"{tuple(spec.shape)}",
                )
            shards = None if spec is None else spec.shards
            named[name] = TensorSpec(tuple(tensor.shape), tensor.dtype, shards)
            key, state = split_name(name)
            self._of.setdefault(key, {})[state] = name, tensor.detach()
        self._specs = {key: _main(states) for key, states in _by_key(named).items()}
        for key, states in self._of.items():
            for state, (name, tensor) in states.items():
                if not is_scalar(state) and tensor.shape != self._specs[key].shape:
                    raise LayoutError(
                        "LAY102",
                        f"{name} has shape {tuple(tensor.shape)}, but {key} has shape "
                        f"{self._specs[key].shape}",
                    )

    def specs(self) -> dict[str, TensorSpec]:
        return self._specs

    def states_of(self, key: str, variable: Variable) -> dict[str, TensorSpec]:
        """The names and specs of all states that the sources of a variable have."""
        sources = list(dict.fromkeys(p.source for p in variable.pieces if p.source is not None))
        if not sources and key in self._of:
            sources = [key]  # an empty tensor has no pieces
        if not sources:
            dtype = getattr(torch, variable.dtype)
            return {key: TensorSpec(variable.shape, dtype)}
        out = {}
        for state in dict.fromkeys(s for source in sources for s in self._of[source]):
            owner = next(s for s in sources if state in self._of[s])
            name, tensor = self._of[owner][state]
            suffix = name[len(owner) :]
            if state == WEIGHT:
                dtype, shape = getattr(torch, variable.dtype), variable.shape
            else:
                dtype = tensor.dtype
                shape = tuple(tensor.shape) if is_scalar(state) else variable.shape
            out[key + suffix] = TensorSpec(shape, dtype)
        return out

    def build(
        self,
        name: str,
        state: str,
        variable: Variable,
        spec: TensorSpec,
        again: Sequence[Piece],
    ) -> torch.Tensor | list[torch.Tensor]:
        """One state of a destination, or its shards."""
        if is_scalar(state):
            value = self._scalar(name, state, variable, spec)
            return value if spec.shards is None else [value.clone() for _ in spec.shards]
        spec = replace(spec, dtype=self._dtype(name, state, variable, spec))
        if again:
            self._check_twins(name, state, variable, spec, again)
        if spec.shards is None:
            return self._fill(name, state, variable, spec, full_box(variable.shape))
        boxes = [box_at(offset, shape) for offset, shape in spec.shards]
        return [self._fill(name, state, variable, spec, box) for box in boxes]

    def _dtype(self, name: str, state: str, variable: Variable, spec: TensorSpec) -> torch.dtype:
        """The dtype of a destination: its own, else that of what it gets."""
        if spec.dtype is not None:
            return spec.dtype
        source = next((p.source for p in variable.pieces if p.source is not None), None)
        if state == WEIGHT or source is None:
            return cast(torch.dtype, getattr(torch, variable.dtype))
        return self._tensor(name, state, source).dtype

    def _fill(
        self, name: str, state: str, variable: Variable, spec: TensorSpec, box: Box
    ) -> torch.Tensor:
        if not full_box(variable.shape).contains(box):
            raise LayoutError(
                "LAY101", f"{name}: the shard {box} leaves the shape {variable.shape}"
            )
        out = torch.empty(box.shape, dtype=spec.dtype)
        for piece in variable.query(box):
            target = _view(out, piece, "dst", box.start)
            target.copy_(self._values(name, state, piece, spec.dtype))
        return out

    def _values(
        self, name: str, state: str, piece: Piece, dtype: torch.dtype | None
    ) -> torch.Tensor:
        """The values of a piece, one axis per dim."""
        if piece.source is None:
            return torch.full([d.extent for d in piece.dims], piece.fill, dtype=dtype)
        values = _view(self._tensor(name, state, piece.source), piece, "src", None)
        if state == WEIGHT:
            for dtype_on_way in piece.casts:
                values = values.to(getattr(torch, dtype_on_way))
        elif values.dtype != dtype:
            raise LayoutError(
                "LAY103", f"{name} is {dtype}, but {state} of {piece.source} is {values.dtype}"
            )
        return values

    def _tensor(self, name: str, state: str, source: str) -> torch.Tensor:
        states = self._of[source]
        if state not in states:
            raise AoaError("AOA306", f"{name} has no source: {source} has no {state}")
        return states[state][1]

    def _scalar(self, name: str, state: str, variable: Variable, spec: TensorSpec) -> torch.Tensor:
        sources = list(dict.fromkeys(p.source for p in variable.pieces if p.source is not None))
        if not sources:
            raise AoaError("AOA306", f"{name} has no source")
        first = self._tensor(name, state, sources[0])
        for source in sources[1:]:
            other = self._tensor(name, state, source)
            if other.shape != first.shape or not same_values(first, other):
                raise CheckpointError(
                    "CKP203",
                    f"{name} cannot be both {first.tolist()} of {sources[0]} and {other.tolist()} "
                    f"of {source}",
                )
        if tuple(first.shape) != tuple(spec.shape):
            raise LayoutError(
                "LAY102",
                f"{name} has shape {tuple(spec.shape)}, but that of {sources[0]} is "
                f"{tuple(first.shape)}",
            )
        return first.clone()

    def _check_twins(
        self,
        name: str,
        state: str,
        variable: Variable,
        spec: TensorSpec,
        again: Sequence[Piece],
    ) -> None:
        """Raise unless the copies of a tensor are equal."""
        box = full_box(variable.shape)
        first = self._fill(name, state, variable, spec, box)
        for piece in again:
            values = self._values(name, state, piece, spec.dtype).to(spec.dtype)
            if not same_values(_view(first, piece, "dst", box.start), values):
                raise AoaError(
                    "AOA401",
                    f"{name} has two values: {piece.source} holds a copy of it that differs from "
                    f"the first",
                )


def _view(tensor: torch.Tensor, piece: Piece, side: str, start: Any) -> torch.Tensor:
    """The elements of a piece in the tensor on one of its sides, one axis per dim."""
    steps = tensor.stride()
    if side == "src":
        first, strides = piece.src, [d.src_step * steps[d.src_axis] for d in piece.dims]
    else:
        first = tuple(a - b for a, b in zip(piece.dst, start, strict=True))
        strides = [d.dst_step * steps[d.dst_axis] for d in piece.dims]
    base = tensor.storage_offset() + sum(i * s for i, s in zip(first, steps, strict=True))
    return tensor.as_strided([d.extent for d in piece.dims], strides, base)
