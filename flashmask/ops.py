# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The op contract of the torch library ``flashmask``: schemas, fakes, gradients, vmap, autocast.

Importing this module registers the ops and loads the compiled module, which adds CPU kernels to
``forward``, ``backward`` and ``plan``. Where a device has no kernel these three refuse with a
sentence; nothing falls back to the reference by itself. ``reference_forward`` and
``reference_backward`` run on every device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from flashmask import native
from flashmask.impl import reference
from flashmask.plan_shape import plan_shape
from flashmask.validation import check_backward, check_forward, check_plan

LIBRARY: Any = torch.library.Library("flashmask", "DEF")  # type: ignore[no-untyped-call]

_QKV = "Tensor query, Tensor key, Tensor value"
_MASK = "Tensor? startend_row_indices, Tensor? block_mask, Tensor? plan"
_FLAGS = "bool causal, float softmax_scale"

SCHEMAS = {
    "forward": f"({_QKV}, {_MASK}, {_FLAGS}) -> (Tensor out, Tensor lse)",
    "backward": f"(Tensor grad_out, Tensor? grad_lse, {_QKV}, Tensor out, Tensor lse, {_MASK},"
    f" {_FLAGS}) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    "plan": "(Tensor? startend_row_indices, Tensor? block_mask, SymInt seqlen_q, SymInt seqlen_k,"
    " bool causal) -> Tensor",
}
SCHEMAS["reference_forward"] = SCHEMAS["forward"]
SCHEMAS["reference_backward"] = SCHEMAS["backward"]

for _name, _schema in SCHEMAS.items():
    LIBRARY.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))

forward: Any = torch.ops.flashmask.forward.default
backward: Any = torch.ops.flashmask.backward.default
plan: Any = torch.ops.flashmask.plan.default
reference_forward: Any = torch.ops.flashmask.reference_forward.default
reference_backward: Any = torch.ops.flashmask.reference_backward.default


# --- fakes: shapes only; results are contiguous and never alias an input ---


def _fake_forward(
    query: Tensor, key: Tensor, value: Tensor, *rest: Any, allow_float64: bool = False
) -> tuple[Tensor, Tensor]:
    check_forward(query, key, value, *rest, allow_float64=allow_float64)
    batch, seqlen_q, heads_q, _ = query.shape
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_empty((batch, seqlen_q, heads_q, value.shape[3]))
    return out, query.new_empty((batch, heads_q, seqlen_q), dtype=lse_dtype)


