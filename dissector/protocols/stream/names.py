"""Which stream and reference a publisher id or subscription id stands for, at each frame.

Ids are per connection, and may be declared anew. What a request says holds from it on, and is taken back when the
answer is an error; a subscription's id keeps its stream until another one is granted, for chunks may be under way. A
publisher's id that stands for one already may not be declared again (brokers refuse it), unless a gap took its end:
only the answer shows that, and until it comes nothing is known.
"""

import json
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields.arrow import array, picked
from amqpscope.dissector.fields.decoding import Decoded
from amqpscope.dissector.kernels.accounting import MemoryAccounting
from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.coding import Coding, Target
from amqpscope.dissector.protocols.stream.state import Frame

SUBSCRIPTIONS = 256
"""Added to subscription ids, so that they are not publisher ids."""
IDS = 512
MOST_REQUESTS = 4_096
"""Declarations of one connection that wait for their answer."""


class Meaning(NamedTuple):
    """What an id stands for."""

    stream: str | None
    reference: str | None = None
    """Name of the publisher or consumer, where it has one."""
    epoch: int | None = None

    @property
    def characters(self) -> int:
        """Of its names."""
        return len(self.stream or "") + len(self.reference or "")


NOTHING = Meaning(None)
Request = tuple[bool, int]
"""Whether a subscription is asked for, and the correlation id."""
Asked = tuple[int, Meaning, Meaning | None]
"""Id, what it was asked to stand for, what it stood for before."""


@dataclass(slots=True)
class Book:
    """Of one connection."""

    known: dict[int, Meaning] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    asked: dict[Request, Asked] = field(default_factory=dict)
    characters: int = 0
    """Of all names in it."""

    def know(self, number: int, meaning: Meaning) -> None:
        """Note what an id means from now on."""
        self.characters += meaning.characters - self.known.get(number, NOTHING).characters
        self.known[number] = meaning

    def ask(self, request: Request, asked: Asked) -> None:
        """Note a request."""
        self.answered(request)
        self.characters += asked[1].characters
        self.asked[request] = asked

    def answered(self, request: Request) -> Asked | None:
        """Return a request waits no longer."""
        asked = self.asked.pop(request, None)
        self.characters -= asked[1].characters if asked else 0
        return asked


STATE = Coding(Book, Meaning)


