# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What can go wrong, one class per status of the C interface."""


class VmmError(Exception):
    """Any refusal of this package. The text is one sentence that names the rule and the value."""


class OutOfMemory(VmmError, MemoryError):
    """A request did not fit, after everything that could be moved or freed was."""


class Invalid(VmmError, ValueError):
    """An argument breaks a rule. Nothing was changed."""


class FormatError(VmmError, ValueError):
    """A file is not what it claims to be, or is damaged."""


class DriverError(VmmError, RuntimeError):
    """The driver refused a call, or the device is lost. What had been done was undone."""


class Unsupported(VmmError, RuntimeError):
    """The machine, the driver or the installed torch cannot do this."""


class Dead(VmmError, RuntimeError):
    """The allocator belongs to the parent of this process, or was closed."""
