# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Names of a model's parameters as the model would have them without its wrappers."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from flexckpt.errors import LayoutError

# Components that torch.compile and activation checkpointing put into names.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


def parameter_names(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model by name; of a tied one, the first name only.

    Names are those of ``model.named_parameters()`` without what ``torch.compile``, activation
    checkpointing and ``DistributedDataParallel`` add.

    Raises:
        LayoutError: INT102 for the flattened parameters of the first FSDP.
    """
    parallel = {
        name for name, part in model.named_modules() if isinstance(part, DistributedDataParallel)
    }
    return {_plain(name, parallel): p for name, p in model.named_parameters()}


def _plain(name: str, parallel: set[str]) -> str:
    path: list[str] = []
    kept = []
    for part in name.split("."):
        if part == "_fsdp_wrapped_module":
            raise LayoutError(
                "INT102",
                f"{name!r} is flattened by FullyShardedDataParallel, whose shards cannot be told; "
                "use torch.distributed.fsdp.fully_shard",
            )
        wrapped = part == "module" and ".".join(path) in parallel
        if part not in _WRAPPERS and not wrapped:
            kept.append(part)
        path.append(part)
    return ".".join(kept)