class Names:
    """The books of all connections, by slot."""

    def __init__(self, names: list[str], accounting: MemoryAccounting) -> None:
        self.accounting = accounting
        self.books: dict[int, Book] = {}
        wanted = {
            "declare-publisher", "declare-publisher-response", "delete-publisher", "subscribe", "subscribe-response",
            "metadata-update",
        }  # fmt: skip
        self.names = names
        self.relevant = np.array([name in wanted for name in names], np.bool_)

    def forget(self, slots: Ints) -> None:
        """Forget connections that ended."""
        for slot in slots.tolist():
            self.books.pop(slot, None)

    def take_out(self, slots: Ints) -> bytes:
        """Take out the books of connections."""
        return STATE.written([self.books.pop(slot, None) for slot in slots.tolist()])

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` took."""
        for slot, book in zip(target.slots.tolist(), STATE.read(data, target.captures), strict=True):
            if book:
                self.books[slot] = book

    def meanings(self, rows: Ints, fields: Decoded, wanted: Ints, ids: Ints) -> tuple[Ints, list[Meaning]]:
        """Return what ids stand for at frames.

        Args:
            rows: all frames of the round, in their order; the names in them are remembered.
            fields: their fields.
            wanted: (n,) frames whose ids are asked for.
            ids: (n,) the ids, of subscriptions with SUBSCRIPTIONS added.

        Returns:
            (n,) indexes into the list that comes with them.
        """
        keys = rows[Frame.SLOT][wanted] * IDS + ids
        unique, of = np.unique(keys, return_inverse=True)
        table = [self._known(int(key) // IDS, int(key) % IDS) for key in unique.tolist()]
        found = of.astype(np.int64)
        layout = rows[Frame.LAYOUT]
        relevant = np.flatnonzero((layout >= 0) & self.relevant[layout])
        frames = rows.shape[1]
        changes: list[int] = []
        records = zip(*(picked(fields.columns[name], relevant) for name in COLUMNS), strict=True)
        for frame, values_of in zip(relevant.tolist(), records, strict=True):
            slot = int(rows[Frame.SLOT, frame])
            name = self.names[layout[frame]]
            values = dict(zip(COLUMNS, values_of, strict=True))
            book = self.books.setdefault(slot, Book())
            before = book.characters
            meanings = self._tell(book, name, values)
            self.accounting.change(slot, book.characters - before)
            for number, meaning in meanings:
                place = int(np.searchsorted(unique, slot * IDS + number))
                if place < len(unique) and unique[place] == slot * IDS + number:
                    changes.append(place * frames + frame)
                    table.append(meaning)
        if changes:
            # of each frame asked for, the last change before it of the same id
            order = np.argsort(changes, kind="stable")
            keys = np.array(changes, np.int64)[order]
            last = np.searchsorted(keys, of * frames + wanted) - 1
            changed = (last >= 0) & (keys[last] // frames == of)
            found[changed] = len(unique) + order[last[changed]]
        return found, table

    def _known(self, slot: int, number: int) -> Meaning:
        book = self.books.get(slot)
        return book.known.get(number, NOTHING) if book else NOTHING

    def _tell(self, book: Book, name: str, values: dict[str, object]) -> list[tuple[int, Meaning]]:
        """Return what a frame changes."""
        correlation, stream = values["correlation_id"], values["stream"]
        if name == "metadata-update":
            gone = [n for n, m in book.known.items() if n < SUBSCRIPTIONS and m.stream == stream]
            for number in gone:
                book.know(number, NOTHING)
            return [(number, NOTHING) for number in gone]
        if name == "delete-publisher":
            gone_id = values["publisher_id"]
            if not isinstance(gone_id, int):
                return []
            book.know(gone_id, NOTHING)
            return [(gone_id, NOTHING)]
        if not isinstance(correlation, int):
            return []
        subscribing = name.startswith("subscribe")
        if name.endswith("-response"):
            return self._answered(book, (subscribing, correlation), values["response_code"] == 1)
        given = values["subscription_id" if subscribing else "publisher_id"]
        if not isinstance(given, int) or not isinstance(stream, str):
            return []
        if len(book.asked) >= MOST_REQUESTS:
            book.answered(next(iter(book.asked)))
        if subscribing:
            number, meaning = given + SUBSCRIPTIONS, Meaning(stream, _name(values["properties"]))
        else:
            reference = values["publisher_reference"]
            number, epoch = given, book.epochs.get(given, 0) + 1
            book.epochs[number] = epoch
            meaning = Meaning(stream, reference if isinstance(reference, str) and reference else None, epoch)
        before = book.known.get(number)
        book.ask((subscribing, correlation), (number, meaning, before))
        if subscribing and before is not None:
            return []
        book.know(number, meaning if before in (None, NOTHING) else NOTHING)
        return [(number, book.known[number])]

    def _answered(self, book: Book, key: tuple[bool, int], granted: bool) -> list[tuple[int, Meaning]]:
        asked = book.answered(key)
        if asked is None:
            return []
        number, meaning, before = asked
        current, now = book.known.get(number), meaning if granted else before or NOTHING
        since = meaning
        if number < SUBSCRIPTIONS:
            book.epochs[number] -= not granted
            since = meaning if before in (None, NOTHING) else NOTHING
        elif granted:
            since = current or NOTHING
        if current == now or current != since:  # in the second case the request's time is over
            return []
        book.know(number, now)
        return [(number, now)]


COLUMNS = (
    "correlation_id", "stream", "publisher_id", "subscription_id", "publisher_reference", "response_code", "properties",
)  # fmt: skip


def _name(properties: object) -> str | None:
    """Return the name of a consumer, among the properties of its subscription."""
    if not isinstance(properties, str) or '"name"' not in properties:
        return None
    found = json.loads(properties).get("name")
    return found if isinstance(found, str) else None


def columns(of: Ints, table: list[Meaning], delivered: Array) -> dict[str, pa.Array]:
    """Return columns of names for indexes into the table; `delivered` (bool) marks messages of chunks."""
    index = array(of)
    references = [m.reference for m in table]
    return {
        "stream": array([m.stream for m in table], pa.string()).take(index),
        "publisher_reference": array(references, pa.string()).take(array(of, mask=delivered)),
        "consumer": array(references, pa.string()).take(array(of, mask=~delivered)),
        "publisher_epoch": array([m.epoch for m in table], pa.int32()).take(index),
    }
