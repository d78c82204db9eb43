"""Connections that come up, each in its own way, and how they end."""

from __future__ import annotations

import socket
import time
from typing import Any

from pamqp import commands

from tests.captures.record import wire
from tests.captures.record.peer import PROTOCOL_HEADER, Peer
from tests.captures.record.scenario import Stage, scenario

SECRETS = ("tr0ub4dor-s3cret", "sm1thy-s3cret", "ch4llenge-s3cret")


def _login(
    peer: Peer, mechanism: str, response: bytes, vhost: str, tune: tuple[int, int, int], challenged: bytes = b""
) -> None:
    """A handshake with any mechanism; `challenged` answers connection.secure."""
    peer.socket.sendall(PROTOCOL_HEADER)
    start = peer.wait(0, "connection.start")
    assert mechanism in start.mechanisms.split()
    peer.book.sent(0, "connection.start-ok", mechanism=mechanism)
    properties = wire.table({"product": ("S", "logins"), "capabilities": ("F", {"basic.nack": ("t", True)})})
    head = b"\x00\x0a\x00\x0b" + properties + wire.short(mechanism)
    head += len(response).to_bytes(4, "big") + response + wire.short("en_US")
    peer.socket.sendall(wire.frame(wire.METHOD, 0, head))
    if challenged:
        peer.wait(0, "connection.secure")
        peer.book.sent(0, "connection.secure-ok")
        peer.socket.sendall(
            wire.frame(wire.METHOD, 0, b"\x00\x0a\x00\x15" + len(challenged).to_bytes(4, "big") + challenged)
        )
    peer.wait(0, "connection.tune")
    peer.send(0, commands.Connection.TuneOk(*tune))
    peer.call(0, commands.Connection.Open(vhost))
    peer.call(1, commands.Channel.Open())


@scenario("logins by PLAIN, AMQPLAIN and RABBIT-CR-DEMO (secure-ok), two vhosts, three tunings, three ends")
def logins(stage: Stage) -> None:
    users = ("alice", "smith", "carol")
    control = stage.broker.control
    control("add_vhost", "/shop")
    for user, secret in zip(users, SECRETS, strict=True):
        control("add_user", user, secret)
        for vhost in ("/", "/shop"):
            control("set_permissions", "-p", vhost, user, ".*", ".*", ".*")
    table = wire.table({"LOGIN": ("S", "smith"), "PASSWORD": ("S", SECRETS[1])})[4:]  # AMQPLAIN: without its length
    ways: tuple[tuple[str, str, bytes, str, tuple[int, int, int], bytes], ...] = (
        ("alice", "PLAIN", f"\0alice\0{SECRETS[0]}".encode(), "/shop", (10, 8192, 30), b""),
        ("smith", "AMQPLAIN", table, "/", (2047, 131072, 0), b""),
        ("carol", "RABBIT-CR-DEMO", b"carol", "/shop", (100, 4096, 60), f"My password is {SECRETS[2]}".encode()),
    )
    rows: list[dict[str, Any]] = []
    with stage.sniff():
        for user, mechanism, response, vhost, tune, challenged in ways:
            peer = stage.connect(user)
            _login(peer, mechanism, response, vhost, tune, challenged)
            row: dict[str, Any] = {"client": user, "user": user, "mechanism": mechanism, "vhost": vhost}
            row |= dict(zip(("channel_max", "frame_max", "heartbeat"), tune, strict=True))
            if user == "alice":
                peer.logout()
                row |= {"closed_by": "client", "reply_code": 200, "reply_text": "bye"}
            elif user == "smith":
                control("close_all_connections", "maintenance at noon")
                close = peer.wait(0, "connection.close")
                peer.send(0, commands.Connection.CloseOk())
                peer.socket.close()
                row |= {"closed_by": "server", "reply_code": 320, "reply_text": close.reply_text}
            else:
                peer.socket.close()  # without a word
            rows.append(row)
            time.sleep(0.1)
    stage.keep("rpcs")
    stage.golden["connections"] = rows
    stage.golden["secrets"] = list(SECRETS)
    stage.golden["counts"] = {
        "connections": 3,
        "connection.secure": 1,
        "connection.secure-ok": 1,
        "connection.close": 2,
    }


@scenario("an idle connection with TCP keep-alives of one second, and no heartbeats; then a publish")
def keepalives(stage: Stage) -> None:
    with stage.sniff():
        peer = stage.login("client")
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        peer.call(1, commands.Confirm.Select())
        time.sleep(3.5)
        peer.publish(1, "", "nowhere", b"still here")
        peer.flush()
        peer.wait(1, "basic.ack")
        peer.logout()
    stage.keep("confirms", "messages")
    stage.golden["counts"] = {"connections": 1, "basic.publish": 1}


@scenario("a no-ack consumer that does not read for half a second: the broker meets a zero window")
def zero_window(stage: Stage) -> None:
    backstage = stage.backstage
    backstage.call(1, commands.Queue.Declare(queue="flood"))
    with stage.sniff():
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", 5672))
        stage.address("consumer", connection.getsockname(), connection.getpeername())
        peer = Peer(connection, stage.ledger("consumer"))
        peer.login()
        peer.call(1, commands.Basic.Consume(queue="flood", consumer_tag="c", no_ack=True))
        begun = time.time_ns()
        for number in range(30):
            backstage.publish(1, "", "flood", f"{number:02} ".encode() * 600)
        backstage.flush()
        time.sleep(0.5)
        ended = time.time_ns()
        peer.until(lambda: len(peer.book.settlements) == 30)
        peer.logout()
    stage.keep("settlements", "messages")
    stage.golden["flow_control"] = [
        {"client": "consumer", "channel": 0, "channel_epoch": 0, "consumer_tag": None, "cause": "zero-window",
         "start_ns": begun, "end_ns": ended}
    ]  # fmt: skip
    stage.golden["notes"] = "times are those between which the client did not read; the windows close a little later"
    stage.golden["counts"] = {"connections": 1, "basic.deliver": 30}
