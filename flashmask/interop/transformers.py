# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""FlashMask attention for models of the transformers library.

Importing this module registers the attention implementation ``"flashmask"``::

    import flashmask.interop.transformers
    model = AutoModelForCausalLM.from_config(config, attn_implementation="flashmask")

The masks that models make (causal, sliding window, chunks, bidirectional, padding, sequences packed
by ``position_ids``) then become bounds, int32 ``[B, 1, Sk, 2]``, instead of matrices. Bounds have
four dimensions because transformers hands a mask of four dimensions through as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

try:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask
except ImportError as error:
    raise ImportError(
        "flashmask.interop.transformers needs a recent transformers library; install it with the "
        "extra `transformers`: pip install -U 'paddle-on-torch[transformers]'"
    ) from error

from flashmask.api import flashmask_attention
from flashmask.interop.flash_names import is_no_flash_attention
from flashmask.interop.mask_functions import evaluated, visible_rows
from flashmask.mask.convert import from_dense
from flashmask.mask.flash_mask import FlashMask
from flashmask.mask.planning import versions

__all__ = ["NAME", "as_attention_mask", "attention_bounds", "attention_forward"]

NAME = "flashmask"

# Arguments of attention functions that change the result and have no counterpart here.
_UNSUPPORTED = {
    "softcap": "soft capping of the scores",
    "position_bias": "a bias added to the scores",
    "head_mask": "a mask of whole heads",
    "layer_head_mask": "a mask of whole heads",
    "indices": "a list of keys for each row",
    "block_indices": "a list of key blocks for each row",
    "cu_seq_lens_q": "sequences packed without position_ids",
    "cu_seq_lens_k": "sequences packed without position_ids",
}


def as_attention_mask(mask: FlashMask) -> Tensor:
    """Returns a mask in the form which a model takes as ``attention_mask``.

    The model then makes no mask of its own: whatever it would add (its causal triangle, its sliding
    window, padding) must be part of this one.

    Args:
        mask: any mask without ``block_mask``.

    Returns:
        Bounds for ``causal=False``, int32 ``[B, Hm, Sk, 4]``.

    Raises:
        NotImplementedError: the mask has a ``block_mask``.
    """
    if mask.block_mask is not None:
        raise NotImplementedError(
            "as_attention_mask cannot carry a block_mask; write it as bounds, or call "
            "flashmask_attention yourself"
        )
    return mask.lowered().transpose(2, 3).contiguous()


