# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The table of implementations and the choice among them.

A named implementation is used or refused with the reason. Without a name the type of the device
decides, and where its implementation is missing the call is refused as well: nothing falls back by
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashmask import native


def _nothing() -> str | None:
    return None


@dataclass(frozen=True)
class Backend:
    """One implementation.

    Attributes:
        name: what ``backend=`` says.
        devices: types of devices it runs on; None for all.
        forward: name of its forward op in the torch library ``flashmask``.
        backward: name of the op which computes the gradients.
        requires: why it is missing here, as part of a sentence, or None when it is usable.
        default_for: types of devices on which it is the default.
    """

    name: str
    devices: tuple[str, ...] | None
    forward: str
    backward: str
    requires: Callable[[], str | None] = _nothing
    default_for: tuple[str, ...] = ()

    def runs_on(self, device_type: str) -> bool:
        """Whether it serves this type of device; on meta nothing is computed, so all do."""
        return self.devices is None or device_type in self.devices or device_type == "meta"


TABLE: tuple[Backend, ...] = (
    Backend(
        name="cpu",
        devices=("cpu",),
        forward="forward",
        backward="backward",
        requires=native.why_unavailable,
        default_for=("cpu", "meta"),
    ),
    Backend(
        name="reference",
        devices=None,
        forward="reference_forward",
        backward="reference_backward",
    ),
)


def names() -> list[str]:
    """Names of all implementations, usable here or not."""
    return [row.name for row in TABLE]


def why_not(name: str, device_type: str) -> str | None:
    """Why an implementation cannot be used on a type of device; None when it can.

    Raises:
        ValueError: there is no such implementation.
    """
    row = _named(name)
    if not row.runs_on(device_type):
        return f"it runs on {', '.join(row.devices or ())} only, not on {device_type}"
    return None if device_type == "meta" else row.requires()


def available(device_type: str = "cpu") -> list[str]:
    """Names of the implementations which work on a type of device, here and now."""
    return [row.name for row in TABLE if why_not(row.name, device_type) is None]


def select(name: str | None, device_type: str) -> Backend:
    """The implementation of that name, or the default one of the device.

    Args:
        name: an entry of :func:`names`, or None to choose by device.
        device_type: ``query.device.type``.

    Raises:
        ValueError: there is no such implementation, or none for the device.
        RuntimeError: it is not usable here; the sentence says why.
    """
    if name is None:
        row = next((row for row in TABLE if device_type in row.default_for), None)
        if row is None:
            raise ValueError(
                f"backend must be given on {device_type}, which has no implementation of its own; "
                'pass backend="reference".'
            )
    else:
        row = _named(name)
        if not row.runs_on(device_type):
            raise ValueError(
                f"backend must fit the device of query, {device_type}, but is {name!r}: "
                f"{why_not(name, device_type)}; leave it out or move the tensors."
            )
    reason = why_not(row.name, device_type)
    if reason is not None:
        raise RuntimeError(f"backend {row.name!r} cannot be used here: {reason}.")
    return row


def _named(name: str) -> Backend:
    for row in TABLE:
        if row.name == name:
            return row
    raise ValueError(
        f"backend must be None or one of {', '.join(names())}, but is {name!r}; pass one of these."
    )
