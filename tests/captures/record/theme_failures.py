"""Connections that never came up, and peers that break the protocol."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from pamqp import commands

from tests.captures.record import scripted, wire
from tests.captures.record.broker import PORT
from tests.captures.record.peer import PROTOCOL_HEADER, Peer
from tests.captures.record.scenario import Stage, scenario


def _refused(peer: Peer, **options: Any) -> int | None:
    """Tries to log in.

    Returns:
        The reply code of the broker's connection.close, None when it closed without a word.
    """
    try:
        peer.login(**options)
    except ConnectionAbortedError:
        peer.send(0, commands.Connection.CloseOk())
    except ConnectionError:
        pass
    else:
        raise AssertionError("this should not have worked")
    peer.socket.close()
    mine = [event for event in peer.book.events if event["client"] == peer.book.client]
    return next((event["reply_code"] for event in mine if event["method"] == "connection.close"), None)


@scenario("wrong password (403, and without a word), unknown vhost (530), refused, foreign protocol headers, silence")
def failed_handshakes(stage: Stage) -> None:
    verdicts = []

    def verdict(client: str, reached: str, cause: str, reply_code: int | None = None) -> None:
        verdicts.append({"client": client, "stage": reached, "cause": cause, "reply_code": reply_code})

    with stage.sniff():
        code = _refused(stage.connect("wrong password"), password="wr0ng-s3cret")
        verdict("wrong password", "start-ok", "credentials refused", code)
        assert code == 403
        code = _refused(stage.connect("wrong password, incapable"), password="wr0ng-s3cret", capable=False)
        assert code is None
        verdict("wrong password, incapable", "start-ok", "closed without a reason after start-ok")
        code = _refused(stage.connect("unknown vhost"), vhost="nowhere")
        assert code == 530
        verdict("unknown vhost", "open", "vhost not found", code)
        for client, data in (
            ("AMQP 1.0", b"AMQP\x00\x01\x00\x00"), ("AMQP 1.0 with SASL", b"AMQP\x03\x01\x00\x00"),
            ("AMQP 0-10", b"AMQP\x01\x01\x00\x0a"), ("HTTP", b"GET /api/overview HTTP/1.1\r\nHost: broker\r\n\r\n"),
            ("TLS", bytes.fromhex("16030100310100002d0303") + b"\x07" * 32 + bytes.fromhex("000002002f0100")),
        ):  # fmt: skip
            peer = stage.connect(client)
            peer.socket.sendall(data)
            answer = b""
            with contextlib.suppress(OSError):
                peer.socket.settimeout(15)
                while data := peer.socket.recv(100):
                    answer += data
            assert answer == PROTOCOL_HEADER, (client, answer)
            peer.socket.close()
            verdict(client, "protocol header", "the broker answered with its own protocol header and closed")
        peer = stage.connect("connects only")
        time.sleep(0.1)
        peer.socket.close()
        verdict("connects only", "tcp", "the client closed without sending anything")
        peer = stage.connect("leaves after start")
        peer.socket.sendall(PROTOCOL_HEADER)
        peer.wait(0, "connection.start")
        peer.socket.close()
        verdict("leaves after start", "start", "the client closed without answering")
        with contextlib.suppress(ConnectionRefusedError), socket.socket() as closed:
            closed.connect(("127.0.0.3", PORT))
            raise AssertionError("something listens there")
    stage.golden["handshakes"] = verdicts
    stage.golden["secrets"] = ["wr0ng-s3cret"]
    stage.golden["notes"] = "one more connection, to 127.0.0.3, is refused by a reset"
    stage.golden["counts"] = {"connections": len(verdicts) + 1, "connection.close": 2}


@scenario("older spellings of the protocol header that the broker takes: 0-8, 0-9 and 0-9-1 as AMQP 1 1 x y")
def old_headers(stage: Stage) -> None:
    verdicts = []
    with stage.sniff():
        for client, data in (
            ("0-8", b"AMQP\x01\x01\x08\x00"), ("0-9", b"AMQP\x01\x01\x00\x09"), ("0-9-1", PROTOCOL_HEADER),
        ):  # fmt: skip
            peer = stage.connect(client)
            peer.socket.sendall(data)
            start = peer.wait(0, "connection.start")
            verdicts.append({"client": client, "stage": "start", "cause": "the client closed without answering"})
            verdicts[-1] |= {"version": f"{start.version_major}-{start.version_minor}"}
            peer.socket.close()
    stage.golden["handshakes"] = verdicts
    stage.golden["counts"] = {"connections": 3, "connection.start": 3}


@scenario("seven peers that break the protocol towards the broker, and how it closes on each of them")
def violations(stage: Stage) -> None:
    publish = wire.method(1, commands.Basic.Publish(routing_key="q"))
    faults = {
        "content inside a content": publish + wire.header(1, 10, {}) + publish,
        "body without a header": publish + wire.frame(wire.BODY, 1, b"body"),
        "header without a method": wire.header(1, 4, {}),
        "body larger than announced": publish + wire.header(1, 4, {}) + wire.frame(wire.BODY, 1, b"too much"),
        "wrong frame end": wire.frame(wire.METHOD, 1, publish[7:-1], b"\x00"),
        "unknown frame type": wire.frame(9, 1, b"what is this"),
        "unknown method": wire.frame(wire.METHOD, 1, b"\x00\x3c\x03\xe7"),
    }
    found = []
    silent = []  # RabbitMQ 3.10 waits for more of the one, and fails without a word on the other
    with stage.sniff():
        for client, data in faults.items():
            peer = stage.login(client)
            peer.publish(1, "", "nowhere", b"all is well")
            peer.queue_raw(data)
            peer.flush()
            code = None
            try:
                code = peer.wait(0, "connection.close", seconds=1.5).reply_code
                peer.send(0, commands.Connection.CloseOk())
            except (ConnectionResetError, TimeoutError):
                silent.append(client)
            found.append({"client": client, "channel": 1, "violation": client, "count": 1, "reply_code": code})
            peer.socket.close()
    assert silent == ["body larger than announced", "unknown method"], silent
    stage.keep("messages")
    stage.golden["anomalies"] = found
    stage.golden["notes"] = "messages has the whole ones only; what was begun and never ended is not in it"


@scenario("scripted server: broken contents on channel 1 with whole ones between; channel 2 is in order")
def broken_contents(stage: Stage) -> None:
    def begun(routing_key: str, size: int, body: bytes) -> bytes:
        head = wire.method(1, commands.Basic.Publish(routing_key=routing_key)) + wire.header(1, size, {})
        return head + (wire.frame(wire.BODY, 1, body) if body else b"")

    with scripted.listener() as server, stage.sniff():
        client, far = scripted.pair(stage, server, "producer")
        scripted.shake(client, far, channels=(1, 2))

        def whole(channel: int, text: str) -> None:
            client.publish(channel, "", "whole", text.encode())

        whole(1, "one")
        client.queue_raw(begun("cut by a publish", 100, b"forty octets of a body of one hundred..."))
        whole(2, "in between")
        whole(1, "two")
        client.queue_raw(begun("cut by a method", 100, b""))
        client.queue(1, commands.Queue.Declare(queue="q", nowait=True))
        whole(1, "three")
        client.queue_raw(begun("too much", 5, b"five and more"))
        whole(1, "four")
        client.queue_raw(wire.frame(wire.BODY, 1, b"a body of nothing"))
        whole(1, "five")
        client.queue_raw(wire.header(1, 7, {}) + wire.frame(wire.BODY, 1, b"no head"))
        whole(1, "six")
        client.queue_raw(wire.method(1, commands.Basic.Publish(routing_key="no header")))
        client.queue_raw(wire.frame(wire.BODY, 1, b"a body without its header"))
        whole(2, "in order to the end")
        client.flush()
        far.socket.recv(1 << 20)
        client.socket.close()
        far.socket.close()
    stage.keep("messages")
    stage.golden["anomalies"] = [
        {"client": "producer", "channel": 1, "violation": violation, "count": count}
        for violation, count in (
            ("content cut by another content", 1), ("content cut by a method", 1), ("body larger than announced", 1),
            ("body without method and header", 1), ("header without method", 1), ("body without header", 1),
        )
    ]  # fmt: skip
    stage.golden["notes"] = "messages has the whole ones only"
    stage.golden["counts"] = {"queue.declare": 1}


@scenario("scripted server: a frame with a wrong end byte and 200 bytes of nothing, between good frames")
def wrong_end_octet(stage: Stage) -> None:
    with scripted.listener() as server, stage.sniff():
        client, far = scripted.pair(stage, server, "producer")
        scripted.shake(client, far)
        for number in range(1, 4):
            client.publish(1, "", "good", f"before {number}".encode())
        client.flush()
        far.drain(0.1)
        client.socket.sendall(wire.frame(wire.METHOD, 1, b"\x00\x3c\x00\x28", b"\xcd"))
        client.socket.sendall(b"nothing that could be taken for a frame " * 5)
        for number in range(1, 11):
            client.publish(1, "", "good", f"after {number}".encode())
        client.flush()
        far.socket.recv(1 << 16)
        client.socket.close()
        far.socket.close()
    stage.keep("messages")
    stage.golden["anomalies"] = [{"client": "producer", "channel": 1, "violation": "wrong frame end", "count": 1}]
    stage.golden["notes"] = "those before must be there; those after only once frames are found again"
