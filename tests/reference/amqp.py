"""From the streams of a connection to AMQP 0-9-1 frames, by pamqp, and from frames to messages."""

from __future__ import annotations

import re
import struct
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import xxhash
from pamqp import commands, decode, exceptions
from pamqp import frame as pamqp_frame

from tests.reference.packets import Connection, Stream, read_connections

Row = dict[str, Any]

FRAME_TYPES = {1: "method", 2: "header", 3: "body", 8: "heartbeat"}
FRAME_END = 0xCE
PROXY_1, PROXY_2 = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"
ENDS = ("frame_no", "capture", "packet", "ts_ns")  # columns of the frame at an end of something
HEAD = 7  # type, channel, size
CHAIN = 3  # so many frames in a row make a boundary believable
RESERVED = {"ticket", "out_of_band", "channel_id", "capabilities", "insist", "known_hosts"}
SECRET = {"response", "new_secret"}
FINAL_DRAFT_NAMES = {"nowait": "no_wait", "global_": "global", "exchange_type": "type", "message_type": "type"}
CONTENT = {"basic.publish": "publish", "basic.deliver": "deliver", "basic.get-ok": "get", "basic.return": "return"}
SENT_BY_SERVER = {"basic.deliver", "basic.return", "basic.get-ok", "connection.start", "connection.tune"}


class Timestamp(int):
    """Seconds since the epoch in a table or a property, apart from other integers."""


def _seconds(value: bytes) -> tuple[int, Timestamp]:
    # pamqp takes large values for milliseconds; on the wire they are seconds
    if len(value) < 8:
        raise ValueError("a timestamp is cut off")
    return 8, Timestamp(struct.unpack_from(">Q", value)[0])


def method_name(pamqp_name: str) -> str:
    """`basic.get-ok` for pamqp's `Basic.GetOk`."""
    class_name, _, method = pamqp_name.partition(".")
    return f"{class_name.lower()}.{re.sub(r'(?<!^)(?=[A-Z])', '-', method).lower()}"


ALL_METHODS: dict[int, Any] = dict(commands.INDEX_MAPPING)
METHODS = {index: method_name(method.name) for index, method in ALL_METHODS.items()}


