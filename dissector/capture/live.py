"""Read a capture that is still being written: wait for more, and end when the user asks for it."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

LOOK_S = 1.0
"""Longest wait before `look` is called again."""
REST_S = 0.5
"""After the user asked for the end, longest time to read what the writer still has: it may be ending as well."""


class Watch:
    """A context in which the first SIGINT or SIGTERM ends the reading; a second one does what it did before.

    A signal that was ignored stays ignored.

    Attributes:
        look: called about once a second while reading waits.
    """

    def __init__(self) -> None:
        self.look: Callable[[], None] = lambda: None
        self._next = time.monotonic() + LOOK_S
        self._until: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Watch":
        self._bell, self._ring = os.pipe()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (
                    signal.SIG_IGN,
                    None,
                ):  # None: the handler of other code, written in C
                    self._before[number] = signal.signal(number, self._end)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._restore()
        os.close(self._bell)
        os.close(self._ring)

    @property
    def over(self) -> bool:
        """Whether the user asked for the end."""
        return self._until is not None

    def wait(self, file: Any) -> bool:
        """Wait for bytes or the end of the file; return False when reading is to end before."""
        while self._until is None:
            if (now := time.monotonic()) >= self._next:
                self._next = now + LOOK_S
                self.look()
            # a signal that came just before is noticed after this time, if no bytes come
            ready = select.select([file, self._bell], [], [], max(0.0, self._next - time.monotonic()))[0]
            if file in ready and self._until is None:
                return True
        return bool(select.select([file], [], [], max(0.0, self._until - time.monotonic()))[0])

    def rest(self, seconds: float) -> None:
        """Wait for this time, or until the user asks for the end."""
        select.select([self._bell], [], [], seconds)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        self._until = time.monotonic() + REST_S
        os.write(self._ring, b"\0")

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
