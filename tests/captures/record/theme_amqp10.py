"""AMQP 1.0: handshakes that succeed and that fail, by a scripted client whose bytes are written out here."""

from __future__ import annotations

import contextlib
import struct
import time

from tests.captures.record.broker import PORT
from tests.captures.record.peer import Peer
from tests.captures.record.scenario import Stage, scenario
from tests.captures.record.theme_handshakes import Verdicts

PLUGIN = "rabbitmq_amqp1_0"
SASL_HEADER, HEADER = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
SASL, AMQP = 1, 0
INIT, OUTCOME, OPEN, BEGIN, CLOSE = 0x41, 0x44, 0x10, 0x11, 0x18


def _symbol(text: str) -> bytes:
    return b"\xa3" + bytes([len(text)]) + text.encode()


def _text(text: str) -> bytes:
    return b"\xa1" + bytes([len(text)]) + text.encode()


def _binary(data: bytes) -> bytes:
    return b"\xa0" + bytes([len(data)]) + data


def _frame(kind: int, performative: int, *fields: bytes) -> bytes:
    body = b"".join(fields)
    listed = b"\x00\x53" + bytes([performative, 0xC0, len(body) + 1, len(fields)]) + body
    return struct.pack(">IBBH", 8 + len(listed), 2, kind, 0) + listed


def _read(peer: Peer, seconds: float = 0.5) -> bytes:
    """What comes until nothing has come for a while, or the broker has closed."""
    answer = b""
    peer.socket.settimeout(seconds)
    with contextlib.suppress(ConnectionError, TimeoutError):
        while data := peer.socket.recv(4096):
            answer += data
    told = {"t_ns": time.time_ns(), "client": peer.book.client, "what": "told", "octets": answer.hex()}
    peer.book.events.append(told)
    return answer


def _log_in(peer: Peer, mechanism: str, response: bytes) -> bytes:
    peer.socket.sendall(SASL_HEADER)
    _read(peer)
    peer.socket.sendall(_frame(SASL, INIT, _symbol(mechanism), _binary(response)))
    return _read(peer)


def _open(peer: Peer, host: str) -> bytes:
    peer.socket.sendall(HEADER + _frame(AMQP, OPEN, _text("scripted-container"), _text(host)))
    return _read(peer)


BEGINNING = _frame(AMQP, BEGIN, b"\x40", b"\x43", b"\x52\x7f", b"\x52\x7f")


@scenario("AMQP 1.0: an orderly handshake, one without SASL; wrong password, mechanism, vhost; a silent client")
def amqp10_handshakes(stage: Stage) -> None:
    stage.broker.plugin(PLUGIN, PORT)
    verdicts = Verdicts(stage)
    with stage.sniff():
        peer = stage.connect("in order")
        assert b"\x53\x44" in _log_in(peer, "PLAIN", b"\0guest\0guest")
        assert HEADER in _open(peer, "localhost")
        peer.socket.sendall(BEGINNING)
        _read(peer)
        peer.socket.sendall(_frame(AMQP, CLOSE))
        _read(peer)
        peer.socket.close()
        verdicts.add("in order", "ready", "ok", ending="closed")
        for client, mechanism, response, cause in (
            ("wrong password", "PLAIN", b"\0guest\0not this one", "auth-failed"),
            ("unknown mechanism", "GSSAPI", b"token", "no-common-mechanism"),
        ):
            peer = stage.connect(client)
            _log_in(peer, mechanism, response)
            _read(peer, 6)  # the broker takes its time
            peer.socket.close()
            verdicts.add(client, "start", cause)
        peer = stage.connect("unknown vhost")
        _log_in(peer, "PLAIN", b"\0guest\0guest")
        assert b"\x53\x10" in _open(peer, "vhost:nowhere")  # looked at only when a session begins
        peer.socket.sendall(BEGINNING)
        assert b"unauthorized-access" in _read(peer, 6)
        peer.socket.close()
        verdicts.add("unknown vhost", "ready", "ok", ending="closed-by-server")
        peer = stage.connect("without SASL")
        assert b"\x53\x10" in _open(peer, "localhost")
        peer.socket.sendall(_frame(AMQP, CLOSE))
        _read(peer)
        peer.socket.close()
        verdicts.add("without SASL", "open-ok", "ok", ending="closed")
        peer = stage.connect("silent after its header")
        peer.socket.sendall(SASL_HEADER)
        _read(peer, 15)
        peer.socket.close()
        verdicts.add("silent after its header", "start", "handshake-timeout", slow="client")
    stage.broker.plugin_off(PLUGIN)
    stage.golden["secrets"] = ["not this one"]
