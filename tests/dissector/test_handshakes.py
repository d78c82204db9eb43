"""Verdicts on handshakes: on what was recorded, by the books of those who did it, and on what was built."""

import json
import re
import string
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, frame

from amqpscope.dissector.capture.sources import Source, find
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.cli.verdict_rows import rows
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.handshakes import facts, ladder, listing, record
from amqpscope.dissector.handshakes.cache import BoundedCache
from amqpscope.dissector.handshakes.dialogue import run
from amqpscope.dissector.handshakes.inputs import Side, Tcp, gather
from amqpscope.dissector.handshakes.verdict import Judge
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.reading import Reading
from amqpscope.spec import handshakes, load
from tests.dissector import builders
from tests.dissector.amqp010 import wire as w010
from tests.dissector.builders import Packet, ethernet, ipv4, tcp
from tests.dissector.runs import dissect_packets, recorded
from tests.dissector.stream import wire as sw
from tests.dissector.wire import T0, Turn
from tests.thorough import examples

FOLDER = Path(__file__).parent.parent / "captures"
KNOWN = handshakes.load()
WORDS = {
    "credentials refused": "auth-failed",
    "closed without a reason after start-ok": "auth-failed-silent",
    "vhost not found": "vhost-not-found",
    "the client closed without sending anything": "probe",
    "the client closed without answering": "client-left-at-start",
    ("AMQP 1.0", "amqp"): "amqp-1-0-refused",
    ("AMQP 1.0 with SASL", "amqp"): "amqp-1-0-refused",
    ("AMQP 0-10", "amqp"): "amqp-0-10-refused",
    ("HTTP", "amqp"): "http-on-amqp-port",
    ("TLS", "amqp"): "tls-on-plain-port",
}
"""What the older goldens say in words, as codes."""
STAGES = {"start-ok": "start", "protocol header": None}
ENDINGS = {
    ("heartbeats", "keeps"): "closed",
    ("heartbeats", "silent"): "heartbeat-missed-by-client",
    ("violations", "content inside a content"): "unexpected-frame",
    ("violations", "body without a header"): "unexpected-frame",
    ("violations", "wrong frame end"): "frame-error",
    ("violations", "unknown frame type"): "frame-error",
    ("violations", "unknown method"): "server-gone",
    ("channel_flow_by_client", "client"): "protocol-error",
    ("failed_calls", "client"): "channel-error",
    ("begun_before", "producer"): "open",
    ("stream_errors", "unknown-command"): "stream-frame-refused",
    ("stream_errors", "unreadable"): "stream-frame-refused",
    ("stream_errors", "too-short"): "server-gone",
    ("stream_chunks", "reader"): "closed",
}
"""How connections ended that came up, by what their scenarios do."""


@cache
def verdicts(path: str) -> tuple[dict[str, Any], ...]:
    options = Options(handshakes=True)
    return tuple(rows(Reading(find([path]), options, compiled=False), options))


def golden(stem: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / f"{stem}.golden.json").read_text(encoding="utf-8"))
    return document


def of_client(stem: str, client: str) -> dict[str, Any]:
    (written,) = (row for row in golden(stem)["clients"] if row["client"] == client)
    names = ("client_ip", "client_port", "server_ip", "server_port")
    found = [
        row
        for row in verdicts(str(next(FOLDER.glob(f"{stem}.pcap*"))))
        if all(row[name] == written[name] for name in names) and row["handshake_outcome"] != "one-direction"
    ]
    assert len(found) == 1
    return found[0]


def reported() -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.golden.json")):
        stem = path.name.removesuffix(".golden.json")
        for row in golden(stem).get("handshakes", []):
            yield pytest.param(stem, row, id=f"{stem}-{row['client']}".replace(" ", "_"))


@pytest.mark.parametrize(("stem", "written"), list(reported()))
def test_the_verdict_is_what_was_done(stem: str, written: dict[str, Any]) -> None:
    row = of_client(stem, written["client"])
    cause = written["cause"]
    code = WORDS.get(cause) or WORDS.get((written["client"], "amqp")) or cause
    assert row["handshake_outcome"] == code
    stage = STAGES.get(written["stage"], written["stage"])
    assert stage in (None, row["handshake_stage"])
    assert row["reply_code"] == written.get("reply_code", row["reply_code"])
    if "ending" in written:
        assert row["ending"] == written["ending"]
    if "slow" in written:
        other = {"client": "server", "server": "client"}[written["slow"]]
        assert row[f"handshake_{written['slow']}_ns"] > 2_000_000_000 > row[f"handshake_{other}_ns"]
    codes = {note["code"] for note in json.loads(row["handshake_notes"] or "[]")}
    assert set(written.get("notes", ())) <= codes
    evidence = json.loads(row["handshake_evidence"])
    assert evidence
    assert all(row["first_packet"] <= place["packet"] for place in evidence)


@pytest.mark.parametrize(("stem", "client"), ENDINGS)
def test_the_ending_is_what_was_done(stem: str, client: str) -> None:
    row = of_client(stem, client)
    assert row["ending"] == ENDINGS[stem, client]
    assert row["handshake_outcome"] == ("begun-before" if stem == "begun_before" else "ok")


def test_no_recorded_connection_that_worked_is_called_a_failure() -> None:
    for path in sorted(FOLDER.glob("*.golden.json")):
        stem = path.name.removesuffix(".golden.json")
        if "handshakes" in golden(stem) or (FOLDER / stem).is_dir():
            continue
        for row in verdicts(str(next(FOLDER.glob(f"{stem}.pcap*")))):
            wanted = ("ok", "begun-before", "one-direction", "encrypted")
            assert row["handshake_outcome"] in wanted or stem.startswith("stream_"), (stem, row["handshake_cause"])