def frames(path: Path | str, port_hint: int | None = None) -> list[Row]:
    """The AMQP 0-9-1 frames of a capture.

    Args:
        path: a pcap or pcapng file, or a folder of the files of one rotated capture.
        port_hint: the server's port, for connections whose beginning was not seen.

    Returns:
        One dict per frame, connection by connection, by `frame_no` (from 0). Besides columns of the contract:
        `connection` (client, server, nth), `client`, `server`, `nth`; `args`, a dict of the method's arguments
        (secrets and reserved fields are not there), of `body_size`, `properties` and `headers` (header frames), or
        of `body`; `gap_before` (bytes missing just before it in its direction); and of its connection
        `begun_ts_ns`, `last_ts_ns`, `fin_ts_ns` (first FIN or RST, or None), `ended` (sides that
        send no more), `lacks_tail` (sides of which bytes are missing behind the last frame) and `rtt_ns` (or None).
    """
    exact = {"timestamp": _seconds}
    with (
        mock.patch.dict(decode.METHODS, exact),
        mock.patch.dict(decode.TABLE_MAPPING, {b"T": _seconds}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DeprecationWarning)  # of methods that are met all the same
        return [row for connection in read_connections(path, port_hint) for row in _frames_of(connection)]


def _frames_of(connection: Connection) -> list[Row]:
    rows: list[Row] = [
        {"from_client": from_client, "position": at} | row
        for from_client, stream in connection.streams.items()
        for at, row in _walk(stream, connection.synced)
    ]
    if not connection.synced and any(r["method"] in SENT_BY_SERVER and r["from_client"] for r in rows):
        connection.turn_round()
        for row in rows:
            row["from_client"] = not row["from_client"]
    # the bytes of one packet all go one way, so place and position put both directions in one order
    rows.sort(key=lambda row: (row["place"], row["position"]))
    read = {
        side: max((r["position"] + r["size"] for r in rows if r["from_client"] == side), default=0)
        for side in (True, False)
    }
    lacking = {side for side, stream in connection.streams.items() if 0 in stream.arrived[read[side] :]}
    epochs: dict[int, int] = {}
    finished = []
    for frame_no, row in enumerate(rows):
        if row.pop("ends_wrong"):
            continue
        channel = row["channel"]
        if row["method"] == "channel.open":
            epochs[channel] = epochs.get(channel, 0) + 1
        del row["position"]
        last, first = connection.packets[row.pop("place")], connection.packets[row.pop("first_place")]
        finished.append(
            {
                "connection": (connection.client, connection.server, connection.nth),
                "client": connection.client,
                "server": connection.server,
                "nth": connection.nth,
                "frame_no": frame_no,
                "capture": last.capture,
                "packet": last.number,
                "ts_ns": last.ts_ns,
                "first_capture": first.capture,
                "first_packet": first.number,
                "first_ts_ns": first.ts_ns,
                "channel_epoch": epochs.get(channel, 0),
                "begun_ts_ns": connection.first_ts_ns,
                "last_ts_ns": connection.last_ts_ns,
                "fin_ts_ns": connection.fin_ts_ns,
                "rtt_ns": connection.rtt_ns,
                "ended": connection.ended,
                "lacks_tail": lacking,
            }
            | row
        )
    return finished


def _walk(stream: Stream, synced: bool) -> list[tuple[int, Row]]:
    """The frames of one direction with their positions."""
    found = []
    data, arrived = bytes(stream.data), stream.arrived
    start = at = _proxy_header(data) if synced else 0
    latest = 0  # place of the packet after which everything up to here could be read
    gap = 0
    lost = not synced  # whether a frame boundary must be searched for
    while at < len(data):
        if lost or 0 in arrived[at : at + HEAD]:
            if synced and at == start:
                break  # nothing is known of what was sent first
            begin = _search(data, arrived, at)
            if begin is None:
                break
            gap += arrived[at:begin].count(0)
            at, lost, latest = begin, False, 0
        size = _size_at(data, at)
        if size is None and synced and at == start:
            break  # another protocol
        if size is not None and at + size > len(data):
            break  # cut off
        if size is None:
            lost, at = True, at + 1
            continue
        missing = arrived[at : at + size].count(0)
        latest = max(latest, *arrived[at : at + size])
        row = _decode(data[at : at + size], missing)
        lost = arrived[at + size - 1] > 0 and not _ends_well(data, at, size)
        row |= {"place": latest, "first_place": arrived[at], "gap_before": gap, "ends_wrong": lost}
        found.append((at, row))
        at += size
        gap = gap + missing if lost else 0
    return found


def _proxy_header(data: bytes) -> int:
    """Bytes of what a proxy put in front (PROXY protocol, version 1 or 2), 0 if there is nothing."""
    if data.startswith(PROXY_1):
        return data.find(b"\r\n") + 2 if b"\r\n" in data else len(data)
    if data.startswith(PROXY_2) and len(data) >= 16:
        return 16 + int.from_bytes(data[14:16], "big")
    return 0


def _size_at(data: bytes, at: int) -> int | None:
    """Bytes of the frame that would begin here, None if none can."""
    if data[at : at + 4] == b"AMQP":
        return 8
    if at + HEAD > len(data) or data[at] not in FRAME_TYPES:
        return None
    return HEAD + int(struct.unpack_from(">I", data, at + 3)[0]) + 1


def _ends_well(data: bytes, at: int, size: int) -> bool:
    return data[at : at + 4] == b"AMQP" or data[at + size - 1] == FRAME_END


def _search(data: bytes, arrived: list[int], at: int) -> int | None:
    """The first place from which a chain of whole frames leads on."""
    for begin in range(at, len(data)):
        end, count = begin, 0
        while end < len(data) and count < CHAIN:
            size = _size_at(data, end)
            if size is None or end + size > len(data) or 0 in arrived[end : end + size]:
                break
            if not _ends_well(data, end, size):
                break
            end, count = end + size, count + 1
        if count == CHAIN or (count and end == len(data)):
            return begin
    return None


def _decode(raw: bytes, missing: int) -> Row:
    """What a frame says, with what is missing of it as zeros."""
    row: Row = {"channel": 0, "frame_type": "protocol-header", "method": None, "size": len(raw)}
    row |= {"is_partial": missing > 0, "missing": missing, "args": {}}
    if raw[:4] == b"AMQP":
        return row
    kind, row["channel"] = struct.unpack_from(">BH", raw)
    row["frame_type"] = FRAME_TYPES[kind]
    payload = raw[HEAD:-1]
    if kind == 1 and len(payload) >= 4:
        index = struct.unpack_from(">I", payload)[0]
        row["method"] = METHODS.get(index, f"{index >> 16}.{index & 0xFFFF}")
    if kind == 3:
        row["args"] = {"body": payload}
    elif kind != 8 and payload and not missing:
        try:
            decoded: Any = pamqp_frame.unmarshal(raw)[2]
        except (exceptions.UnmarshalingException, ValueError, TypeError, struct.error, OverflowError):
            return row  # the row stays, without arguments
        if kind == 1:
            row["args"] = _named(dict(decoded))
        else:
            # pamqp fills in what is not there, so ask the property flags
            flags = struct.unpack_from(">H", payload, 12)[0]
            there = [name for name, flag in commands.Basic.Properties.flags.items() if flags & flag]
            properties = _named({name: decoded.properties[name] for name in there})
            row["args"] = {"body_size": decoded.body_size, "headers": properties.pop("headers", None)}
            row["args"]["properties"] = properties
    return row


def _named(values: Row) -> Row:
    named = {FINAL_DRAFT_NAMES.get(name, name): value for name, value in values.items()}
    return {name: value for name, value in named.items() if name not in RESERVED | SECRET}


def body_hash(body: bytes) -> int:
    """xxHash64 with seed 42 as a signed 64-bit number."""
    unsigned = xxhash.xxh64_intdigest(body, seed=42)
    return int(unsigned - 2**64 if unsigned >= 2**63 else unsigned)


def by_connection(rows: list[Row]) -> list[list[Row]]:
    """The frames of each connection."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault(row["connection"], []).append(row)
    return list(groups.values())


def place(row: Row) -> Row:
    """The columns that say to which connection and channel something belongs."""
    names = ("connection", "client", "server", "nth", "channel", "channel_epoch")
    return {name: row[name] for name in names}


def messages(rows: list[Row]) -> list[Row]:
    """The messages in `frames()` rows, by the `frame_no` of their last frames.

    A message that was not completed is `is_partial`; its `body_hash` is None and its `frame_no` that of the last
    frame it had. The hash of an empty body is that of no bytes. Besides columns of the contract: `method_ts_ns`
    (when the method frame was complete), `reply_code` of a return, and of the consume or get a delivery answers the
    `queue`, as it was given there, and `order_frame_no`. `cut_by` is None also where bytes may be missing.
    """
    return [message for group in by_connection(rows) for message in _messages_of(group)]


def _messages_of(group: list[Row]) -> list[Row]:
    found: list[Row] = []
    assembling: dict[tuple[int, bool], tuple[Row, bytearray]] = {}  # by channel and direction
    subscriptions = Subscriptions()
    unsure: set[int] = set()  # messages of which bytes may be missing
    publish_seq: dict[tuple[int, int], int] = {}  # next number by (channel, epoch), once confirm.select was seen
    for row in group:
        where = (row["channel"], row["from_client"])
        epoch = (row["channel"], row["channel_epoch"])
        args, kind = row["args"], CONTENT.get(row["method"])
        order = subscriptions.see(row)
        if row["method"] == "confirm.select" and row["from_client"]:
            publish_seq.setdefault(epoch, 1)
        if row["gap_before"] or row["is_partial"]:
            unsure |= {id(message) for (_, side), (message, _) in assembling.items() if side == row["from_client"]}
        if row["frame_type"] == "method" and where in assembling:
            message, _ = assembling.pop(where)  # another method ends it before its time
            if row["method"] == "channel.close" and id(message) not in unsure:
                message["cut_by"] = "sender"
        if kind:
            message = place(row) | {"kind": kind, "from_client": row["from_client"], "frame_no": row["frame_no"]}
            message |= {"first_frame_no": row["frame_no"], "method_ts_ns": row["ts_ns"]}
            message |= {name: row[name] for name in (*ENDS[1:], "first_capture", "first_packet", "first_ts_ns")}
            for name in ("exchange", "routing_key", "consumer_tag", "delivery_tag", "redelivered", "mandatory"):
                message[name] = args.get(name)
            message |= {name: order["args"][name] if order else None for name in ("no_ack", "queue")}
            message["order_frame_no"] = order["frame_no"] if order else None
            message |= {"reply_code": args.get("reply_code"), "publish_seq": None}
            if kind == "publish" and epoch in publish_seq:
                message["publish_seq"] = publish_seq[epoch]
                publish_seq[epoch] += 1
            message |= {"body_size": None, "body_hash": None, "is_partial": True, "properties": {}, "headers": None}
            message["cut_by"] = None
            if row["is_partial"]:
                unsure.add(id(message))
            found.append(message)
            assembling[where] = (message, bytearray())
        elif row["frame_type"] in ("header", "body") and where in assembling:
            message, body = assembling[where]
            announced = message["body_size"]
            if (row["frame_type"] == "header") != (announced is None):
                if row["frame_type"] == "header":  # a second one; a body without one is none
                    assembling.pop(where)
                continue
            message |= {name: row[name] for name in ENDS}
            if row["frame_type"] == "header":
                message |= {name: args.get(name) for name in ("body_size", "properties", "headers")}
            elif not row["is_partial"]:
                body += args["body"]
            if len(body) == message["body_size"]:
                message |= {"is_partial": False, "body_hash": body_hash(bytes(body))}
            if message["body_size"] is None or len(body) >= message["body_size"]:
                del assembling[where]
    for (_, side), (message, _) in assembling.items():
        if id(message) not in unsure and side not in group[0]["lacks_tail"]:
            message["cut_by"] = "sender" if side in group[0]["ended"] else "capture-end"
    return sorted(found, key=lambda message: message["frame_no"])


class Subscriptions:
    """The consumes and gets of one connection: what a delivery belongs to."""

    def __init__(self) -> None:
        self._consumers: dict[tuple[int, int, str], Row] = {}
        self._consuming: dict[tuple[int, int], list[Row]] = {}
        self._getting: dict[tuple[int, int], list[Row]] = {}

    def see(self, row: Row) -> Row | None:
        """Take note of a frame.

        Returns:
            The frame of the consume or get that a delivery answers, None if it was not seen.
        """
        epoch = (row["channel"], row["channel_epoch"])
        args, method = row["args"], row["method"]
        if method == "basic.consume" and args:
            if args["consumer_tag"]:
                self._consumers[*epoch, args["consumer_tag"]] = row
            if not args["no_wait"]:
                self._consuming.setdefault(epoch, []).append(row)
        elif method == "basic.consume-ok" and args and self._consuming.get(epoch):
            # a tag the server chose is known only now
            self._consumers[*epoch, args["consumer_tag"]] = self._consuming[epoch].pop(0)
        elif method == "basic.get" and args:
            self._getting.setdefault(epoch, []).append(row)
        elif method in ("basic.get-ok", "basic.get-empty") and self._getting.get(epoch):
            return self._getting[epoch].pop(0)
        elif method == "basic.deliver":
            return self._consumers.get((*epoch, args.get("consumer_tag", "")))
        return None