def _fake_backward(*args: Any, allow_float64: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    check_backward(*args, allow_float64=allow_float64)
    query, key, value = args[2:5]
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _fake_plan(
    startend_row_indices: Tensor | None,
    block_mask: Tensor | None,
    seqlen_q: int,
    seqlen_k: int,
    causal: bool,
) -> Tensor:
    check_plan(startend_row_indices, block_mask, seqlen_q, seqlen_k, causal)
    given = startend_row_indices if startend_row_indices is not None else block_mask
    device = torch.device("cpu") if given is None else given.device
    shape = plan_shape(startend_row_indices, block_mask, seqlen_q, seqlen_k)
    return torch.empty(shape, dtype=torch.int32, device=device)


def _fake_reference_forward(*args: Any) -> tuple[Tensor, Tensor]:
    return _fake_forward(*args, allow_float64=True)


def _fake_reference_backward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _fake_backward(*args, allow_float64=True)


# --- kernels in Python ---


def _reference_forward(*args: Any) -> tuple[Tensor, Tensor]:
    check_forward(*args, allow_float64=True)
    query, key, value, bounds, block_mask, _, causal, scale = args
    return reference.forward(query, key, value, bounds, block_mask, causal, scale)


def _reference_backward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    check_backward(*args, allow_float64=True)
    *tensors, bounds, block_mask, _, causal, scale = args
    return reference.backward(*tensors, bounds, block_mask, causal, scale)  # type: ignore[call-arg]


def _no_kernel(name: str, device: torch.device) -> NotImplementedError:
    if device.type != "cpu":
        reason = 'use the reference implementation (backend="reference")'
    else:
        reason = native.why_unavailable() or (
            f"the compiled module is of another version; build it with `{native.BUILD_COMMAND}`"
        )
    return NotImplementedError(f"flashmask::{name} has no kernel for device {device}: {reason}.")


def _forward_without_kernel(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    check_forward(query, *rest)
    raise _no_kernel("forward", query.device)


def _backward_without_kernel(grad_out: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    check_backward(grad_out, *rest)
    raise _no_kernel("backward", grad_out.device)


def _plan_without_kernel(
    startend_row_indices: Tensor | None,
    block_mask: Tensor | None,
    seqlen_q: int,
    seqlen_k: int,
    causal: bool,
) -> Tensor:
    check_plan(startend_row_indices, block_mask, seqlen_q, seqlen_k, causal)
    given = startend_row_indices if startend_row_indices is not None else block_mask
    if given is not None:
        raise _no_kernel("plan", given.device)
    # Without any tensor there is no device to dispatch on: such a plan is made on the CPU.
    if not torch._C._dispatch_has_kernel_for_dispatch_key("flashmask::plan", "CPU"):
        raise _no_kernel("plan", torch.device("cpu"))
    result: Tensor = plan.redispatch(_keys("CPU"), None, None, seqlen_q, seqlen_k, causal)
    return result


# --- gradients ---
#
# The layer below is what torch.library.register_autograd would make. That one refuses to run under
# torch.func.grad, takes twice as long per call and is the same otherwise.


class _Node(torch.autograd.Function):
    @classmethod
    def record(cls, *args: Any) -> Any:
        """``apply`` without its detour for transforms, which have their own way of calling ops."""
        return super(torch.autograd.Function, cls).apply(*args)  # type: ignore[misc]


class Attention(_Node):
    """A pair of ops as one node of the graph; also what eager calls use without the dispatcher.

    ``run`` calls the kernel of forward below autograd, ``backward_op`` gives the gradients.
    """

    @staticmethod
    def forward(ctx: Any, run: Any, backward_op: Any, *args: Any) -> tuple[Tensor, Tensor]:
        output: tuple[Tensor, Tensor] = run(*args)
        *tensors, ctx.causal, ctx.softmax_scale = args
        ctx.backward_op = backward_op
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> Any:
        if grad_out is None and grad_lse is None:
            return (None,) * 10
        query, key, value, bounds, block_mask, plan_, out, lse = ctx.saved_tensors
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        mask = (bounds, block_mask, plan_, ctx.causal, ctx.softmax_scale)
        grads = ctx.backward_op(grad_out, grad_lse, query, key, value, out, lse, *mask)
        return (None, None, *grads, None, None, None, None, None)


class _Gradients(_Node):
    """A backward op as a node of the graph, in place of second derivatives, which do not exist."""

    @staticmethod
    def forward(ctx: Any, run: Any, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        output: tuple[Tensor, Tensor, Tensor] = run(*args)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError(
            "flashmask_attention has no second derivatives: its gradients cannot be differentiated "
            "again; call backward without create_graph=True."
        )


def _autograd_kernel(op: Any, function: Any, *extra: Any) -> Any:
    """Kernel of an op for the autograd layer: records a node if a gradient is needed."""

    def kernel(keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
        below = keyset & torch._C._after_autograd_keyset

        def run(*args: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return op.redispatch(below, *args)

        def run_next_level(*args: Any) -> Any:
            with torch.enable_grad():  # the node turned it off, for its own level only
                return run(*args)

        if forward_ad._current_level >= 0:
            _refuse_tangents(args)
        needs_gradient = torch.is_grad_enabled() and any(
            isinstance(arg, Tensor) and arg.requires_grad for arg in args
        )
        if not needs_gradient:
            return run(*args)
        if not torch._C._are_functorch_transforms_active():
            return function.record(run, *extra, *args)
        # A transform calls this once for each of its levels, which is what the class is for.
        with enable_single_level_autograd_function():
            return function.record(run_next_level, *extra, *args)

    return kernel


def _refuse_tangents(args: tuple[Any, ...]) -> None:
    for arg in args:
        if not isinstance(arg, Tensor):
            continue
        if forward_ad.unpack_dual(arg).tangent is not None:  # type: ignore[no-untyped-call]
            raise NotImplementedError(
                "flashmask_attention has no forward-mode derivatives; use reverse mode, "
                "for example torch.func.vjp or jacrev in place of jvp or jacfwd."
            )


def straight(op: Any) -> Any:
    """The op as a function which goes straight to the kernel, past autograd and autocast."""

    def run(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_LAYERS):
            return op(*args)

    return run


def straight_unless_recorded(op: Any) -> Any:
    """As ``straight``, but with all layers while a backward pass is itself recorded or traced."""
    fast = straight(op)

    def run(*args: Any) -> Any:
        recorded = torch.is_grad_enabled() or torch.compiler.is_compiling()
        return op(*args) if recorded else fast(*args)

    return run


def _keys(*names: str) -> torch._C.DispatchKeySet:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
    for name in names:
        keys = keys | torch._C.DispatchKeySet(torch._C._dispatch_key_parse(name))
    return keys


_LAYERS = _keys(
    "AutogradFunctionality",
    "AutogradOther",
    "ADInplaceOrView",
    "AutocastCPU",
    "AutocastCUDA",
    "AutocastPrivateUse1",
)


# --- batching: the mapped dimension joins the batch ---


def _batch_size(tensor: Tensor, dim: int | None) -> int:
    """Size of the batch dimension proper, which is the first one that is not mapped."""
    return tensor.shape[0 if dim is None or dim != 0 else 1]


def _fold(tensor: Tensor | None, dim: int | None, size: int, batch: int) -> Tensor | None:
    """``[batch|1, ...]``, with a mapped dimension or without, as ``[size * batch, ...]``."""
    if tensor is None:
        return None
    mapped = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
    rest = mapped.shape[2:]
    return mapped.expand(size, batch, *rest).reshape(size * batch, *rest)


def _fold_all(
    tensors: tuple[Tensor | None, ...], dims: tuple[int | None, ...], size: int, batch: int
) -> list[Tensor | None]:
    return [_fold(tensor, dim, size, batch) for tensor, dim in zip(tensors, dims, strict=True)]


def _unfold(tensor: Tensor, size: int, batch: int) -> Tensor:
    return tensor.reshape(size, batch, *tensor.shape[1:])


def _attention_vmap(op: Any, first: int) -> Any:
    """Batching rule of an op of tensors and two flags; argument number ``first`` is query."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        *tensors, causal, scale = args
        dims = in_dims[: len(tensors)]
        size, batch = info.batch_size, _batch_size(tensors[first], dims[first])
        *folded, plan_ = _fold_all(tuple(tensors), dims, size, batch)
        if tensors[-1] is not None and dims[-1] is None and tensors[-1].shape[0] == 1:
            plan_ = tensors[-1]  # one plan for everything still is one
        outputs = op(*folded, plan_, causal, scale)
        return tuple(_unfold(output, size, batch) for output in outputs), (0,) * len(outputs)

    return rule


def _plan_vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    tensors, rest = args[:2], args[2:]
    sizes = [_batch_size(t, d) for t, d in zip(tensors, in_dims, strict=False) if t is not None]
    batch = next((size for size in sizes if size != 1), 1)
    folded = _fold_all(tensors, in_dims[:2], info.batch_size, batch)
    return _unfold(plan(*folded, *rest), info.batch_size, batch), 0


# --- autocast: floating point inputs go to the dtype of autocast, masks stay as they are ---


def autocast_inputs(device_type: str, *tensors: Tensor) -> list[Tensor]:
    """Casts to the dtype of autocast on this device, as torch does: all but float64."""
    dtype = torch.get_autocast_dtype(device_type)
    return [
        t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors
    ]


def _autocast_kernel(op: Any, device_type: str, key: str) -> Any:
    layer = _keys(key)

    def kernel(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(layer):
            return op(*autocast_inputs(device_type, query, key, value), *rest)

    return kernel


# --- registration ---


def _register_pair(prefix: str, forward_op: Any, backward_op: Any, fakes: tuple[Any, Any]) -> None:
    names = (f"flashmask::{prefix}forward", f"flashmask::{prefix}backward")
    for name, op, fake, first in zip(names, (forward_op, backward_op), fakes, (0, 2), strict=True):
        torch.library.register_fake(name, fake, lib=LIBRARY)
        torch.library.register_vmap(name, _attention_vmap(op, first), lib=LIBRARY)
    layers = (
        _autograd_kernel(forward_op, Attention, backward_op),
        _autograd_kernel(backward_op, _Gradients),
    )
    for name, layer in zip(names, layers, strict=True):
        LIBRARY.impl(name.partition("::")[2], layer, "Autograd", with_keyset=True)
    for device_type, key in _AUTOCAST.items():
        LIBRARY.impl(f"{prefix}forward", _autocast_kernel(forward_op, device_type, key), key)


_AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}

_register_pair("", forward, backward, (_fake_forward, _fake_backward))
_register_pair(
    "reference_",
    reference_forward,
    reference_backward,
    (_fake_reference_forward, _fake_reference_backward),
)
torch.library.register_fake("flashmask::plan", _fake_plan, lib=LIBRARY)
torch.library.register_vmap("flashmask::plan", _plan_vmap, lib=LIBRARY)

for _name, _kernel in {
    "forward": _forward_without_kernel,
    "backward": _backward_without_kernel,
    "plan": _plan_without_kernel,
    "reference_forward": _reference_forward,
    "reference_backward": _reference_backward,
}.items():
    # For every backend which has no kernel of its own; the compiled module overrides it for the
    # CPU.
    LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")

native.load()
