# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Settings of a torch optimizer's groups (learning rate, betas, ...) as plain data, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from flexckpt.errors import LayoutError


def optimizer_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The settings of each parameter group as JSON types; tuples become lists, tensors numbers.

    Raises:
        LayoutError: INT102 if a setting is not plain data.
    """
    return [
        {key: _plain(g, key, value) for key, value in group.items() if key != "params"}
        for g, group in enumerate(optimizer.param_groups)
    ]


def apply_optimizer_settings(optimizer: Optimizer, settings: Sequence[Mapping[str, Any]]) -> None:
    """Set what :func:`optimizer_settings` returned; tensors are filled in place.

    Settings that are not mentioned stay as they are.

    Raises:
        LayoutError: INT102 if the number of groups differs.
    """
    if len(settings) != len(optimizer.param_groups):
        raise LayoutError(
            "INT102",
            f"the settings are of {len(settings)} parameter groups, but the optimizer has "
            f"{len(optimizer.param_groups)}",
        )
    for group, new in zip(optimizer.param_groups, settings, strict=True):
        for key, value in new.items():
            old = group.get(key)
            if isinstance(old, torch.Tensor):
                old.fill_(value)
            elif key != "params":
                group[key] = tuple(value) if isinstance(old, tuple) else value


def _plain(group: int, key: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(group, key, part) for part in value]
    raise LayoutError(
        "INT102",
        f"setting {key!r} of parameter group {group} must be plain data, "
        f"not {type(value).__name__}",
    )
