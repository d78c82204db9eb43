"""Publishers of the open connection: what they sent, and what the broker had stored before, as far as known.

An epoch of a publisher begins with its first publish and ends when its id goes to another one, or the connection ends.
Both are partial results (`stored.FACT`), as are answers to queries, and streams that are created or deleted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.connection import CLIENT, CONN, SERVER
from amqpscope.pipelines.model.credit import NEVER
from amqpscope.pipelines.model.events import EV, what
from amqpscope.pipelines.stream.frames import STREAM_FRAMES
from amqpscope.pipelines.stream.publications import MORE
from amqpscope.pipelines.stream.stored import BEGUN, ENDED, RENEWED, REPORTED, Book
from amqpscope.pipelines.stream.streams import ASKED, IDS, OK

UNKNOWN, NO, YES, SENT_BEFORE = range(4)
"""Whether an id was deduplicated; SENT_BEFORE: yes, by what its publisher sent before, unless that was refused."""
QUERY = what(STREAM_FRAMES, "query-publisher-sequence")


class PUB(Matrix):
    """Columns of publishers: an epoch of a publisher id."""

    ID = column("publisher_id")
    EPOCH = column("0 where the declaration was not seen")
    STREAM = column("digests; REFERENCE is 0 without a reference")
    REFERENCE = column("of stream and reference; 0 without a reference")
    FRAME = column("of its last publish or answer")
    TS = column("its time")
    COUNT = column("ids that were sent")
    ACKED = column("of these confirmed")
    REFUSED = column("of these refused")
    HIGHEST = column("id that was sent and not refused; -1: none")
    HIGHEST_ACKED = column("the highest id that was confirmed; -1: none")
    HIGHEST_REFUSED = column("the highest id that was refused; -1: none")
    STORED = column("what `stored.begin` returned")
    ABOVE = column("no id above this one is stored")
    GENERATION = column("of the stream's book, when it began")
    GAPS = column("gaps in what the client sent before it was declared")
    UNSURE = column("1: ids may have been sent before, or were refused")


class Publishers:
    """Publishers of the open connection; `publishing.walk` counts what they send.

    Attributes:
        arrays: rows (PUB), the row of each id (-1: none), gaps of the client's before an id was declared.
        book: see `stored.Book`.
        facts: partial results (`stored.FACT`), to be yielded.
    """

    def __init__(self) -> None:
        self.facts: list[list[int]] = []
        self._forget()

    def _forget(self) -> None:
        rows = np.zeros((IDS, PUB.WIDTH), np.int64)
        self.arrays = rows, np.full(IDS, -1, np.int64), np.zeros(IDS, np.int64)
        self.book = Book()
        self._count = 0
        self._asked: dict[int, tuple[int, ...]] = {}
        """Correlation id, method, stream and reference of requests whose answers report what is stored."""

    def begin(self, event: list[int], more: list[int], conn: Ints) -> None:
        """Begin a publisher with its first message (EV, MORE); its id may have been that of another one."""
        rows, row_of, before = self.arrays
        number, epoch = min(more[MORE.PUBLISHER], IDS - 1), more[MORE.EPOCH]
        row = int(row_of[number])
        if row < 0:
            row = row_of[number] = self._count
            self._count += 1
        else:
            self._end(row, conn)
        rows[row] = 0
        rows[row, [PUB.ID, PUB.EPOCH, PUB.GAPS]] = number, max(epoch, 0), before[number]
        rows[row, [PUB.HIGHEST, PUB.HIGHEST_ACKED, PUB.HIGHEST_REFUSED]] = -1
        stream, reference = more[MORE.STREAM], more[MORE.REFERENCE]
        if epoch >= 0 and reference != 0:
            rows[row, [PUB.STORED, PUB.ABOVE, PUB.GENERATION]] = self.book.begin(stream, reference)
            rows[row, [PUB.STREAM, PUB.REFERENCE]] = stream, reference
            self._note(event, BEGUN, stream, reference, number, epoch)

    def _end(self, row: int, conn: Ints) -> None:
        """End an epoch of a publisher."""
        of = self.arrays[0][row].tolist()
        if of[PUB.REFERENCE] == 0:
            return
        stream, reference, acked = of[PUB.STREAM], of[PUB.REFERENCE], of[PUB.HIGHEST_ACKED]
        sent = of[PUB.HIGHEST] if conn[CONN.CLIENT_GAPS] == of[PUB.GAPS] else NEVER
        self.book.end(stream, reference, of[PUB.GENERATION], acked, sent)
        place = [int(conn[CONN.ID]), of[PUB.FRAME], of[PUB.TS], ENDED, stream, reference, of[PUB.ID], of[PUB.EPOCH]]
        self.facts.append([*place, acked, sent, of[PUB.UNSURE]])

    def close(self, conn: Ints) -> None:
        """End the connection."""
        for row in range(self._count - 1, -1, -1):
            self._end(row, conn)
        self._forget()

    def request(self, event: list[int], more: list[int]) -> None:
        """Note a request whose answer may report what is stored, or its answer (EV, MORE)."""
        correlation, word, side = more[MORE.CORRELATION], event[EV.WHAT], event[EV.FROM_CLIENT]
        if event[EV.RESPONSE] == 0 and side == CLIENT:
            if correlation >= 0 and more[MORE.STREAM] != 0:
                self._asked[correlation % ASKED] = correlation, word, more[MORE.STREAM], more[MORE.REFERENCE]
        elif event[EV.RESPONSE] == 1 and side == SERVER:
            asked = self._asked.get(correlation % ASKED, ())
            if asked[:2] != (correlation, word):
                return
            del self._asked[correlation % ASKED]
            _, _, stream, reference = asked
            if more[MORE.CODE] == OK and word != QUERY:
                self.book.renew(stream)
                self._note(event, RENEWED, stream, 0, -1, -1)
            elif more[MORE.CODE] == OK and more[MORE.SEQUENCE] >= 0 and reference != 0:
                self.book.report(stream, reference, more[MORE.SEQUENCE])
                self._note(event, REPORTED, stream, reference, -1, -1, more[MORE.SEQUENCE])

    def _note(
        self, event: list[int], kind: int, stream: int, reference: int, publisher: int, epoch: int, number: int = -1
    ) -> None:
        """Add a partial result for a frame."""
        place = [event[EV.CONNECTION], event[EV.ORDER], event[EV.TS]]
        self.facts.append([*place, kind, stream, reference, publisher, epoch, number, -1, 0])

    def parts(self) -> dict[str, Any]:
        """Return what `put_back` takes."""
        rows, row_of, before = self.arrays
        asked = [[at, *request] for at, request in self._asked.items()]
        parts = {"rows": rows[: self._count], "row_of": row_of, "before": before}
        return parts | {"book": self.book.parts(), "asked": asked}

    def put_back(self, parts: dict[str, Any]) -> None:
        """Restore what `parts` returned."""
        self._count = len(parts["rows"])
        self.arrays[0][: self._count] = parts["rows"]
        self.arrays = self.arrays[0], parts["row_of"], parts["before"]
        self.book.put_back(parts["book"])
        self._asked = {at: tuple(request) for at, *request in parts["asked"]}


@kernel
def guess(rows: Array, row: int, number: int, epoch: int, conn: Array) -> int:
    """Return whether the broker has an id already, if it acknowledges it; before it counts as sent.

    Args:
        rows: PUB.
        row: of the publisher.
        number: the id.
        epoch: of the message; -1 where the declaration was not seen.
        conn: CONN.
    """
    if epoch < 0:
        return UNKNOWN
    if rows[row, PUB.REFERENCE] == 0:
        return NO
    if number <= max(rows[row, PUB.HIGHEST_ACKED], rows[row, PUB.STORED]):
        return YES
    if number <= rows[row, PUB.HIGHEST]:
        return SENT_BEFORE
    if number > rows[row, PUB.ABOVE] and conn[CONN.CLIENT_GAPS] == rows[row, PUB.GAPS]:
        return NO
    return UNKNOWN