@pytest.mark.parametrize("stem", ["failed_handshakes", "thrown_out", "failed_calls", "wrong_ports", "begun_before"])
def test_leaving_the_rest_undecoded_changes_no_verdict(stem: str) -> None:
    path = str(FOLDER / f"{stem}.pcap")
    options = Options()
    assert tuple(rows(Reading(find([path]), options, compiled=False), options)) == verdicts(path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "stem", ["failed_handshakes", "logins", "wrong_ports", "demo", "lossy_link", "tls_failures", "stream_refusals"]
)
def test_a_verdict_known_from_another_connection_is_the_one_that_it_would_get(stem: str) -> None:
    paths = [str(FOLDER / f"{stem}.pcap")] * 2
    options = Options(handshakes=True)
    remembered, forgetful = (Reading(find(paths), options, compiled=False) for _ in range(2))
    judge = forgetful.dissector.connections.judge
    judge.alike, judge.verdicts = BoundedCache(room=0), BoundedCache(room=0)
    wanted = list(rows(forgetful, options))
    assert not judge.alike.items
    assert list(rows(remembered, options)) == wanted


SIDES = st.builds(
    Side,
    packets=st.integers(0, 2),
    syns=st.integers(0, 2),
    syn=st.none() | st.just(record.PacketRef(T0, 1, 0)),
    end=st.sampled_from(["", "fin", "rst"]),
    end_at=st.just(record.PacketRef(T0 + 5, 3, 0)),
    sent_ns=st.sampled_from([0, T0 + 4]),
    again=st.just(()),
)
TCPS = st.builds(
    Tcp,
    client=st.integers(0, 1),
    sides=st.tuples(SIDES, SIDES),
    begun=st.booleans(),
    ack=st.none(),
    until_ns=st.just(T0 + 9),
    lost=st.booleans(),
    protocol=st.sampled_from(["unknown", "amqp-0-9-1", "rabbitmq-stream"]),
    server=st.sampled_from([("10.0.0.2", 5672), ("::1", 5552), ("10.0.0.2", 80)]),
    is_broker=st.booleans(),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(TCPS, min_size=2, max_size=8))
def test_whatever_tcp_shows_no_verdict_comes_from_another_connection(shown: list[Tcp]) -> None:
    remembering = Judge(KNOWN, load())
    for one in shown:
        first = Judge(KNOWN, load())(record.ConnectionRecord(), one, ["a"])
        assert remembering(record.ConnectionRecord(), one, ["a"]) == first


