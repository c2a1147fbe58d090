# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Let torch look inside a frozen dataclass: which fields are tensors, which are static."""

from __future__ import annotations

from typing import Any

import torch.utils._pytree as pytree


def register_node(
    cls: type, *, children: tuple[str, ...], context: tuple[str, ...], reset: tuple[str, ...]
) -> None:
    """Register a class as a pytree node of torch.

    Args:
        cls: the class; its instances are rebuilt without running `__init__`.
        children: fields holding tensors or None.
        context: fields that are static, simple values.
        reset: fields that become None in a rebuilt instance.
    """

    def flatten(instance: Any) -> tuple[list[Any], tuple[Any, ...]]:
        values = [getattr(instance, name) for name in children]
        return values, tuple(getattr(instance, name) for name in context)

    def flatten_with_keys(instance: Any) -> tuple[list[Any], tuple[Any, ...]]:
        values, static = flatten(instance)
        keys = [pytree.GetAttrKey(name) for name in children]
        return list(zip(keys, values, strict=True)), static

    def unflatten(values: Any, static: Any) -> Any:
        # Transforms put placeholders where the tensors were, so nothing may be checked here.
        instance: Any = object.__new__(cls)
        for name, value in zip(children + context, (*values, *static), strict=True):
            object.__setattr__(instance, name, value)
        for name in reset:
            object.__setattr__(instance, name, None)
        return instance

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
        flatten_with_keys_fn=flatten_with_keys,
    )
