"""Turn the state of a TLS connection into values that can be written, and such values into a connection.

Ciphers are created from their secrets. The bytes allow decrypting the connection, like its key log.
"""

from typing import Any

from amqpscope.dissector.kernels.coding import Coding
from amqpscope.dissector.tls.ciphers import Opened
from amqpscope.dissector.tls.keys import Master
from amqpscope.dissector.tls.messages import KNOWN, ClientHello, ServerHello
from amqpscope.dissector.tls.opener import Epoch, Found, Opener, of_master, of_secret
from amqpscope.dissector.tls.records import At, Gap, Lost, Record
from amqpscope.dissector.tls.session import Session

STATE = Coding(At, ClientHello, ServerHello, Record, Lost, Gap, Found, Opened, Master)
SESSION = ("_earlier", "_known", "held", "awaits_secrets", "waiting")
HANDSHAKE = ("chosen", "hello", "retried")
DIRECTION = (
    "changed", "counted", "finished", "found", "message", "missed", "passing", "read", "has_sent", "sealed",
)  # fmt: skip
WALK = ("at", "skips_bodies", "doubted", "gap", "likely", "looked", "marks", "need", "buffered", "skip")
OPENER = ("_before", "_last", "_refused", "_tries", "worked")


def values(session: Session) -> list[Any]:
    """Return values that `STATE` can write."""
    directions = [(_of(half, DIRECTION), _of(half.walk, WALK), _opener(half.opener)) for half in session.halves]
    return [_of(session, SESSION), _of(session.handshake, HANDSHAKE), directions]


def give(session: Session, written: list[Any]) -> None:
    """Set the state of a connection to what `values` returned."""
    own, handshake, directions = written
    _give(session, SESSION, own)
    _give(session.handshake, HANDSHAKE, handshake)
    for half, (state, walk, opener) in zip(session.halves, directions, strict=True):
        _give(half, DIRECTION, state)
        _give(half.walk, WALK, walk)
        if opener is not None:
            epochs, attributes = opener
            half.opener = Opener([_epoch(*each) for each in epochs])
            _give(half.opener, OPENER, attributes)


def _of(it: Any, names: tuple[str, ...]) -> list[Any]:
    return [getattr(it, name) for name in names]


def _give(it: Any, names: tuple[str, ...], given: list[Any]) -> None:
    for name, value in zip(names, given, strict=True):
        setattr(it, name, value)


def _opener(opener: Opener | None) -> tuple[list[Any], list[Any]] | None:
    if opener is None:
        return None
    epochs = [(each.suite.number, each.carries, each.secret, each.master, each.number) for each in opener.epochs]
    return epochs, _of(opener, OPENER)


def _epoch(suite: int, carries: bool, secret: bytes, master: Master | None, number: int) -> Epoch:
    known = KNOWN.suites[suite]
    epoch = of_master(master, known) if master else of_secret(secret, known, carries)
    epoch.number = number
    return epoch
