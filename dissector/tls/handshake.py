"""What the handshake of a TLS connection shows: from its messages, and from the lengths of encrypted records."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.tls import certificates, keys, messages
from amqpscope.dissector.tls.direction import TlsDirection
from amqpscope.dissector.tls.messages import KNOWN, ClientHello, MalformedError, ServerHello
from amqpscope.dissector.tls.records import DATA, HANDSHAKE, At, Record
from amqpscope.dissector.tls.shown import Alert, Fault, Sent, Shown, owner

CLIENT_HELLO, SERVER_HELLO, ENCRYPTED_EXTENSIONS, CERTIFICATE, REQUEST, FINISHED = (
    KNOWN.number("messages", name)
    for name in (
        "client_hello", "server_hello", "encrypted_extensions", "certificate", "certificate_request", "finished",
    )
)  # fmt: skip
CLOSE_NOTIFY = KNOWN.number("alerts", "close_notify")
HIDDEN_ALERT, HIDDEN_BARE, HIDDEN_FINISHED = 2 + 17, 8 + 17, (4 + 32 + 17, 4 + 48 + 17)
"""Lengths in TLS 1.3 of an encrypted alert, of an empty Certificate message, and of Finished by its hash."""


class Handshake:
    """The handshake of one connection; its faults are appended to `faults`."""

    __slots__ = ("chosen", "directions", "faults", "hello", "retried", "shown", "slot")

    def __init__(self, slot: int, directions: tuple[TlsDirection, ...], faults: list[Fault]) -> None:
        self.slot = slot
        self.directions = directions
        self.faults = faults
        self.shown = Shown()
        self.hello: ClientHello | None = None
        """The last ClientHello, and the ServerHello that answered it."""
        self.chosen: ServerHello | None = None
        self.retried = False
        """Whether the server sent a HelloRetryRequest, which only TLS 1.3 has."""

    def alert(self, side: int, level: int, number: int, at: At) -> None:
        """Take an alert."""
        self.shown.alert(Alert(side, level, number, at))
        if number != CLOSE_NOTIFY:
            known = KNOWN.alerts.get(number)
            self.shown.step("tls.alert", side, at, known.name if known else str(number))

    def take(self, side: int, half: TlsDirection, content: bytes, at: At) -> None:
        """Take content of handshake records: parts of messages, or several."""
        if half.passing:
            passed = min(half.passing, len(content))
            half.passing -= passed
            content = content[passed:]
        half.message += content
        while len(half.message) >= 4:
            kind, length = half.message[0], int.from_bytes(half.message[1:4], "big")
            if kind not in KNOWN.messages:
                half.tear()
            elif length > limits.TLS_MESSAGE:
                half.passing = max(4 + length - len(half.message), 0)
                del half.message[: 4 + length]
            elif len(half.message) < 4 + length:
                return
            else:
                if kind in (CLIENT_HELLO, SERVER_HELLO, CERTIFICATE):
                    half.read = min(half.read + length, limits.TLS_MESSAGE)
                body = bytes(half.message[4 : 4 + length])
                del half.message[: 4 + length]
                try:
                    self._message(side, half, kind, body, at)
                except MalformedError:
                    text = f"the lengths in {KNOWN.messages[kind].name} ({length} bytes) contradict each other"
                    self._malformed(side, at, text)

    def _message(self, side: int, half: TlsDirection, kind: int, body: bytes, at: At) -> None:
        shown = self.shown
        if kind == CLIENT_HELLO:
            self.hello, self.chosen = messages.client_hello(body), None
            shown.client = side
            shown.hello = shown.hello or self.hello
        elif kind == SERVER_HELLO:
            self._choose(side, messages.server_hello(body), at)
        elif kind == ENCRYPTED_EXTENSIONS:
            shown.protocol = messages.encrypted_extensions(body) or shown.protocol
        elif kind == CERTIFICATE:
            self._certificate(side, body, at)
        elif kind == REQUEST:
            shown.asked = True
            self.shown.step("tls.certificate-request", side, at)
        elif kind == FINISHED:
            self._finish(side, half, at)

    def _choose(self, side: int, chosen: ServerHello, at: At) -> None:
        shown = self.shown
        if shown.client is None:
            shown.client = 1 - side
        if chosen.retry:
            self.retried = True
            self.shown.step("tls.retry", side, at, "asks for another ClientHello")
            return
        self.chosen = chosen
        if shown.chosen is None:
            offered = self.hello.session if self.hello else b""
            shown.chosen, shown.protocol = chosen, chosen.protocol
            new = chosen.version >= keys.TLS_1_3
            shown.resumed = chosen.shared_key if new else bool(offered) and chosen.session == offered

    def _certificate(self, side: int, body: bytes, at: At) -> None:
        found = messages.certificates(body, self.chosen.version if self.chosen else keys.TLS_1_2)
        if not found:
            self.shown.bare[side] = True
        elif self.shown.certificates[side] is None:
            try:
                self.shown.certificates[side] = Sent(certificates.read(found[0]), at)
            except MalformedError:
                self._malformed(side, at, "the certificate cannot be parsed")
        self.shown.step("tls.certificate", side, at, owner(self.shown.certificates[side]))

    def _malformed(self, side: int, at: At, text: str) -> None:
        self.faults.append(Fault("tls-message-malformed", self.slot, side, at, text))

    def _finish(self, side: int, half: TlsDirection, at: At) -> None:
        if not half.finished:
            half.finished = True
            self.shown.step("tls.finished", side, at)

    def seal(self, side: int, half: TlsDirection, record: Record) -> None:
        """Take what the kind and length of an encrypted record show."""
        shown, length = self.shown, record.length
        half.sealed += 1
        client, server = (self.directions[s] for s in ((shown.client or 0), 1 - (shown.client or 0)))
        if client.finished and server.finished:
            if half is server and shown.hidden is None:
                if length == HIDDEN_ALERT and not shown.accepted and shown.version == keys.TLS_1_3:
                    self._hide(side, record.last)
                    return
                shown.accepted = shown.accepted or length != HIDDEN_ALERT
            elif half is client and length == HIDDEN_ALERT:
                shown.accepted = True  # a close_notify
            if record.kind == DATA and not half.has_sent:
                half.has_sent = True
                self.shown.step("tls.data", side, record.last)
        elif shown.version is None or shown.version < keys.TLS_1_3:
            if record.kind == HANDSHAKE:
                self._finish(side, half, record.last)
        elif half is server:
            self._finish(side, half, record.last)
        elif length == HIDDEN_ALERT:
            self._hide(side, record.last)
        elif length == HIDDEN_BARE:
            shown.asked = shown.bare[side] = True
        else:
            if half.sealed == 1 and length not in HIDDEN_FINISHED:
                shown.asked = True
            self._finish(side, half, record.last)

    def _hide(self, side: int, at: At) -> None:
        self.shown.hidden = side
        self.shown.step("tls.alert", side, at, "encrypted; recognised by its length")
