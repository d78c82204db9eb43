"""Handshakes of streams that fail, one cause each, and other protocols on the stream port."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import threading
import time
from typing import Any

from tests.captures.record.peer import PROTOCOL_HEADER
from tests.captures.record.scenario import Stage, scenario
from tests.captures.record.stream_peer import StreamPeer
from tests.captures.record.theme_handshakes import OUTSIDE, Verdicts
from tests.captures.record.theme_streams import STREAM_PORT, ready
from tests.dissector.stream import wire

PROXY = b"PROXY TCP4 10.1.2.3 10.4.5.6 40000 5552\r\n"
AUTHENTICATE, TUNE, OPEN = 19, 20, 21


def _connect(stage: Stage, client: str, host: str = "127.0.0.1") -> StreamPeer:
    plain = socket.create_connection((host, STREAM_PORT))
    stage.address(client, plain.getsockname(), plain.getpeername())
    return StreamPeer(client, plain, stage.events)


def _read_to_end(peer: StreamPeer, seconds: float = 15) -> bytes:
    """What the broker sends until it closes; fails when it does not in time."""
    answer = peer.data
    peer.connection.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        while data := peer.connection.recv(1000):
            answer += data
    peer.connection.close()
    return answer


def _introduced(peer: StreamPeer) -> None:
    peer.call(17, wire.table({"product": "scripted stream peer", "version": "1", "platform": "sockets"}))
    peer.call(18)


def _log_in(peer: StreamPeer, mechanism: str = "PLAIN", data: bytes = b"\0guest\0guest") -> int:
    _introduced(peer)
    return peer.call(AUTHENTICATE, wire.string(mechanism) + wire.binary(data))[0]


@scenario("logins and opens of streams refused, each with its code: mechanism, response, password, loopback, vhost")
def stream_refusals(stage: Stage) -> None:
    ready(stage)
    control = stage.broker.control
    subprocess.run(["ip", "address", "replace", f"{OUTSIDE}/32", "dev", "lo"], check=True)
    control("add_vhost", "private")
    verdicts = Verdicts(stage)
    with stage.sniff(ports=(STREAM_PORT,)):
        for client, mechanism, data, host, code, cause in (
            ("unknown mechanism", "GSSAPI", b"token", "127.0.0.1", 7, "no-common-mechanism"),
            ("malformed response", "PLAIN", b"no separators", "127.0.0.1", 9, "login-malformed"),
            ("wrong password", "PLAIN", b"\0guest\0not this one", "127.0.0.1", 8, "auth-failed"),
            ("guest from outside", "PLAIN", b"\0guest\0guest", OUTSIDE, 11, "loopback-only"),
        ):
            peer = _connect(stage, client, host)
            assert _log_in(peer, mechanism, data) == code, client
            _read_to_end(peer)
            verdicts.add(client, "start", cause)
        for client, vhost in (("unknown vhost", "nowhere"), ("no access", "private")):
            peer = _connect(stage, client)
            assert _log_in(peer) == 1
            peer.send(wire.frame(0x8014, peer.wait(TUNE).body))
            assert peer.call(OPEN, wire.string(vhost))[0] == 12, client
            _read_to_end(peer)
            verdicts.add(client, "open", "vhost-unavailable")
    control("delete_vhost", "private")
    stage.golden["secrets"] = ["not this one", "no separators"]


@scenario(
    "other protocols on the stream port: AMQP 0-9-1, HTTP, TLS, a PROXY header, garbage; and what the broker does"
)
def stream_wrong_ports(stage: Stage) -> None:
    ready(stage)
    verdicts = Verdicts(stage)
    hello = wire.request(17, 1, wire.table({}))
    with stage.sniff(ports=(STREAM_PORT,)):
        for client, data, reached, cause in (
            ("AMQP 0-9-1", PROTOCOL_HEADER, "header", "amqp-on-stream-port"),
            ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "tcp", "http-on-amqp-port"),
            ("TLS hello", bytes.fromhex("1603010040010000") + b"\3\3" + b"\7" * 58, "tls", "tls-unanswered"),
            (
                "PROXY header",
                b"PROXY TCP4 10.1.2.3 10.4.5.6 40000 5552\r\n" + hello,
                "header",
                "proxy-header-unexpected",
            ),
            ("garbage", b"hello, is there anybody?", "tcp", "wrong-protocol"),
        ):
            peer = _connect(stage, client)
            peer.connection.sendall(data)
            answer = _read_to_end(peer, 40)
            peer.note("answered", data=answer.hex())
            verdicts.add(client, reached, cause)


@scenario(
    "streams: time-outs of the broker at three points, a client that leaves, missed heartbeats, an operator's close"
)
def stream_patience(stage: Stage) -> None:
    ready(stage)
    verdicts = Verdicts(stage)
    with stage.sniff(ports=(STREAM_PORT,)):
        silent = _connect(stage, "says nothing")
        introduced = _connect(stage, "silent after its introduction")
        _introduced(introduced)
        tuned = _connect(stage, "silent after tune")
        assert _log_in(tuned) == 1
        tuned.wait(TUNE)
        leaves = _connect(stage, "leaves after start")
        _introduced(leaves)
        leaves.connection.close()
        verdicts.add("leaves after start", "start", "client-left-at-start")
        quiet = _connect(stage, "heartbeats missed")
        assert _log_in(quiet) == 1
        quiet.wait(TUNE)
        quiet.send(wire.frame(0x8014, struct.pack(">II", 1048576, 1)))
        assert quiet.call(OPEN, wire.string("/"))[0] == 1
        waits = [threading.Thread(target=_read_to_end, args=(p, 60)) for p in (silent, introduced, tuned, quiet)]
        for wait in waits:
            wait.start()
        for wait in waits:
            wait.join()
        verdicts.add("says nothing", "tcp", "handshake-timeout", slow="client")
        verdicts.add("silent after its introduction", "start", "handshake-timeout", slow="client")
        verdicts.add("silent after tune", "tune", "handshake-timeout", slow="client")
        verdicts.add("heartbeats missed", "open-ok", "ok", ending="heartbeat-missed-by-client")
        thrown: Any = _connect(stage, "closed by the operator")
        assert thrown.login() == 1
        stage.broker.control("close_all_connections", "--vhost", "/", "maintenance at noon")
        told = thrown.next()
        thrown.note("told at the end", key=told and told.key, body=told and told.body.hex())
        # of streams no close is sent then
        verdicts.add("closed by the operator", "open-ok", "ok", ending="server-gone")
        time.sleep(0.2)
        thrown.connection.close()
