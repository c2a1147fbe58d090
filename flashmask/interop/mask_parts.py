# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Tells of a mask function of transformers which factory made it, and from what.

transformers composes its masks from functions that a few factories return. Their arguments are in
their closures; code that torch.compile traces gets them by another way.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, NamedTuple

import torch
from transformers import masking_utils

FACTORIES = (
    "and_masks",
    "or_masks",
    "sliding_window_overlay",
    "sliding_window_bidirectional_overlay",
    "chunked_overlay",
    "blockwise_overlay",
    "packed_sequence_mask_function",
    "remap_positions_for_packed_sequence",
)

_PARTS = "_flashmask_parts"


class _Factory(NamedTuple):
    name: str
    parameters: tuple[str, ...]


def _register_factories() -> dict[types.CodeType, _Factory]:
    """Returns the code of the functions that the factories return; teaches them to the compiler."""
    found = {}
    for name in FACTORIES:
        factory = getattr(masking_utils, name, None)
        if factory is None:
            continue
        codes = [
            const
            for const in factory.__code__.co_consts
            if isinstance(const, types.CodeType) and const.co_name != "<genexpr>"
        ]
        parameters = tuple(inspect.signature(factory).parameters)
        if len(codes) == 1 and set(codes[0].co_freevars) == set(parameters):
            found[codes[0]] = _Factory(name, parameters)
            _keep_parts_while_compiling(factory, name)
    return found


def _keep_parts_while_compiling(factory: Any, name: str) -> None:
    # Under torch.compile the closure of a function made while tracing cannot be read. There, and
    # only there, the factory also notes its arguments on the function that it returns.
    inner = types.FunctionType(
        factory.__code__, factory.__globals__, name, factory.__defaults__, factory.__closure__
    )

    def traced(*args: Any, **kwargs: Any) -> Any:
        function = inner(*args, **kwargs)
        if not kwargs:
            function._flashmask_parts = (name, args)
        return function

    torch.compiler.substitute_in_graph(factory, skip_signature_check=True)(traced)


def parts_of(function: Any) -> tuple[str | None, tuple[Any, ...]]:
    """Returns the factory that made a function and its arguments; None for an unknown one."""
    if function is masking_utils.causal_mask_function:
        return "causal", ()
    if function is masking_utils.bidirectional_mask_function:
        return "bidirectional", ()
    if torch.compiler.is_compiling():
        return function._flashmask_parts if hasattr(function, _PARTS) else (None, ())
    factory = _FACTORY_OF_CODE.get(getattr(function, "__code__", None))
    if factory is None:
        return None, ()
    cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
    values = {name: cell.cell_contents for name, cell in cells}
    if factory.parameters == ("mask_functions",):
        return factory.name, tuple(values["mask_functions"])
    return factory.name, tuple(values[name] for name in factory.parameters)


_FACTORY_OF_CODE: dict[Any, _Factory] = dict(_register_factories())
