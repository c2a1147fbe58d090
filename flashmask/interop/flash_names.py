# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Keeps transformers from taking the name "flashmask" for the FlashAttention library.

transformers takes every attention implementation with "flash" in its name for a kind of
FlashAttention: it then tries to load that library, replaces the name by another or refuses masks.
All of its modules ask one function about that, most of them under a name of their own, so it is
answered inside of that function.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

from transformers import __version__
from transformers.utils import generic

_ASKED = "is_flash_attention_requested"

_PARAMETERS = ("config", "requested_attention_implementation", "version")

_names: set[str] = set()

_original: Any = None  # a copy of the function of transformers as it was


def is_no_flash_attention(name: str) -> None:
    """Makes transformers not take a name for FlashAttention.

    Raises:
        ImportError: this version of transformers asks in a way that is not known here.
    """
    global _original
    asked = getattr(generic, _ASKED, None)
    if asked is None:  # nobody asks
        return
    if _original is None:
        if tuple(inspect.signature(asked).parameters) != _PARAMETERS:
            raise ImportError(
                f"transformers {__version__} is not supported by flashmask.interop.transformers: "
                f"its function {_ASKED} has other arguments than {_PARAMETERS}"
            )
        _original = types.FunctionType(
            asked.__code__, asked.__globals__, _ASKED, asked.__defaults__, asked.__closure__
        )
        asked.__code__ = _answer.__code__
    _names.add(name)


def _answer(config=None, requested_attention_implementation=None, version=None):  # type: ignore[no-untyped-def]  # fmt: skip
    # Runs with the globals of transformers, hence the import.
    from flashmask.interop import flash_names

    return flash_names.answer(config, requested_attention_implementation, version)


def answer(config: Any, name: str | None, version: int | list[int] | None) -> bool:
    """Whether an implementation is a kind of FlashAttention; see the function of transformers."""
    if (config is None or name is None) and (
        name if config is None else config._attn_implementation
    ) in _names:
        return False
    return bool(_original(config, name, version))
