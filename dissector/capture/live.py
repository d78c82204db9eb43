"""Reading what is still being made: waiting for it, and ending when the user asks for that."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

LOOK_S = 1.0
"""So often there is time for other things."""
REST_S = 0.5
"""When the end was asked for, what the writer still has is read for so long at most: it may have been asked as well."""


class Watch:
    """Between entry and exit the first SIGINT or SIGTERM ends what is read; a second does what it did before.

    One that was ignored stays so.

    Attributes:
        look: called about every second while there is something to wait for.
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
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: somebody else's, of C
                    self._before[number] = signal.signal(number, self._end)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._restore()
        os.close(self._bell)
        os.close(self._ring)

    @property
    def over(self) -> bool:
        """Whether the end was asked for."""
        return self._until is not None

    def wait(self, file: Any) -> bool:
        """Wait until there is something to read, or the file's end; False when reading is to end before."""
        while self._until is None:
            if (now := time.monotonic()) >= self._next:
                self._next = now + LOOK_S
                self.look()
            # a signal that came just before is seen after this while, when there is nothing
            ready = select.select([file, self._bell], [], [], max(0.0, self._next - time.monotonic()))[0]
            if file in ready and self._until is None:
                return True
        return bool(select.select([file], [], [], max(0.0, self._until - time.monotonic()))[0])

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        self._until = time.monotonic() + REST_S
        os.write(self._ring, b"\0")

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
