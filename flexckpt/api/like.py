# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What an output is to look like: an inverse is exact where the shapes of its results are known."""

import os
import warnings
from collections.abc import Mapping

from flexckpt.io.detect import read_index
from flexckpt.lang import Program
from flexckpt.model import TensorSpec

Like = str | os.PathLike[str] | Mapping[str, TensorSpec] | None


def specs_like(like: Like) -> dict[str, TensorSpec] | None:
    """The tensors that are wanted, as a checkpoint or a dictionary describes them.

    Their dtypes are left open, and they are whole. None if nothing describes them.
    """
    if like is None:
        return None
    specs = like if isinstance(like, Mapping) else read_index(like).specs()
    return {key: TensorSpec(tuple(spec.shape), None) for key, spec in specs.items()}


def warn_of_guesses(program: Program) -> None:
    """Tell which statements were inverted on the guess that the parts of a tensor are equal."""
    for statement in program.assumed:
        warnings.warn(
            f"the inverse of {statement!r} cuts its result into equal parts; if they are not "
            "equal, state sizes=[...] in the statement or pass like=; if they are, sizes='equal'",
            stacklevel=3,
        )
