"""A pool of threads that do jobs beside the calling thread, which does some itself when too many are waiting."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Condition, Thread
from typing import TypeVar

T = TypeVar("T")

WORKERS = max(1, min(2, (os.cpu_count() or 1) - 1))
"""Threads that make and write rows, besides the one that dissects."""
WAITING_JOBS = 4
"""Jobs that may wait for a thread; if there are more, the dissecting thread does some of them."""


class WorkerPool:
    """A worker pool that does long jobs first. A thread that would wait for it does a waiting job, short ones first.

    So no thread is idle while there are jobs, there are no more threads than processors, and the thread that submits
    jobs is seldom kept from submitting more.
    """

    def __init__(self) -> None:
        self._short: deque[Callable[[], None]] = deque()
        self._long: deque[Callable[[], None]] = deque()
        self._changed = Condition()
        self._is_over = False
        self._threads = [Thread(target=self._serve, name="amqpscope-write", daemon=True) for _ in range(WORKERS)]
        for thread in self._threads:
            thread.start()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not (jobs := self._long or self._short):
                    if self._is_over:
                        return
                    self._changed.wait()
                job = jobs.popleft()
            job()

    def do(self, job: Callable[[], T], long: bool = False) -> Future[T]:
        """Submit a job; it may be done on return."""
        future: Future[T] = Future()
        with self._changed:
            (self._long if long else self._short).append(partial(_settle, future, job))
            self._changed.notify()
        while len(self._short) > WAITING_JOBS and self.help():
            pass
        return future

    def help(self) -> bool:
        """Do one of the waiting jobs; return False when there is none."""
        with self._changed:
            jobs = self._short or self._long
            job = jobs.popleft() if jobs else None
        if job is None:
            return False
        job()
        return True

    def result(self, future: Future[T]) -> T:
        """Return the result of a job, or raise its error."""
        while not future.done() and self.help():
            pass
        return future.result()

    def leave(self, at_once: bool = False) -> None:
        """End the threads after all jobs, or after those that have begun."""
        with self._changed:
            if at_once:
                self._short.clear()
                self._long.clear()
        while self.help():
            pass
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()


def _settle(future: Future[T], job: Callable[[], T]) -> None:
    try:
        future.set_result(job())
    except Exception as error:
        future.set_exception(error)