def test_a_side_that_spoke_differs_from_one_that_did_not() -> None:
    def tcp(sent_ns: int) -> Tcp:
        at = record.PacketRef(T0, 1, 0)
        client, server = Side(0, 1, at, "", None, sent_ns), Side(0, 0, None, "", None, 0)
        return Tcp(0, (client, server), True, None, T0 + 10**12, False, "unknown", ("10.0.0.2", 5672))

    judge = Judge(KNOWN, load())
    found = [judge(record.ConnectionRecord(), tcp(sent_ns), ["a"])["handshake_outcome"] for sent_ns in (0, T0 + 4)]
    assert found == ["no-answer", "stalled"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stem", ["failed_handshakes", "thrown_out", "wrong_ports", "tls_failures", "stream_refusals"])
def test_verdicts_that_depend_on_times_are_remembered_as_the_rules_tell_times_apart(
    stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recording again and again, slower and faster: the verdict changes, and is that of a judge without memory."""
    packets, link = recorded(f"{stem}.pcap")
    again, at = [], T0
    for tenths in (10, 1, 2, 5, 11, 25, 9, 100, 1000):
        begin = packets[0].ts_ns
        again += [replace(packet, ts_ns=at + (packet.ts_ns - begin) * tenths // 10) for packet in packets]
        at = again[-1].ts_ns + 600_000_000_000
    found = dissect_packets(again, link)["connections"]
    monkeypatch.setattr(BoundedCache, "keep", lambda *_: None)
    assert dissect_packets(again, link)["connections"].equals(found)


def test_half_open_connections_are_judged_once_though_their_times_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    judged, judge = [], Judge._judge
    monkeypatch.setattr(Judge, "_judge", lambda *given: judged.append(1) or judge(*given))
    packets = [Packet(T0 + n * 30_000_000, ethernet(ipv4(tcp(b"", 1000 + n, 5672, n, flags=SYN)))) for n in range(300)]
    found = [row["handshake_outcome"] for row in dissect_packets(packets)["connections"].to_pylist()]
    assert found == ["no-answer"] * 270 + ["capture-end"] * 30
    assert len(judged) < 10


def test_memory_is_bounded() -> None:
    memory: BoundedCache[int, str] = BoundedCache(room=10_000)
    for n in range(1000):
        memory.keep(n, "x", 100)
        assert memory.get(n) == "x"
    memory.keep(1000, "long", 9_000)
    assert memory.get(1000) is None
    assert len(memory.items) < 40


# ---------------------------------------------------------------------------------------------------- built ones

SYN, SYN_ACK, ACK, FIN_ACK, RST, RST_ACK = 0x02, 0x12, 0x10, 0x11, 0x04, 0x14
HEADER = b"AMQP\x00\x00\x09\x01"
PREVIEW = b"AMQP\x01\x01\x63\x00"
CLIENT, SERVER = 0, 1


class Wire:
    """A capture of one connection, put together step by step; `at` is milliseconds."""

    def __init__(self, dport: int = 5672) -> None:
        self.packets: list[builders.Packet] = []
        self.dport = dport
        self.next = [1000, 9000]

    def send(self, side: int, at: float, payload: bytes = b"", flags: int = 0x18, keep: bool = True) -> "Wire":
        ports = (40000, self.dport) if side == CLIENT else (self.dport, 40000)
        hosts = ("10.0.0.1", "10.0.0.2") if side == CLIENT else ("10.0.0.2", "10.0.0.1")
        segment = builders.tcp(payload, *ports, seq=self.next[side], ack=self.next[1 - side], flags=flags)
        data = builders.ethernet(builders.ipv4(segment, *hosts))
        if keep:
            self.packets.append(builders.Packet(10**18 + int(at * 1e6), data))
        self.next[side] += len(payload) + (1 if flags & 3 else 0)
        return self

    def again(self, at: float) -> "Wire":
        """The last packet once more."""
        self.packets.append(builders.Packet(10**18 + int(at * 1e6), self.packets[-1].data))
        return self

    def shaken(self) -> "Wire":
        return self.send(CLIENT, 0, flags=SYN).send(SERVER, 1, flags=SYN_ACK).send(CLIENT, 2, flags=ACK)

    def verdict(self, tmp_path: Path, compiled: bool = False, **options: Any) -> dict[str, Any]:
        (row,) = self.verdicts(tmp_path, compiled, **options)
        return row

    def verdicts(self, tmp_path: Path, compiled: bool = False, **options: Any) -> list[dict[str, Any]]:
        path = tmp_path / "built.pcap"
        path.write_bytes(builders.pcap(self.packets))
        chosen = Options(handshakes=True, **options)
        source = Source(str(path), path.name, path.stat().st_size, str(path))
        return list(rows(Reading([source], chosen, compiled=compiled), chosen))


def method(command: Any, channel: int = 0) -> bytes:
    return frame.marshal(command, channel)


START = method(commands.Connection.Start(0, 9, {"product": "broker"}, "PLAIN", "en_US"))
START_OK = method(commands.Connection.StartOk({"product": "client"}, "PLAIN", "\0me\0secret", "en_US"))
TUNE = method(commands.Connection.Tune(2047, 131072, 60))
TUNE_OK = method(commands.Connection.TuneOk(2047, 131072, 60))
OPEN = method(commands.Connection.Open("/"))
OPEN_OK = method(commands.Connection.OpenOk())
CLOSE = method(commands.Connection.Close(200, "Goodbye", 0, 0))
CLOSE_OK = method(commands.Connection.CloseOk())
BLOCKED = method(commands.Connection.Blocked("low on memory"))


def up(wire: Wire) -> Wire:
    """From the header to open-ok."""
    turns = ((CLIENT, HEADER), (SERVER, START), (CLIENT, START_OK), (SERVER, TUNE), (CLIENT, TUNE_OK + OPEN))
    for at, (side, data) in enumerate((*turns, (SERVER, OPEN_OK)), 10):
        wire.send(side, at, data)
    return wire


def asked(built: Wire) -> Wire:
    """A stream client's handshake up to its login."""
    turns = (
        (CLIENT, sw.request(17, 1, sw.table({"product": "client"}))),
        (SERVER, sw.response(17, 1, 1, sw.table({"product": "broker"}))),
        (CLIENT, sw.request(18, 2)),
        (SERVER, sw.response(18, 2, 1, sw.strings(["PLAIN", "RABBIT-CR-DEMO"]))),
        (CLIENT, sw.request(19, 3, sw.string("RABBIT-CR-DEMO") + sw.binary(b"me"))),
    )
    for at, (side, data) in enumerate(turns, 10):
        built.send(side, at, data)
    return built


ALERT = bytes.fromhex("15030300020230")
HELLO = bytes.fromhex("160301002d010000290303") + b"\x07" * 32 + bytes.fromhex("000002c02f0100")
SERVER_HELLO = bytes.fromhex("160303002a020000260303") + b"\x07" * 32 + bytes.fromhex("00c02f00")
FINISHED = bytes.fromhex("1403030001011603030028") + b"\x07" * 40
HELLO_13 = (
    bytes.fromhex("1603010034010000300303")
    + b"\x07" * 32
    + bytes.fromhex("0000021301010000")
    + bytes.fromhex("05002b0003020304")
)  # it offers TLS 1.3 (RFC 8446 section 4.2.1)
SERVER_HELLO_13 = bytes.fromhex("16030300320200002e0303") + b"\x07" * 32 + bytes.fromhex("001301000006002b00020304")


def sealed(length: int) -> bytes:
    """A record of TLS 1.3 of which only the length shows (RFC 8446 section 5.2): 19 bytes are an alert."""
    return b"\x17\x03\x03" + length.to_bytes(2, "big") + b"\x07" * length


SASL_LAYER = (40).to_bytes(4, "big") + bytes(range(40))


def played(turns: Sequence[Turn]) -> Wire:
    """A connection in which this is sent."""
    wire = Wire().shaken()
    for at, (side, data) in enumerate(turns, 10):
        wire.send(side, at, data)
    return wire


def redirect(host: str) -> bytes:
    return b"".join(w010.operation("connection.redirect", 0, host=host))


BUILT = {
    "half-open": Wire().send(CLIENT, 0, flags=SYN).send(SERVER, 1, flags=SYN_ACK).again(1001).again(3001),
    "capture-end": Wire().send(CLIENT, 0, flags=SYN),
    "tls-alert": Wire(5671).shaken().send(CLIENT, 10, HELLO).send(SERVER, 11, ALERT).send(SERVER, 12, flags=FIN_ACK),
    "tls-client-left": Wire(5671).shaken().send(CLIENT, 10, HELLO).send(SERVER, 11, SERVER_HELLO)
    .send(CLIENT, 14, flags=FIN_ACK),
    "tls-refused": Wire(5671).shaken().send(CLIENT, 10, HELLO_13).send(SERVER, 11, SERVER_HELLO_13 + sealed(1000))
    .send(CLIENT, 12, sealed(53)).send(SERVER, 13, sealed(19)).send(SERVER, 14, flags=FIN_ACK),
    "encrypted": Wire(5671).shaken().send(CLIENT, 10, HELLO).send(SERVER, 11, SERVER_HELLO)
    .send(CLIENT, 12, FINISHED).send(SERVER, 13, FINISHED),
    "tls-unanswered": Wire(5671).shaken().send(CLIENT, 10, HELLO).send(SERVER, 12, flags=RST_ACK),
    "plain-on-tls-port": Wire(5671).shaken().send(CLIENT, 10, HEADER).send(SERVER, 12, flags=FIN_ACK),
    "amqp-on-stream-port": Wire(5552).shaken().send(CLIENT, 10, HEADER).send(SERVER, 12, flags=FIN_ACK),
    "version-refused": Wire().shaken().send(CLIENT, 10, b"AMQP\x01\x01\x08\x00").send(SERVER, 11, HEADER),
    "amqp-1-0": Wire().shaken().send(CLIENT, 10, b"AMQP\x03\x01\0\0").send(SERVER, 11, b"AMQP\x03\x01\0\0" + b"?" * 9),
    "preview-not-decoded": Wire().shaken().send(CLIENT, 10, PREVIEW).send(SERVER, 11, PREVIEW + b"?" * 9),
    "not-a-broker": Wire().shaken().send(SERVER, 10, b"SSH-2.0-OpenSSH_9.2\r\n").send(CLIENT, 11, HEADER),
    "not-amqp": Wire(80).shaken().send(CLIENT, 10, b"GET / HTTP/1.1\r\n\r\n").send(SERVER, 20, b"HTTP/1.1 200 OK\r\n"),
    "begun-before": Wire().send(CLIENT, 0, START_OK[20:]).send(SERVER, 1, flags=FIN_ACK),
    "client-gave-up": Wire().shaken().send(CLIENT, 10, HEADER).send(SERVER, 11, START).send(CLIENT, 12, START_OK)
    .send(SERVER, 13, TUNE).send(CLIENT, 20, flags=FIN_ACK),
    "closed-at-login": Wire().shaken().send(CLIENT, 10, HEADER).send(SERVER, 11, START).send(
        CLIENT, 12, method(commands.Connection.StartOk(
            {"capabilities": {"authentication_failure_close": True}}, "PLAIN", "\0me\0secret", "en_US")))
    .send(SERVER, 13, flags=FIN_ACK),
    "client-closed": Wire().shaken().send(CLIENT, 10, HEADER).send(SERVER, 11, START)
    .send(CLIENT, 12, method(commands.Connection.Close(541, "no mechanism that I know", 0, 0))),
    "login-refused": Wire().shaken().send(CLIENT, 10, HEADER).send(SERVER, 11, START).send(CLIENT, 12, START_OK)
    .send(SERVER, 13, method(commands.Connection.Close(541, "database away", 0, 0))),
    "tuning-refused": Wire().shaken().send(CLIENT, 10, HEADER).send(SERVER, 11, START).send(CLIENT, 12, START_OK)
    .send(SERVER, 13, TUNE).send(CLIENT, 14, TUNE_OK)
    .send(SERVER, 15, method(commands.Connection.Close(530, "I do not like that", 10, 31))),
    "open-refused": Wire().shaken().send(CLIENT, 10, HEADER).send(SERVER, 11, START).send(CLIENT, 12, START_OK)
    .send(SERVER, 13, TUNE).send(CLIENT, 14, TUNE_OK + OPEN)
    .send(SERVER, 15, method(commands.Connection.Close(541, "out of order", 10, 40))),
    "gap": Wire().shaken().send(CLIENT, 10, HEADER).send(SERVER, 11, START, keep=False).send(CLIENT, 12, START_OK)
    .send(SERVER, 1500, TUNE[:9]).send(CLIENT, 1600, flags=FIN_ACK).send(SERVER, 1700, flags=FIN_ACK),
    "refused-by-code": asked(Wire(5552).shaken()).send(SERVER, 15, sw.response(19, 3, 15))
    .send(SERVER, 16, flags=FIN_ACK),
    "handshake-timeout": asked(Wire(5552).shaken()).send(SERVER, 15, sw.response(19, 3, 10, sw.string("who?")))
    .send(SERVER, 12_000, flags=FIN_ACK),
    "sasl-encrypted": played(w010.opening("DIGEST-MD5")).send(CLIENT, 20, SASL_LAYER).send(SERVER, 21, SASL_LAYER),
    "redirected": played(w010.opening()[:-1]).send(SERVER, 20, redirect("amqp:tcp:10.0.0.9:5672")),
    "http-on-amqp-port": Wire().shaken().send(CLIENT, 10, b"GET / HTTP/1.1\r\n\r\n").send(SERVER, 11, HEADER),
}  # fmt: skip


BUILT_ENDINGS = {
    "blocked": up(Wire().shaken()).send(SERVER, 30, BLOCKED),
    "closed-by-client": up(Wire().shaken())
    .send(CLIENT, 30, method(commands.Connection.Close(541, "my disk is full", 0, 0))),
    "client-gone": up(Wire().shaken()).send(CLIENT, 30, flags=RST),
    "closed-by-server": up(Wire().shaken()).send(SERVER, 30, method(commands.Connection.Close(311, "too large", 0, 0))),
    "channel-opened-twice": up(Wire().shaken())
    .send(SERVER, 30, method(commands.Connection.Close(504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10))),
    "close-in-gap": up(Wire().shaken()).send(CLIENT, 30, CLOSE, keep=False).send(SERVER, 31, CLOSE_OK)
    .send(CLIENT, 32, flags=FIN_ACK).send(SERVER, 33, flags=FIN_ACK),
    "end-in-gap": up(Wire().shaken()).send(CLIENT, 30, CLOSE[:20], keep=False).send(CLIENT, 31, CLOSE[20:])
    .send(CLIENT, 32, flags=FIN_ACK),
}  # fmt: skip
ELSEWHERE = {
    "refused", "one-direction", "tls-begun-before", "port-contradicted", "evicted", "ended-by-unknown", "path-lost",
    "path-lost-to-server", "path-lost-to-client", "client-silent", "server-silent",
}  # fmt: skip
"""Codes whose tests are functions of their own, here, in `tls`, or in other modules."""


@pytest.mark.parametrize("code", BUILT_ENDINGS)
def test_a_built_ending(code: str, tmp_path: Path) -> None:
    row = BUILT_ENDINGS[code].verdict(tmp_path)
    assert (row["handshake_outcome"], row["ending"]) == ("ok", code)


def up_to_open(protocol: str, acknowledged: bool) -> Wire:
    """A handshake of which nothing is left after connection.open, or its acknowledgement."""
    if protocol == "amqp-0-10":
        wire = played(w010.opening()[:-1])
    else:
        wire = Wire().shaken()
        for at, (side, data) in enumerate(TURNS, 10):
            wire.send(side, at, data)
    return wire.send(SERVER, 60, flags=ACK) if acknowledged else wire


def later(wire: Wire, seconds: int) -> Wire:
    """The capture goes on for this long with another connection."""
    other = builders.tcp(b"", 40001, 5672, seq=1, flags=SYN)
    wire.packets.append(builders.Packet(10**18 + seconds * 10**9, builders.ethernet(builders.ipv4(other))))
    return wire


@pytest.mark.parametrize("protocol", ["amqp-0-9-1", "amqp-0-10"])
def test_a_side_that_a_capture_lost_is_not_stalled(protocol: str, tmp_path: Path) -> None:
    """Machines acknowledge, or send again: without either the capture lacks packets, perhaps a redirection."""

    def outcome(wire: Wire, seconds: int) -> tuple[str, str]:
        row = next(row for row in later(wire, seconds).verdicts(tmp_path) if row["client_port"] == 40000)
        assert (row["handshake_server_ns"] is None) == (row["handshake_outcome"] == "gap")
        return row["handshake_outcome"], row["handshake_stage"]

    assert outcome(up_to_open(protocol, acknowledged=False), 20) == ("gap", "open")
    assert outcome(up_to_open(protocol, acknowledged=False), 4) == ("capture-end", "open")
    assert outcome(up_to_open(protocol, acknowledged=True), 20) == ("stalled", "open")
    tried = up_to_open(protocol, acknowledged=False).again(1020).again(3020).again(7020)
    assert outcome(tried, 14) == ("stalled", "open")  # the next one is due after 15 s
    tried = up_to_open(protocol, acknowledged=False).again(1020).again(3020).again(7020)
    assert outcome(tried, 40) == ("gap", "open")


REFUSAL = method(commands.Connection.Close(530, "NOT_ALLOWED - vhost nowhere not found", 10, 40))
STOP = method(commands.Connection.Close(320, "CONNECTION_FORCED - maintenance", 0, 0))
TURNS = [(CLIENT, HEADER), (SERVER, START), (CLIENT, START_OK), (SERVER, TUNE), (CLIENT, TUNE_OK), (CLIENT, OPEN)]
CHANNEL = method(commands.Channel.Open(), 1)
HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"
IN_PART = {
    "a close that names what it refuses": (5, [(SERVER, REFUSAL), (CLIENT, CLOSE_OK)], "vhost-not-found", "open"),
    "a close that does not": (5, [(SERVER, STOP), (CLIENT, CLOSE_OK)], "gap", "tune"),
    "a close of the client": (6, [(SERVER, OPEN_OK), (CLIENT, CLOSE), (SERVER, CLOSE_OK)], "gap", "open"),
    "a method on a channel": (6, [(SERVER, OPEN_OK), (CLIENT, CHANNEL), (SERVER, HEARTBEAT)], "ok", "ready"),
    "tune-ok after tune": (3, [(SERVER, REFUSAL)], "vhost-not-found", "open"),
}
"""Which step is missing, what follows the others, outcome and stage."""


@pytest.mark.parametrize("what", IN_PART)
def test_what_later_messages_prove_is_known(what: str, tmp_path: Path) -> None:
    missing, more, outcome, stage = IN_PART[what]
    wire = Wire().shaken()
    for n, (side, data) in enumerate([*TURNS, *more]):
        wire.send(side, 10 + n, data, keep=n != missing)
    for side in (CLIENT, SERVER):
        wire.send(side, 2000, HEARTBEAT)
    row = wire.verdict(tmp_path)
    assert (row["handshake_outcome"], row["handshake_stage"]) == (outcome, stage)


def test_every_code_has_a_connection_that_gets_it() -> None:
    rows = [row for path in FOLDER.glob("*.golden.json") for row in json.loads(path.read_text()).get("handshakes", ())]
    shown = {WORDS.get(row["cause"]) or WORDS.get((row["client"], "amqp")) or row["cause"] for row in rows}
    shown |= {row["ending"] for row in rows if "ending" in row} | set(ENDINGS.values())
    assert set(KNOWN.causes) - shown - set(BUILT) - set(BUILT_ENDINGS) <= ELSEWHERE


def test_no_limit_is_not_called_a_limit_of_nothing(tmp_path: Path) -> None:
    built = Wire().shaken().send(CLIENT, 10, HEADER).send(SERVER, 11, START).send(CLIENT, 12, START_OK)
    built.send(SERVER, 13, TUNE).send(CLIENT, 14, method(commands.Connection.TuneOk(0, 131072, 60)))
    row = built.send(SERVER, 15, flags=FIN_ACK).verdict(tmp_path)
    assert row["handshake_outcome"] == "channel-max-too-high"
    assert row["handshake_cause"] == "the client asks for any number of channels, the broker allows 2047"


def test_a_challenge_of_streams_is_answered(tmp_path: Path) -> None:
    built = asked(Wire(5552).shaken()).send(SERVER, 15, sw.response(19, 3, 10, sw.string("who?")))
    built.send(CLIENT, 16, sw.request(19, 4, sw.string("RABBIT-CR-DEMO") + sw.binary(b"My password is x")))
    built.send(SERVER, 17, sw.response(19, 4, 8)).send(SERVER, 18, flags=FIN_ACK)
    row = built.verdict(tmp_path)
    assert (row["handshake_outcome"], row["handshake_stage"]) == ("auth-failed", "secure")
    steps = [step["step"] for step in json.loads(row["handshake_steps"])]
    assert steps[-4:] == ["sasl-authenticate challenge", "sasl-authenticate", "sasl-authenticate refused", "tcp.fin"]
    assert "password" not in json.dumps(row)
    assert row["user"] is None


@pytest.mark.parametrize("code", BUILT)
def test_a_built_connection(code: str, tmp_path: Path) -> None:
    assert BUILT[code].verdict(tmp_path)["handshake_outcome"] == code


def talking(built: Wire, keep: bool = True) -> Wire:
    """TLS whose handshake is done, and what is sent in it long after, once with a record that was not captured."""
    built.send(SERVER, 13, FINISHED).send(CLIENT, 500, sealed(40)).send(SERVER, 600, sealed(300))
    return built.send(CLIENT, 700, sealed(80), keep=keep).send(CLIENT, 800, sealed(80)).send(SERVER, 900, sealed(70))


@pytest.mark.parametrize("keep", [True, False])
def test_tls_took_as_long_as_its_handshake_whatever_is_sent_in_it(keep: bool, tmp_path: Path) -> None:
    """What is missing after it changes nothing."""
    built = Wire(5671).shaken().send(CLIENT, 10, HELLO).send(SERVER, 11, SERVER_HELLO).send(CLIENT, 12, FINISHED)
    built = talking(built, keep).send(CLIENT, 1000, flags=FIN_ACK).send(SERVER, 1001, flags=FIN_ACK)
    row = built.verdict(tmp_path)
    assert (row["handshake_outcome"], row["handshake_stage"]) == ("encrypted", "tls")
    assert (row["handshake_ns"], row["handshake_client_ns"], row["handshake_server_ns"]) == (
        13_000_000,
        10_000_000,
        3_000_000,
    )
    assert (row["lost_bytes"] > 0) != keep


def test_a_gap_in_the_handshake_of_tls_leaves_it_unjudged(tmp_path: Path) -> None:
    built = Wire(5671).shaken().send(CLIENT, 10, HELLO).send(SERVER, 11, SERVER_HELLO, keep=False)
    assert talking(built).verdict(tmp_path)["handshake_outcome"] == "gap"


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_one_direction_alone_is_not_judged(side: int, tmp_path: Path) -> None:
    whole = up(Wire().shaken())
    port = (40000).to_bytes(2, "big")
    whole.packets = [p for p in whole.packets if (p.data[34:36] == port) == (side == CLIENT)]
    row = whole.verdict(tmp_path)
    assert (row["handshake_outcome"], row["ending"], row["severity"]) == ("one-direction", None, "note")


def test_a_capture_that_begins_anywhere_blames_nobody(tmp_path: Path) -> None:
    whole = up(Wire().shaken()).send(CLIENT, 30, flags=FIN_ACK).packets
    for begin in range(len(whole)):
        wire = Wire()
        wire.packets = whole[begin:]
        row = wire.verdict(tmp_path)
        assert row["handshake_outcome"] in ("ok", "begun-before", "one-direction"), begin


def test_a_capture_that_ends_anywhere_blames_nobody(tmp_path: Path) -> None:
    whole = up(Wire().shaken()).packets
    for end in range(1, len(whole)):
        wire = Wire()
        wire.packets = whole[:end]
        row = wire.verdict(tmp_path)
        assert row["handshake_outcome"] in ("capture-end", "one-direction"), (end, row["handshake_cause"])


def test_blocked_when_the_capture_ends(tmp_path: Path) -> None:
    row = up(Wire().shaken()).send(SERVER, 30, BLOCKED).verdict(tmp_path)
    assert (row["handshake_outcome"], row["ending"]) == ("ok", "blocked")
    assert "low on memory" in row["ending_cause"]


def test_another_port_is_a_brokers_when_the_user_says_so(tmp_path: Path) -> None:
    wire = Wire(1234).shaken().send(CLIENT, 3, flags=FIN_ACK)
    assert wire.verdict(tmp_path)["handshake_outcome"] == "not-amqp"
    assert wire.verdict(tmp_path, ports={1234: "amqp-0-9-1"})["handshake_outcome"] == "probe"


def test_where_tcp_failed_the_port_does_not_matter(tmp_path: Path) -> None:
    refused = Wire(1234).send(CLIENT, 0, flags=SYN).send(SERVER, 1, flags=RST_ACK)
    assert refused.verdict(tmp_path)["handshake_outcome"] == "refused"
    unheard = Wire(1234).send(CLIENT, 0, flags=SYN).again(1000).again(3000)
    assert unheard.verdict(tmp_path)["handshake_outcome"] == "no-answer"


@pytest.mark.parametrize("compiled", [False, True])
def test_what_was_sent_again_is_in_the_ladder(compiled: bool, tmp_path: Path) -> None:
    built = Wire().send(CLIENT, 0, flags=SYN).again(1000).send(SERVER, 1001, flags=SYN_ACK)
    built.send(CLIENT, 1002, flags=ACK).send(CLIENT, 1003, HEADER).again(1203).again(1603)
    for at, (side, data) in enumerate(((SERVER, START), (CLIENT, START_OK), (SERVER, TUNE)), 1700):
        built.send(side, at, data)
    row = built.again(1900).verdict(tmp_path, compiled)
    steps = [(s["step"], s["from_client"], s["packet"]) for s in json.loads(row["handshake_steps"])]
    assert steps == [
        ("tcp.syn", True, 1), ("tcp.again", True, 2), ("tcp.syn-ack", False, 3), ("tcp.ack", True, 4),
        ("header", True, 5), ("tcp.again", True, 6), ("tcp.again", True, 7), ("connection.start", False, 8),
        ("connection.start-ok", True, 9), ("connection.tune", False, 10), ("tcp.again", False, 11),
    ]  # fmt: skip
    notes = {note["code"]: note.get("detail") for note in json.loads(row["handshake_notes"])}
    assert notes["syn-repeated"] == "2 SYNs"
    again = [note for note in json.loads(row["handshake_notes"]) if note["code"] == "sent-again"]
    assert [note["detail"] for note in again] == ["the client, 3 times", "the server, 1 time"]
    assert "AGAIN" in "\n".join(ladder.lines(row, KNOWN))


def test_what_is_sent_again_later_is_no_part_of_the_handshake(tmp_path: Path) -> None:
    built = up(Wire().shaken()).send(CLIENT, 30, method(commands.Channel.Open(), 1)).again(300)
    row = built.verdict(tmp_path)
    assert row["handshake_stage"] == "ready"
    assert "tcp.again" not in row["handshake_steps"]


@pytest.mark.parametrize("size", [9, 18, 200])
def test_a_malformed_login_is_reported_without_its_texts(size: int, tmp_path: Path) -> None:
    broken = bytearray(START_OK)
    broken[broken.index(b"PLAIN") - 1] = size  # the mechanism's length; the password comes to lie in it
    built = Wire().shaken().send(CLIENT, 10, HEADER).send(SERVER, 11, START).send(CLIENT, 12, bytes(broken))
    row = built.send(SERVER, 13, flags=FIN_ACK).verdict(tmp_path)
    listed = listing.Listing(KNOWN)
    listed.add(row)
    document = json.dumps(listed.document([row]))
    assert "me" not in str(row["user"])
    for text in (document, repr(row), "\n".join(listed.lines()), "\n".join(ladder.lines(row, KNOWN))):
        assert "secre" not in text
    assert row["handshake_outcome"] != "no-common-mechanism"


@pytest.mark.parametrize("size", [9, 18, 23, 200])
@pytest.mark.parametrize("handshakes_only", [False, True])
def test_a_malformed_login_of_streams_is_reported_without_its_texts(
    size: int, handshakes_only: bool, tmp_path: Path
) -> None:
    login = sw.request(19, 3, struct.pack(">H", size) + b"PLAIN" + sw.binary(b"\0me\0secret") + b"\0" * 9)
    built = Wire(5552).shaken().send(CLIENT, 10, sw.request(17, 1, sw.table({}))).send(CLIENT, 11, login)
    built.send(SERVER, 13, flags=FIN_ACK).verdict(tmp_path)
    chosen = Options(handshakes=handshakes_only)
    found = [
        repr(batch.to_pylist()) for _, batch in Reading(find([str(tmp_path / "built.pcap")]), chosen, compiled=False)
    ]
    assert any("sasl-authenticate" in text for text in found)
    assert not any("secre" in text for text in found)


def test_methods_are_remembered_by_their_bytes_but_no_login(tmp_path: Path) -> None:
    built = up(Wire().shaken()).send(CLIENT, 30, method(commands.Connection.Close(200, "bye", 0, 0)))
    built.verdict(tmp_path)
    reading = Reading(find([str(tmp_path / "built.pcap")]), compiled=False)
    for _ in reading:
        pass
    methods = reading.dissector.stages[registry.number_of("amqp-0-9-1")].handshakes
    whole = (START, TUNE, TUNE_OK, OPEN, OPEN_OK, method(commands.Connection.Close(200, "bye", 0, 0)))
    assert set(methods.known.items) == {data[7:-1] for data in whole}
    assert "secret" not in repr((methods.known.items, methods.arguments.known.items))


def test_json_says_when_who_and_whose_time_it_was() -> None:
    listed = listing.Listing(KNOWN)
    found = verdicts(str(FOLDER / "handshake_timeouts.pcap"))
    for row in found:
        listed.add(row)
    document = listed.document(found)
    slow = next(row for row in document["connections"] if row["code"] == "client-timeout")
    assert slow["slow_side"] == "server"
    assert slow["client"] == f"{slow['client_ip']}:{slow['client_port']}"
    assert slow["first"].startswith("2026-") and slow["first"].endswith("Z")
    assert all(step["ts"][-10:-1] == f"{step['ts_ns'] % 10**9:09d}" for step in slow["handshake_steps"])
    assert document["groups"][0]["text"].startswith("2 connections from 127.0.0.1: the broker waited 10 s")


def test_repeated_requests_and_slow_steps_are_noted(tmp_path: Path) -> None:
    wire = Wire().send(CLIENT, 0, flags=SYN).again(1000).again(3000).send(SERVER, 3001, flags=SYN_ACK)
    wire.send(CLIENT, 3002, flags=ACK).send(CLIENT, 3003, HEADER).send(SERVER, 5003, START)
    row = wire.verdict(tmp_path)
    notes = {note["code"]: note["detail"] for note in json.loads(row["handshake_notes"])}
    assert notes["syn-repeated"] == "3 SYNs"
    assert "2 s" in notes["slow-step"]
    assert row["handshake_server_ns"] == 5_001_000_000
    assert row["handshake_client_ns"] == 2_000_000


# ------------------------------------------------------------------------------------------------------- printing


def test_a_listing_has_the_worst_first_and_explains_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handshakes", str(FOLDER / "failed_handshakes.pcap"), "--fail-on", "handshake"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("11 connections on 2026-11-21: 10 failed, 1 not judged.")
    assert out.index("vhost-not-found") < out.index("probe")
    assert "rabbitmqctl add_vhost nowhere" in out
    assert re.search(r"packets 33, 35 of failed_handshakes\.pcap", out)


def test_json_has_codes_and_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handshakes", str(FOLDER / "demo.pcap"), "--format", "json", "--fail-on", "handshake"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["code"] for row in document["connections"]} == {"closed"}
    assert sum(group["connections"] for group in document["groups"]) == len(document["connections"]) == 7
    assert all(row["handshake_steps"][0]["step"] == "tcp.syn" for row in document["connections"])


def test_a_ladder_shows_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    client = next(c for c in golden("refused_logins")["clients"] if c["client"] == "wrong answer to a challenge")
    path = str(FOLDER / "refused_logins.pcap")
    assert main(["handshakes", path, "--connection", f"127.0.0.1:{client['client_port']}"]) == 0
    out = capsys.readouterr().out
    steps = ["SYN", "SYN-ACK", "ACK", "header", "connection.start", "connection.start-ok", "connection.secure"]
    places = [out.index(f" {step} -") for step in [*steps, "connection.secure-ok", "connection.close"]]
    assert places == sorted(places)
    assert "My password" not in out
    assert main(["handshakes", path, "--connection", "1.2.3.4:5"]) == 2


def test_tables_say_the_same_as_captures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOLDER / "refused_opens.pcap")
    assert main(["dissect", path, "-o", str(tmp_path / "tables")]) == 0
    capsys.readouterr()
    printed = []
    for source in (path, str(tmp_path / "tables")):
        assert main(["handshakes", source, "--fail-on", "handshake"]) == 1
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_many_alike_are_one_line() -> None:
    row = of_client("failed_handshakes", "unknown vhost")
    made = listing.Listing(KNOWN)
    for n in range(412):
        made.add(row | {"client_port": 1024 + n, "first_ts_ns": row["first_ts_ns"] + n * 5_000_000_000})
    lines = list(made.lines())
    assert "412 x vhost-not-found" in lines[3]
    assert "every 5 s" in " ".join(lines[3:6])
    assert "(client ports 1024, 1025, 1026, 1027, 1028 and 407 more)" in " ".join(" ".join(lines[3:6]).split())
    assert made.failing("handshake", "error") == 412


def test_figures_that_are_not_those_of_all_are_called_so() -> None:
    row = of_client("failed_handshakes", "unknown vhost")
    for seconds, is_said in ((10, False), (11, True)):
        made = listing.Listing(KNOWN)
        made.add(row | {"handshake_cause": "waited 10 s for the client"})
        made.add(row | {"handshake_cause": f"waited {seconds} s for the client", "client_port": 1025})
        (group,) = made.document([])["groups"]
        assert ("(figures of the first)" in group["text"]) == is_said
        assert ("(figures of the first; client ports" in " ".join(" ".join(made.lines()).split())) == is_said


def test_connections_of_several_clients_are_named_by_address_and_port() -> None:
    row = of_client("failed_handshakes", "unknown vhost") | {"severity": "fine"}
    made = listing.Listing(KNOWN)
    for n in (1, 2):
        made.add(row | {"client_ip": f"fd00::{n}", "client_port": 1024 + n})
    assert "([fd00::1]:1025, [fd00::2]:1026)" in " ".join(" ".join(made.lines()).split())


def test_ladders_of_all_connections_of_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOLDER / "cut_handshakes.pcap")
    assert main(["handshakes", path, "--connection", "127.0.0.3"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if line.endswith("no-answer") and ">" in line]
    assert len(heads) == 2 and all("127.0.0.3:5672" in line for line in heads)


def test_text_from_the_wire_cannot_steer_the_terminal() -> None:
    row = of_client("failed_handshakes", "unknown vhost")
    evil = json.dumps({"vhost": "\x1b[2J\n"})
    bad = row | {"handshake_cause": "unknown vhost \x1b[2J\n", "handshake_facts": evil, "client_properties": evil}
    made = listing.Listing(KNOWN)
    made.add(bad)
    for line in [*made.lines(), *ladder.lines(bad, KNOWN)]:
        assert line.isprintable(), line


# ---------------------------------------------------------------------------------------------------------- the data


def test_the_machine_is_sound() -> None:
    for machine in KNOWN.machines.values():
        reached = {machine.start}
        for _ in machine.states:
            reached |= {after for (before, _, _), after in machine.transitions.items() if before in reached}
        assert reached == set(machine.states)
        assert all(before in machine.states for before, _, _ in machine.transitions)
        assert {state.stage for state in machine.states.values()} <= set(handshakes.STAGES)
        assert all(state.turn in ("client", "server", "") for state in machine.states.values())


def test_every_code_is_written_out_and_names_known_facts() -> None:
    side = Side(0, 0, None, "", None, 0)
    tcp = Tcp(0, (side, side), False, None, 0, False, "unknown", ("10.0.0.2", 5672))
    known = facts.case_of(gather(record.ConnectionRecord(), tcp, []), KNOWN, load()).facts(tcp, [])
    values = {**known, **known.timed(), "alert": None, "alert_meaning": None}
    assert set(known.timed()) == set(facts.TIMED)
    for rule in (*KNOWN.outcomes, *KNOWN.endings):
        assert set(rule.when) <= set(values), rule.cause.code
        assert rule.cause.severity in handshakes.SEVERITIES
        for text in (rule.cause.summary, rule.cause.meaning, rule.cause.remedy):
            assert {name for _, name, _, _ in string.Formatter().parse(text) if name} <= set(values), text


DIALOGUES = [name for name in KNOWN.machines if name != "tcp"]
EVENTS = [
    *sorted({event for machine in KNOWN.machines.values() for event in machine.events}),
    ("client", "connection.close"), ("server", "tcp.rst"),
]  # fmt: skip


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(EVENTS), max_size=30), st.booleans(), st.sampled_from(DIALOGUES))
def test_the_dialogue_takes_each_event_once_and_goes_only_ahead(
    events: list[tuple[str, str]], leap: bool, name: str
) -> None:
    machine = KNOWN.machines[name]
    ran = run(machine, events, leap)
    assert len(set(ran.taken)) == len(ran.taken)
    assert ran.state in machine.states
    for side in ("client", "server"):
        mine = [n for n in ran.taken if events[n][0] == side]
        assert leap or mine == sorted(mine)


@settings(max_examples=examples(100))
@given(st.binary(max_size=40))
def test_all_first_bytes_are_something(data: bytes) -> None:
    first = record.FirstBytes()
    for n in range(0, len(data), 7):
        first.add(data[n : n + 7], record.PacketRef(n, 1, 0))
    assert (first.opening() is None) == (not data)


@pytest.mark.parametrize("name", ["refused_logins", "refused_opens", "pika_confirms", "logins"])
def test_a_server_that_speaks_has_accepted_though_that_was_not_captured(name: str) -> None:
    packets, link = recorded(f"{name}.pcap")
    heard = [packet for packet in packets if packet.data[47] & 0x12 != 0x12]  # without SYN-ACKs
    assert len(heard) < len(packets)
    whole, found = (
        [(row["handshake_outcome"], row["handshake_stage"], row["ending"]) for row in rows_of(some, link)]
        for some in (packets, heard)
    )
    assert found == whole


def rows_of(packets: list[Packet], link: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = dissect_packets(packets, link)["connections"].sort_by("client_port").to_pylist()
    return made
