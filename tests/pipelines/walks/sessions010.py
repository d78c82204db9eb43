"""Made-up connections of AMQP 0-10 as tables, and recorded ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.dissector.recordings import ours
from tests.pipelines.scenario import arrow_table

_RECORDED = ("flow_credit", "messaging", "python_peers", "session_controls", "tx")
CAPTURES = [Path(__file__).parents[2] / f"captures/qpid_{name}.pcap" for name in _RECORDED]
"""Recordings with all that sessions do."""
TABLES = ("connections", "anomalies", "amqp010_frames", "messages")
Row = dict[str, Any]


def recorded(path: Path) -> dict[str, pa.Table]:
    return {table: ours(path)[table] for table in TABLES}


class Peers:
    """One connection of AMQP 0-10; each call appends a frame, at 1000 ns a frame. Ids of commands count by session."""

    def __init__(self, number: int, start: int = 0, **columns: Any) -> None:
        self.number, self.start, self.columns = number, start, columns
        self.frames: list[Row] = []
        self.messages: list[Row] = []
        self.anomalies: list[Row] = []
        self.ids: dict[tuple[str | None, bool], int] = {}
        self.epochs: dict[int, int] = {}

    def row(self, from_client: bool, channel: int) -> Row:
        no = len(self.frames)
        return {
            "connection_id": self.number, "capture": "a.pcap", "packet": no + 1, "ts_ns": self.start + no * 1000,
            "first_ts_ns": self.start + no * 1000, "frame_no": no, "from_client": from_client, "channel": channel,
            "channel_epoch": self.epochs.get(channel, 0),
        }  # fmt: skip

    def control(
        self, from_client: bool, method: str | None, session: str | None = "s", channel: int = 1, **columns: Any
    ) -> int:
        """Append a control; return its frame number."""
        if method == "session.attach":
            self.epochs[channel] = self.epochs.get(channel, 0) + 1
        if method == "session.command-point" and session is not None:
            self.ids[session, from_client] = columns["command_id_sequence_no"]
        kind = {"method": method, "segment_type": "control", "session": session, "size": 20}
        self.frames.append(self.row(from_client, channel) | kind | columns)
        return len(self.frames) - 1

    def command(
        self, from_client: bool, method: str, session: str | None = "s", channel: int = 1, sync: bool = True,
        **columns: Any,
    ) -> int:  # fmt: skip
        """Append a command; return its id."""
        number = self.ids.get((session, from_client), 0)
        self.ids[session, from_client] = number + 1
        kind = {"method": method, "segment_type": "command", "session": session, "size": 20}
        kind |= {"command_id": number, "sync": sync}
        self.frames.append(self.row(from_client, channel) | kind | columns)
        return number

    def transfer(
        self, from_client: bool, session: str | None = "s", channel: int = 1, mode: int = 0, acquire: int = 0,
        destination: str = "d", **columns: Any,
    ) -> int:  # fmt: skip
        """Append a transfer, whose only frame has its body; return its id."""
        number = self.command(from_client, "message.transfer", session, channel, False, destination=destination,
                              accept_mode=mode, acquire_mode=acquire)  # fmt: skip
        frame = self.frames[-1]
        frame |= {"segment_type": "body", "size": 22}
        names = ("connection_id", "capture", "packet", "ts_ns", "first_ts_ns", "frame_no", "from_client", "channel",
                 "channel_epoch", "session", "accept_mode", "acquire_mode")  # fmt: skip
        message = {name: frame[name] for name in names} | {"protocol": "amqp-0-10", "first_frame_no": frame["frame_no"]}
        message |= {"unfinished": False, "is_partial": False, "body_size": 10}
        if from_client:
            message |= {"kind": "publish", "exchange": destination, "publish_seq": number}
        else:
            message |= {"kind": "deliver", "consumer_tag": destination, "delivery_tag": number, "no_ack": mode == 1}
        self.messages.append(message | columns)
        return number

    def begin(self, session: str | None = "s", channel: int = 1, point: int = 0) -> None:
        """Attach a session, and say where ids begin."""
        self.control(True, "session.attach", session, channel, name=session)
        self.control(False, "session.attached", session, channel, name=session)
        for from_client in (True, False):
            self.control(from_client, "session.command-point", session, channel, command_id_sequence_no=point)

    def completed(
        self, from_client: bool, *ranges: tuple[int, int], session: str | None = "s", channel: int = 1
    ) -> int:
        """Append session.completed; return its frame number."""
        return self.control(from_client, "session.completed", session, channel, commands=listed(ranges))

    def settle(
        self, how: str, *ranges: tuple[int, int], from_client: bool = True, session: str | None = "s", channel: int = 1,
        **columns: Any,
    ) -> int:  # fmt: skip
        """Append message.accept, reject or release; return its frame number."""
        self.command(from_client, f"message.{how}", session, channel, sync=False, transfers=listed(ranges), **columns)
        return len(self.frames) - 1

    def flow(self, unit: int, value: int | None, destination: str = "d", **columns: Any) -> int:
        """Append message.flow; return its frame number."""
        self.command(
            True, "message.flow", unit=unit, value_uint32=value, destination=destination, sync=False, **columns
        )
        return len(self.frames) - 1

    def lose(self, from_client: bool, code: str = "tcp-gap") -> None:
        """Note a gap of a side before the next frame."""
        row = self.row(from_client, 1)
        names = ("connection_id", "frame_no", "capture", "packet", "ts_ns", "from_client")
        self.anomalies.append({name: row[name] for name in names} | {"code": code})


def listed(ranges: tuple[tuple[int, int], ...]) -> str:
    return json.dumps([list(each) for each in ranges], separators=(",", ":"))


def tables_of(*peers: Peers) -> dict[str, pa.Table]:
    rows = {
        "amqp010_frames": [row for each in peers for row in each.frames],
        "messages": [row for each in peers for row in each.messages],
        "anomalies": [row for each in peers for row in each.anomalies],
        "connections": [
            {
                "connection_id": each.number, "protocol": "amqp-0-10", "first_ts_ns": each.start, "lost_bytes": 0,
                "last_ts_ns": each.start + len(each.frames) * 1000, "server_ip": "::1", "rtt_ns": 10_000,
                "user": "guest",
            } | each.columns
            for each in peers
        ],
    }  # fmt: skip
    return {name: arrow_table(name, found) for name, found in rows.items()}


def lost(number: int = 1, timeout: int | None = 300, **columns: Any) -> Peers:
    """A connection that ends while a transfer, a delivery and a request are outstanding."""
    peers = Peers(number, closed_by="server-reset", closed_ts_ns=9000, **columns)
    peers.begin()
    peers.control(False, "session.timeout", timeout=timeout)
    peers.transfer(True)
    peers.transfer(False)
    peers.command(True, "execution.sync")
    return peers


def resumed(number: int = 2, point: int = 2, **columns: Any) -> Peers:
    """A connection on which that session goes on."""
    peers = Peers(number, start=100_000, **columns)
    peers.begin(point=point)
    peers.completed(False, (0, 1))
    peers.settle("accept", (0, 0))
    return peers


def any_peers(chance: random.Random, number: int) -> Peers:
    """A connection on which anything happens to two sessions of names that all connections share."""
    peers = Peers(number, start=number * 20_000)
    for _ in range(chance.randrange(40)):
        anything(peers, chance, chance.random() < 0.5, *chance.choice([("s", 1), ("t", 2)]))
    if chance.random() < 0.2:
        peers.control(chance.random() < 0.5, "connection.close", None, 0)
    return peers


def anything(peers: Peers, chance: random.Random, side: bool, session: str, channel: int) -> None:
    """One thing that a side does."""
    lower = chance.randrange(8)
    ids = (lower, lower + chance.randrange(4)), (lower + 6, lower + 6 + chance.randrange(3))
    at = {"session": session, "channel": channel}
    queue = {"queue": "q", "destination": "d"}
    refers = {"command_id_sequence_no": lower, "error_code": 404}
    some: list[Callable[[], object]] = [
        lambda: peers.begin(point=chance.choice((0, 0, 3)), **at),
        lambda: peers.transfer(side, mode=chance.choice((0, 0, 1)), acquire=chance.choice((0, 0, 1)), **at),
        lambda: peers.transfer(side, **at),
        lambda: peers.completed(side, *ids[: chance.randrange(3)], **at),
        lambda: peers.completed(side, (0, lower), **at),
        lambda: peers.settle(chance.choice(("accept", "reject", "release")), *ids, from_client=side, **at),
        lambda: peers.command(side, chance.choice(("tx.select", "tx.commit", "tx.rollback", "execution.sync")), **at),
        lambda: peers.command(side, chance.choice(("queue.query", "message.subscribe")), **at, **queue),
        lambda: peers.command(side, chance.choice(("execution.result", "execution.exception")), **at, **refers),
        lambda: peers.command(side, f"dtx.{chance.choice(('start', 'end', 'commit'))}", xid=str(lower % 2), **at),
        lambda: peers.command(
            side, "execution.result", value=f'{{"$dtx.xa-result":{{"status":{lower}}}}}', **refers, **at
        ),
        lambda: peers.control(side, chance.choice(("session.detach", "session.detached")), **at),
        lambda: peers.control(side, "session.timeout", timeout=chance.choice((0, 9, None)), **at),
        lambda: peers.control(side, "session.expected", commands=chance.choice(("[]", None)), **at),
        lambda: peers.control(side, None, is_partial=True, **at),
        lambda: peers.lose(side),
    ]
    chance.choice(some)()
