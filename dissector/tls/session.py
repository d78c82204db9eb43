"""One TLS connection: its records in order, and the content that keys decrypt."""

from collections.abc import Callable, Iterable
from itertools import islice

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.tls import keys
from amqpscope.dissector.tls.direction import PlainChunk, TlsDirection
from amqpscope.dissector.tls.epochs import epochs_of
from amqpscope.dissector.tls.handshake import Handshake
from amqpscope.dissector.tls.keylog import MASTER, KeyLog
from amqpscope.dissector.tls.opener import AHEAD, REFUSED, Epoch, Opener
from amqpscope.dissector.tls.records import (
    ALERT,
    CHANGE,
    DATA,
    HANDSHAKE,
    HEAD,
    At,
    Event,
    Gap,
    Lost,
    Record,
    Walk,
    is_followed,
)
from amqpscope.dissector.tls.shown import Fault


class Session:
    """The state of one connection; sides are 0 and 1. `begun`: both directions are seen from their first byte on.

    Decrypted chunks are appended to `plain`, faults to `faults`, both with the number `slot` of the connection; the
    caller takes them and empties both lists.
    """

    __slots__ = (
        "_earlier",
        "_known",
        "awaits_secrets",
        "faults",
        "halves",
        "handshake",
        "held",
        "keylog",
        "plain",
        "slot",
        "waiting",
    )  # fmt: skip

    def __init__(
        self, keylog: KeyLog, begun: bool, slot: int = 0, plain: list[PlainChunk] | None = None,
        faults: list[Fault] | None = None,
    ) -> None:  # fmt: skip
        self.keylog = keylog
        self.slot = slot
        self.plain: list[PlainChunk] = [] if plain is None else plain
        self.faults: list[Fault] = [] if faults is None else faults
        self.halves = tuple(TlsDirection(Walk(begun, self._confirm(side))) for side in range(2))
        self.handshake = Handshake(slot, self.halves, self.faults)
        self.waiting: list[tuple[int, Event]] = []
        """Events that wait for secrets."""
        self.held = 0
        """Bytes in them."""
        self.awaits_secrets = True
        """Whether missing secrets may still come."""
        self._known: dict[bytes, bytes] = {}
        """The secrets with which the events were tried."""
        self._earlier: dict[bytes, bytes] = {}
        """The secrets of the connection whose session this one has resumed."""

    @property
    def is_sealed(self) -> bool:
        """Whether there were encrypted records, and none was decrypted."""
        return not self.handshake.shown.decrypted and any(half.sealed for half in self.halves)

    def feed(self, side: int, data: bytes | None, length: int, first: At, last: At) -> None:
        """Take a chunk of one direction; None is a gap."""
        self._follow(side, self.halves[side].walk.feed(data, length, first, last))
        if self.held > limits.TLS_HELD:
            self.stop_waiting(side, last, f"{self.held} bytes waited for TLS secrets that did not come")

    def end(self) -> None:
        """Take what is left of both directions, of which no more will come."""
        for side, half in enumerate(self.halves):
            self._follow(side, half.walk.end())

    def _follow(self, side: int, events: Iterable[Event]) -> None:
        for event in events:
            if self.waiting or not self._take(side, event):
                self.waiting.append((side, event))
                self.held += _size(event)

    def resume(self) -> None:
        """Continue where secrets were missing, if new ones have come."""
        if self.awaits_secrets and self._known == self._secrets():
            return
        done = 0
        for side, event in self.waiting:
            if not self._take(side, event):
                break
            self.held -= _size(event)
            done += 1
        del self.waiting[:done]

    def stop_waiting(self, side: int, at: At, why: str) -> None:
        """Stop waiting for secrets, because a limit is reached."""
        self._fault("limit-reached", side, at, f"{why}; the connection stays encrypted")
        self.give_up()

    def give_up(self) -> None:
        """Stop waiting for secrets, because no more will come."""
        self.awaits_secrets = False
        self.resume()

    def is_smooth(self, side: int) -> bool:
        """Return whether data records of this side need at most decryption, so that `runs` may take them.

        They decrypt with the current keys, or stay encrypted for good.
        """
        half, shown = self.halves[side], self.handshake.shown
        if self.waiting or not half.walk.in_step or not self._is_encrypted(half, DATA):
            return False
        if not half.walk.skips_bodies:
            return half.opener is not None and half.opener.steady
        if not (shown.accepted and half.has_sent and all(each.finished for each in self.halves)):
            return False
        opener = half.opener or self._make_opener(side, half)
        return (opener is None or (opener.keys_failed and not opener.worked)) and not self._may_wait(side, opener)

    def _fault(self, code: str, side: int, at: At, text: str) -> None:
        self.faults.append(Fault(code, self.slot, side, at, text))

    # ------------------------------------------------------------------------------------------------------ events

    def _take(self, side: int, event: Event) -> bool:
        """Take an event; return False when secrets are missing that may still come."""
        half = self.halves[side]
        if isinstance(event, Record):
            if self._is_encrypted(half, event.kind):
                return self._encrypted(side, half, event)
            self._content(side, half, event.kind, event.body or b"", event)
        elif isinstance(event, Lost):
            self._lost(side, half, event)
        else:
            self._gap(side, half, event)
        return True

    def _is_encrypted(self, half: TlsDirection, kind: int) -> bool:
        chosen = self.handshake.chosen
        if chosen and chosen.version < keys.TLS_1_3:
            return half.changed
        return kind == DATA or (half.changed and kind == HANDSHAKE)

    def _encrypted(self, side: int, half: TlsDirection, record: Record) -> bool:
        found, half.found = half.found, None
        opened = found.opened if found else None
        if opened is None:
            opener = half.opener or self._make_opener(side, half) or self._resumed(side, half, record)
            if opener and record.body is not None and not opener.keys_failed:
                opened = opener.open(record, bool(half.missed))
                if opened is None and self._adds(side, opener):
                    opened = opener.open(record, bool(half.missed))
                if opened and half.missed:
                    self._late(side, half, opener.epoch, record)
            if opened is None and self._may_wait(side, opener):
                for each in self.halves:
                    each.walk.skips_bodies = False  # the events that wait after this one must be decrypted, too
                return False
            if opened is None and opener and opener.keys_failed and not half.walk.skips_bodies:
                text = f"the secrets decrypt none of {REFUSED} records in a row; the connection stays encrypted"
                self._fault("tls-undecrypted", side, record.last, text)
            half.walk.skips_bodies = opener is None or opener.keys_failed
        if opened is None:
            self.handshake.seal(side, half, record)
            self._miss(side, half, record.length if record.kind == DATA else 0, record.last)
        else:
            self._content(side, half, opened.kind, opened.content, record)
        return True

    def _lost(self, side: int, half: TlsDirection, event: Lost) -> None:
        half.tear()
        kind, length = event.head[0], event.head[3] << 8 | event.head[4]
        if self._is_encrypted(half, kind):
            self._make_opener(side, half)
            self._miss(side, half, length if kind == DATA else 0, event.last)
        elif kind == CHANGE:
            self._change(half)

    def _gap(self, side: int, half: TlsDirection, gap: Gap) -> None:
        half.tear()
        if half.found is None or half.opener is None:
            return
        epoch, found = half.opener.epoch, half.found
        half.missed.clear()
        if epoch.carries and (found.lost or not found.known):
            # Under new keys, the records lost under the old ones were the end of the handshake, or more of it.
            length = gap.length - found.lost * (HEAD + epoch.cipher.overhead)
            # Up to TLS 1.2, the first record is the end of the handshake.
            lost = found.lost - (epoch.ends_first and found.lost == found.number)
            self._lose(side, max(length, 1) if lost else 0, gap.last)

    def _miss(self, side: int, half: TlsDirection, length: int, last: At) -> None:
        """Count a record that could not be read; its content is a gap."""
        if half.opener and half.opener.worked:
            epoch = half.opener.epoch
            half.opener.miss()
            if epoch.carries:
                self._lose(side, length - epoch.cipher.overhead, last)
        elif len(half.missed) < AHEAD:
            half.missed.append(length)

    def _late(self, side: int, half: TlsDirection, epoch: Epoch, record: Record) -> None:
        """Handle a first decrypted record that is not the first under its keys."""
        lost = sum(max(length - epoch.cipher.overhead, 0) for length in half.missed)
        half.missed.clear()
        if epoch.ends_first:  # in TLS 1.3, the lost records may hold the handshake, or early data
            self._lose(side, lost, record.last)

    def _lose(self, side: int, length: int, last: At) -> None:
        if length > 0:
            self.plain.append(PlainChunk(self.slot, side, None, length, last, last))

    def _confirm(self, side: int) -> Callable[[bytes, int, int], bool]:
        """Return a function for `Walk.confirm`: whether a record of this length begins here, after a gap."""

        def confirm(data: bytes, length: int, gap: int) -> bool:
            half = self.halves[side]
            opener = None if self.waiting else half.opener or self._make_opener(side, half)
            if opener and not opener.keys_failed:
                half.found = opener.find(data[:HEAD], data[HEAD:length], gap)
                if half.found:
                    half.changed = True
                    return True
                if opener.worked:
                    return False
            return is_followed(data, length)

        return confirm

    def _content(self, side: int, half: TlsDirection, kind: int, content: bytes, record: Record) -> None:
        """Take the content of a record, in clear or decrypted."""
        if kind == DATA:
            if content and half.opener is not None:
                self.handshake.shown.decrypted = True
                self.plain.append(PlainChunk(self.slot, side, content, len(content), record.first, record.last))
        elif kind == HANDSHAKE:
            self.handshake.take(side, half, content, record.last)
        elif kind == CHANGE:
            self._change(half)
        elif kind == ALERT and len(content) == 2:
            self.handshake.alert(side, content[0], content[1], record.last)

    def _change(self, half: TlsDirection) -> None:
        """Use the keys of the last hellos from here on in this direction (up to TLS 1.2)."""
        chosen, retried = self.handshake.chosen, self.handshake.retried
        if not retried if chosen is None else chosen.version < keys.TLS_1_3:
            half.changed, half.opener = True, None
            half.missed.clear()
            half.tear()

    # -------------------------------------------------------------------------------------------------------- keys

    def _make_opener(self, side: int, half: TlsDirection) -> Opener | None:
        """Return the opener of this direction's records; None without secrets, or before the handshake is known."""
        if half.opener is None and self.handshake.hello and self.handshake.shown.client is not None:
            known = self._secrets()
            epochs = self._epochs(side, known) if known else []
            half.opener = Opener(epochs) if epochs else None
        return half.opener

    def _epochs(self, side: int, known: dict[bytes, bytes]) -> list[Epoch]:
        handshake = self.handshake
        from_client = side == handshake.shown.client
        return epochs_of(handshake.hello, handshake.chosen, from_client, known) if handshake.hello else []

    def _adds(self, side: int, opener: Opener) -> bool:
        """Return whether secrets have come since this opener was made, and were added."""
        if self.handshake.hello is None or opener.epoch.carries:
            return False
        known = self._secrets()
        have = {epoch.secret for epoch in opener.epochs}
        epochs = [e for e in self._epochs(side, known) if e.carries and e.secret not in have]
        opener.epochs += epochs
        return bool(epochs)

    def _may_wait(self, side: int, opener: Opener | None) -> bool:
        """Return whether secrets of this direction are missing that may still come."""
        if not self.awaits_secrets or not self.keylog.expecting or self.handshake.hello is None:
            return False
        self._known = dict(self._secrets())
        return opener is None or not any(epoch.carries for epoch in opener.epochs)

    def _secrets(self) -> dict[bytes, bytes]:
        """Return the secrets of this connection known so far."""
        hello = self.handshake.hello
        return (self.keylog.secrets(hello.random) if hello else {}) or self._earlier

    def _resumed(self, side: int, half: TlsDirection, record: Record) -> Opener | None:
        """Return the opener of a resumed session of TLS 1.2, if not each connection has its own line in the key log.

        Its master secret is that of an earlier connection, perhaps in another capture; a trial with the end of the
        handshake, a direction's first encrypted record, shows which.
        """
        if not self.handshake.shown.resumed or half.sealed or record.body is None or self._secrets():
            return None
        for master in islice(self.keylog.masters(), limits.TLS_TRIES):
            epochs = self._epochs(side, {MASTER: master})
            if not epochs:
                return None
            if epochs[0].cipher.open(0, record.head, record.body):
                self._earlier = {MASTER: master}
                return self._make_opener(side, half)
        return None


def _size(event: Event) -> int:
    return 64 + len(event.body or b"") if isinstance(event, Record) else 64
