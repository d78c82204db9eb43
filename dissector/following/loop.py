"""Follow a directory: take what is complete, commit it, and wait for more, until nothing comes or the user ends it."""

import time
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from amqpscope.dissector.capture.input import MissingCaptureError
from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.capture.sources import Source
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.dissection import Dissection, IdleDissector
from amqpscope.dissector.following.folder import SETTLED_S, Folder, Plan
from amqpscope.dissector.following.journal import Journal
from amqpscope.dissector.kernels import kernel
from amqpscope.dissector.tables.output import Output
from amqpscope.dissector.tables.rows import Work

NAME = "dissection"
"""Of the state of the dissection."""
LOOK_S = 1.0
"""Seconds between two looks at the directory."""


class End(NamedTuple):
    """What a batch leaves.

    Attributes:
        state: by name.
        renewed: rows by table that stand until the next batch.
        ahead: makes them instead, of the state of the dissection; None: nothing does.
    """

    state: Mapping[str, bytes]
    renewed: Mapping[str, pa.Table] = {}
    ahead: Callable[[bytes], Mapping[str, pa.Table]] | None = None


class Batch(Protocol):
    """What takes the rows of a batch of captures, and writes tables."""

    def add(self, work: Work) -> None:
        """Take rows, made by a function that any thread may call."""
        ...

    def rest(self) -> None:
        """Make room: all rows of the packets so far were added."""
        ...

    def finish(self, is_last: bool) -> End:
        """Write all that is final; everything, if no further batch follows."""
        ...


Make = Callable[[Journal, Output, Dissection], Batch]


def author(folder: str, options: Options, extra: str = "") -> str:
    """Return what tells whether a journal may go on (`Journal`, `made_by`): the directory, and all that rows depend on.

    Args:
        folder: the directory.
        options: of the dissection.
        extra: what else rows or state depend on.
    """
    return f"{folder} {zlib.crc32(f'{options!r}{extra}'.encode()):08x}"


class Dissected:
    """Writes the rows of a dissection as they are."""

    def __init__(self, journal: Journal, output: Output, dissection: Dissection) -> None:
        self.add = output.add

    def rest(self) -> None:
        """See `Batch`."""

    def finish(self, is_last: bool) -> End:
        """See `Batch`."""
        return End({})


class Follower:
    """Follows a directory.

    Args:
        folder: the directory.
        journal: where tables are written.
        options: of the dissection.
        make: makes what takes the rows of a batch, of the journal, the batch's output, and its dissection.
        dissector: makes the dissector of each batch.
        prepare: called with the captures of a batch before they are read.
        report: called with each batch when it is committed, and how it was planned.
        watch: ends it when the user asks for that.
        until_idle: end when nothing was written to the directory for this many seconds; None: never.

    Attributes:
        over: whether that was the end.
    """

    def __init__(
        self,
        folder: Folder,
        journal: Journal,
        options: Options,
        make: Make,
        prepare: Callable[[list[Source]], None],
        report: Callable[[Dissection, Plan], None],
        watch: Watch,
        until_idle: float | None = None,
        dissector: Callable[[Options, bool], IdleDissector] = IdleDissector,
    ) -> None:
        self.folder, self.journal, self.options, self.make = folder, journal, options, make
        self.prepare, self.report, self.watch, self.until_idle = prepare, report, watch, until_idle
        self.dissector = dissector
        self.over = False
        self._began = time.time()
        self._state = journal.state(NAME)
        self.progress = Dissection(options, self._state).progress

    def run(self) -> None:
        """Follow the directory. What is under way when the user ends it has no effect.

        Raises:
            StateError: the journal was begun by another release.
            OutputError: tables cannot be written.
        """
        while not self.watch.over and not self.over:
            if not self.step():
                self.watch.rest(LOOK_S)

    def step(self) -> bool:
        """Dissect and commit a batch of what is complete; return False if there is nothing, or the user ends it before.

        Raises:
            OutputError: tables cannot be written.
        """
        plan, is_last = self._plan()
        held = self.progress.held
        goes_on = held is not None and (plan.until is None or held < plan.until)
        if not (plan.sources or goes_on or is_last):
            return False
        try:
            is_done = self._batch(plan, is_last)
        except MissingCaptureError:
            return False
        self.over = is_done and is_last
        return is_done

    def _plan(self) -> tuple[Plan, bool]:
        """Return what can be taken, and whether that is all."""
        taken, position = self.progress.taken, self.progress.position
        plan = self.folder.plan(taken, position, SETTLED_S)
        if self.until_idle is None or time.time() - max(self._began, self.folder.changed_s) < self.until_idle:
            return plan, False
        plan = self.folder.plan(taken, position, self.until_idle)
        return plan, plan.until is None and not plan.left

    def _batch(self, plan: Plan, is_last: bool) -> bool:
        """Dissect and commit a batch; return False if the user ends it before."""
        good = [source for source in plan.sources if not source.error]
        self.prepare(good)
        size = sum(source.size or 0 for source in good)
        dissection = Dissection(self.options, self._state, size, make=self.dissector)
        output = self.journal.begin()
        try:
            batch = self.make(self.journal, output, dissection)
            for work in dissection.work(plan, is_last):
                if work is None:
                    batch.rest()
                else:
                    batch.add(work)
                if self.watch.over:
                    output.abort()
                    return False
            end = batch.finish(is_last)
            state = dissection.take_out(is_last)
            renewed = end.ahead(state) if end.ahead else end.renewed
            self.journal.commit(output, {**end.state, NAME: state}, renewed, is_last)
        except BaseException:
            output.abort()
            raise
        self._state, self.progress = state, dissection.progress
        if dissection.dissector.compiled:
            kernel.note_run()
        self.report(dissection, plan)
        return True