def attention_bounds(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor:
    """Makes the mask of a model: the function that transformers calls for ``"flashmask"``.

    Never None, not even where nothing is hidden: what an absent mask means would depend on the
    layer.

    Args:
        batch_size: B.
        q_length: Sq.
        kv_length: Sk.
        q_offset: position of the first row.
        kv_offset: position of the first key.
        mask_function: which row sees which key, by their positions.
        attention_mask: ``[B, S]``, 0 or False at padding; counts from position 0.
        use_vmap: the function has parts written by the user, which may take numbers only.
        device: where the mask shall be.

    Returns:
        Bounds for ``causal=False``, int32 ``[1 or B, 1, Sk, 2 or 4]``.

    Raises:
        NotImplementedError: an unknown function while compiling.
        ValueError: a mask that does not fit into bounds.
    """
    index = (torch.arange(kv_length, device=device) + kv_offset)[None]
    keep = None if attention_mask is None else _padding(attention_mask, index, kv_length, kv_offset)
    rows = visible_rows(mask_function, index)
    if rows is None:
        return evaluated(
            mask_function,
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            keep=keep,
            elementwise=not use_vmap,
            device=device,
        )
    end, first = rows.end - q_offset, rows.first - q_offset
    if keep is not None:
        end = end.where(keep, 0)
    bounds = torch.stack([bound.clamp(0, q_length) for bound in (end, first.expand_as(end))], -1)
    return bounds.to(torch.int32)[:, None]


def _padding(
    attention_mask: Tensor, index: Tensor, kv_length: int, kv_offset: int | Tensor
) -> Tensor:
    """Returns which keys are none of the padding, bool ``[B, Sk]``."""
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask must be [B, S], or a mask [B, H, Sq, Sk] for attn_implementation="
            f"'flashmask', but its shape is {tuple(attention_mask.shape)}"
        )
    seen = attention_mask.shape[1]
    keep = attention_mask.to(torch.bool).gather(
        1, index.clamp(max=seen - 1).expand(attention_mask.shape[0], -1)
    )
    return keep & (index < seen)  # a static cache has room for tokens that are still to come


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | FlashMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes the attention of a layer: the function that models call for ``"flashmask"``.

    Args:
        module: the layer.
        query: ``[B, Hq, Sq, D]``.
        key: ``[B, Hk, Sk, D]``, not repeated for the query heads.
        value: ``[B, Hk, Sk, Dv]``.
        attention_mask: what :func:`attention_bounds` or :func:`as_attention_mask` made; a
            :class:`FlashMask`; a boolean ``[B, H, Sq or 1, Sk]``, True where a row sees a key; or
            None.
        dropout: must be 0.
        scaling: factor of the scores.
        is_causal: without a mask, whether the upper triangle is hidden; by default what the layer
            says.
        sliding_window: without a mask, how many keys a row sees. A mask has it already.
        s_aux: attention sinks ``[Hq]``: one more score for each row, without a value.
        kwargs: refused where they would change the result, otherwise not needed.

    Returns:
        ``[B, Sq, Hq, Dv]``, and no attention weights.

    Raises:
        NotImplementedError: an argument without counterpart in the kernels.
        TypeError: a mask of another kind.
        ValueError: a mask of a wrong shape.
    """
    _check_supported(dropout, kwargs)
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    causal, window_size, mask = False, None, None
    if attention_mask is None:
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        causal, window_size = _without_mask(query, key, bool(is_causal), sliding_window)
    else:
        mask = _as_flash_mask(attention_mask, query.shape[1])
    out, lse = flashmask_attention(
        query,
        key,
        value,
        mask,
        causal=causal,
        window_size=window_size,
        softmax_scale=scaling,
        return_softmax_lse=True,
    )
    if s_aux is not None:
        # A sink adds exp(sink) to exp(lse), the sum that the softmax divides by.
        share = torch.sigmoid(lse - s_aux.float()[:, None]).transpose(1, 2)[..., None]
        out = (out * share).to(out.dtype)
    return out, None


def _check_supported(dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout:
        raise NotImplementedError(
            f"attn_implementation='flashmask' has no dropout, but the layer asks for {dropout}; "
            f"set the attention dropout of the config to 0 (attention_dropout, "
            f"attention_probs_dropout_prob or the like), or call model.eval()"
        )
    for name, what in _UNSUPPORTED.items():
        if kwargs.get(name) is not None:
            raise NotImplementedError(
                f"attn_implementation='flashmask' does not support {name} ({what}); "
                f"choose another attn_implementation"
            )
    if kwargs.get("output_attentions"):
        raise NotImplementedError(
            "attn_implementation='flashmask' never forms the attention weights, so "
            "output_attentions=True is not supported; use attn_implementation='eager' for it"
        )


def _without_mask(
    query: Tensor, key: Tensor, is_causal: bool, sliding_window: int | None
) -> tuple[bool, tuple[int, int] | None]:
    seqlen_q, seqlen_k = query.shape[1], key.shape[1]
    if is_causal and seqlen_q != seqlen_k and seqlen_q != 1:
        # Which keys are the newest? transformers has answered that differently.
        raise ValueError(
            f"attention_mask is None for a causal layer with {seqlen_q} queries and {seqlen_k} "
            f"keys, which does not say where the queries are; give attn_implementation='flashmask' "
            f"a mask, for example by flashmask.interop.transformers.as_attention_mask"
        )
    if not is_causal or sliding_window is None:
        return is_causal, None
    return True, (sliding_window - 1, 0)


def _as_flash_mask(attention_mask: Tensor | FlashMask, seqlen_q: int) -> FlashMask:
    if isinstance(attention_mask, FlashMask):
        return attention_mask
    if attention_mask.dim() != 4 or attention_mask.dtype not in (torch.int32, torch.bool):
        raise TypeError(
            f"attn_implementation='flashmask' takes bounds (int32) or a boolean mask of 4 "
            f"dimensions, but attention_mask is {attention_mask.dtype} of shape "
            f"{tuple(attention_mask.shape)}; an additive mask cannot be read"
        )
    if torch.compiler.is_compiling():
        return _read(attention_mask, seqlen_q).prepared()
    # All layers get the same tensor, so what the first layer prepares is kept there.
    edited = versions(attention_mask)
    kept = getattr(attention_mask, "_flashmask_kept", None)
    if kept is None or kept[0] != (edited, seqlen_q):
        # Read from an alias, or the tensor would hold itself and wait for the garbage collector.
        mask = _read(attention_mask.detach(), seqlen_q).prepared()
        kept = (edited, seqlen_q), mask
        if edited is not None:
            attention_mask._flashmask_kept = kept  # type: ignore[attr-defined]
    return kept[1]


def _read(attention_mask: Tensor, seqlen_q: int) -> FlashMask:
    if attention_mask.dtype == torch.int32:
        # One number per key has one meaning only, two are read as what attention_bounds makes.
        return FlashMask(attention_mask, causal=attention_mask.shape[3] == 1, seqlen_q=seqlen_q)
    if attention_mask.shape[2] != 1:
        return from_dense(attention_mask)
    keep = attention_mask[:, :, 0, :, None]  # padding, the same for every row
    end = torch.zeros_like(keep, dtype=torch.int32).masked_fill(keep, seqlen_q)
    return FlashMask(torch.cat([end, torch.zeros_like(end)], -1), seqlen_q=seqlen_q)


if "q_length" not in inspect.signature(sdpa_mask).parameters:
    raise ImportError(
        "flashmask.interop.transformers needs a newer transformers: the installed one describes "
        "masks differently. Install it with: pip install -U 'paddle-on-torch[transformers]'"
    )
is_no_flash_attention(NAME)
AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, attention_bounds)
