"""Conversations of clients with a broker, made of what a test needs of them: turns of a `Tape`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pamqp import commands

from tests.dissector.builders import Packet, pcap
from tests.dissector.wire import CLIENT, SERVER, T0, Tape, Turn, content, handshake, method, opening
from tests.pipelines.analyzed import walked

BEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
BYE = commands.Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0)


def of_tapes(folder: Path, *tapes: Tape) -> Any:
    """What walks make of a capture with connections; it lies in a folder as made.pcap."""
    packets: list[Packet] = [packet for tape in tapes for packet in tape.packets]
    (folder / "made.pcap").write_bytes(pcap(sorted(packets, key=lambda each: each.ts_ns), ns=True))
    return walked(folder / "made.pcap")


def connected(
    port: int, seconds: float = 0, server_port: int = 5672, name: str | None = None, vhost: str = "/"
) -> Tape:
    tape = Tape(port=port, start_ns=T0 + int(seconds * 10**9), server_port=server_port)
    return tape.play([*handshake(name, vhost), *opening(1)])


def begun_before(port: int, seconds: float) -> Tape:
    """A connection whose handshake is not in the capture."""
    return Tape(port=port, start_ns=T0 + int(seconds * 10**9), syn=False, isn=(5000, 6000))


def closed(tape: Tape) -> Tape:
    return tape.play([(CLIENT, method(BYE, 0)), (SERVER, method(commands.Connection.CloseOk(), 0))]).end()


def declare(queue: str, exclusive: bool = False, **arguments: Any) -> list[Turn]:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    ok = commands.Queue.DeclareOk(queue=queue, message_count=0, consumer_count=0)
    return [
        (CLIENT, method(commands.Queue.Declare(queue=queue, exclusive=exclusive, arguments=given))),
        (SERVER, method(ok)),
    ]


def exchange(name: str, kind: str = "topic", **arguments: Any) -> list[Turn]:
    given = {each.replace("_", "-"): value for each, value in arguments.items()}
    command = commands.Exchange.Declare(exchange=name, exchange_type=kind, arguments=given)
    return [(CLIENT, method(command)), (SERVER, method(commands.Exchange.DeclareOk()))]


def bind(queue: str, name: str, key: str) -> list[Turn]:
    command = commands.Queue.Bind(queue=queue, exchange=name, routing_key=key)
    return [(CLIENT, method(command)), (SERVER, method(commands.Queue.BindOk()))]


def consume(queue: str, tag: str = "c", no_ack: bool = True) -> list[Turn]:
    command = commands.Basic.Consume(queue=queue, consumer_tag=tag, no_ack=no_ack)
    return [(CLIENT, method(command)), (SERVER, method(commands.Basic.ConsumeOk(consumer_tag=tag)))]


def sent(name: str, key: str, count: int, mandatory: bool = False, **properties: Any) -> Turn:
    command = commands.Basic.Publish(exchange=name, routing_key=key, mandatory=mandatory)
    return CLIENT, b"".join(method(command) + b"".join(content(b"x", **properties)) for _ in range(count))


def given(
    name: str, key: str, count: int, first: int = 1, tag: str = "c", redelivered: bool = False, **properties: Any
) -> Turn:
    made = [
        method(commands.Basic.Deliver(tag, number, redelivered, name, key)) + b"".join(content(b"x", **properties))
        for number in range(first, first + count)
    ]
    return SERVER, b"".join(made)


def returned(key: str, count: int) -> Turn:
    command = commands.Basic.Return(reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key=key)
    return SERVER, b"".join(method(command) + b"".join(content(b"x")) for _ in range(count))


def later(tape: Tape, seconds: float) -> Tape:
    """Let its next packet come later."""
    tape.start_ns += int(seconds * 10**9)
    return tape
