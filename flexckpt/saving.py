# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Handles of saves: those that are done, and those that go on while training does."""

import sys
import threading
import traceback
from collections.abc import Callable
from threading import Thread

from flexckpt.comm.group import unknown
from flexckpt.execute import Stats

_going: list["Saving"] = []  # in the background, or ended badly without anyone knowing


class Saving:
    """A save that was begun.

    Attributes:
        stats: bytes that this rank wrote, sent and received; complete when :meth:`done`.
    """

    def __init__(self, stats: Stats) -> None:
        self.stats = stats
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether the save has ended, well or not."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the save.

        Args:
            timeout: seconds; without end if None.

        Returns:
            Whether it has ended. The checkpoint is then committed.

        Raises:
            FlexckptError: what made the save fail; the previous checkpoint is untouched. Once.
        """
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
        error, self._error = self._error, None
        if self in _going:
            _going.remove(self)
        if error is not None:
            raise error
        return True

    def run(self, steps: Callable[[], None], *, in_background: bool) -> None:
        """Carry out the steps of the save, here or in a thread."""
        if not in_background:
            steps()
            return

        def guarded() -> None:
            try:
                steps()
            except BaseException as error:
                self._error = unknown(error)

        _settle_at_exit()
        _going.append(self)
        self._thread = Thread(target=guarded, name="flexckpt-save")
        self._thread.start()


_registered = threading.Lock()  # taken for good by the first save in the background


def _settle_at_exit() -> None:
    """Have a program that ends let its last checkpoint be finished.

    A thread that is merely not a daemon is waited for too late: by then the interpreter starts no
    threads any more, which writing needs. ``atexit`` is later still, hence the hook that
    concurrent.futures has for itself.
    """
    if _registered.acquire(blocking=False):
        threading._register_atexit(_settle)  # type: ignore[attr-defined]


def _settle() -> None:
    for saving in list(_going):
        try:
            saving.wait()
        except BaseException:
            print("flexckpt: a save in the background failed:", file=sys.stderr)
            traceback.print_exc()
