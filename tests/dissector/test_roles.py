"""Who is the client: by what was seen of a connection, and by ports only where nothing else tells."""

import functools
import json
from pathlib import Path
from typing import Any

import dpkt
import pyarrow as pa
import pytest
from pamqp import commands

from amqpscope import spec
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.dissector import Options
from tests.dissector.builders import Packet, ethernet, ipv4, pcap, tcp
from tests.dissector.moves import Relay, by_connection
from tests.dissector.runs import FOLDER, dissect, dissect_packets, recorded, rows, tables
from tests.dissector.wire import CLIENT, HEADER, SERVER, Tape, method, publish, raw

REFUSAL = b"AMQP\0\0\x09\x01"
ACK, SYN_ACK, RST = 16, 18, 20


def connection(*segments: tuple[int, int, int, bytes], **options: Any) -> dict[str, Any]:
    """The row of a connection of these segments: source port, destination port, flags, payload."""
    following = dict.fromkeys(segments[0][:2], 1000)
    hosts = dict(zip(segments[0][:2], ("10.0.0.1", "10.0.0.2"), strict=True))
    packets = []
    for number, (source, target, flags, payload) in enumerate(segments):
        data = tcp(payload, source, target, seq=following[source], ack=following[target], flags=flags)
        following[source] += len(payload) + (flags & 2 > 0)
        packets.append(Packet(10**18 + number, ethernet(ipv4(data, hosts[source], hosts[target]))))
    (row,) = rows(dissect_packets(packets, options=Options(**options))["connections"])
    return row


@pytest.mark.parametrize(
    "segments",
    [
        [(4567, 5672, ACK, b"")],
        [(5672, 4567, RST, b"")],
        [(5672, 4567, ACK, b"\x17\x00")],
        [(4567, 5672, ACK, b"GET / HTTP/1.1"), (5672, 4567, ACK, REFUSAL)],
        [(4567, 5672, ACK, b"AMQP\0\1\0\0"), (5672, 4567, ACK, REFUSAL)],
        [(5552, 1024, ACK, b"")],
        [(5672, 4567, ACK, b"AMQP\3\1\0\0")],
        [(5672, 4567, ACK, b"AMQP\0\1\0\0"), (4567, 5672, ACK, b"\0\0\0\x08\2\0\0\0")],
    ],
)
def test_a_brokers_port_is_the_servers_also_where_it_is_the_higher_one(segments: list[Any]) -> None:
    row = connection(*segments)
    assert row["server_port"] in (5672, 5552) and row["client_port"] in (4567, 1024)


def test_a_port_that_the_user_names_is_a_brokers() -> None:
    silent = (3000, 4000, ACK, b"")
    assert connection(silent)["server_port"] == 3000
    assert connection(silent, ports={4000: "amqp-0-9-1"})["server_port"] == 4000


def test_who_answers_a_syn_is_the_server_whatever_it_says() -> None:
    """A broker that refuses a client sends a header; that does not make it the client."""
    row = connection((30000, 40000, SYN_ACK, b""), (30000, 40000, ACK, REFUSAL), (30000, 40000, RST, b""))
    assert (row["client_port"], row["server_port"]) == (40000, 30000)


def test_a_header_tells_who_is_the_client_where_nothing_else_does() -> None:
    assert connection((30000, 40000, ACK, REFUSAL))["client_port"] == 30000
    assert connection((40000, 30000, ACK, REFUSAL))["client_port"] == 40000


@pytest.mark.parametrize(
    ("segments", "server"),
    [
        # the header of a broker, whose client's was not captured, is answered by a frame
        ([(30000, b"AMQP\1\1\0\x0a"), (40000, b"\x0f\0\0\x0e\0\0\0\0\0\0\0\0\1\7")], 30000),
        ([(30000, b"AMQP\3\1\0\0"), (40000, b"\0\0\0\x10\2\1\0\0\0\x53\x41\xc0\3\1\x40\x40")], 30000),
        # that of a client is answered by a header
        ([(30000, b"AMQP\3\1\0\0"), (40000, b"AMQP\3\1\0\0")], 40000),
        ([(40000, b"AMQP\3\1\0\0"), (30000, b"AMQP\0\1\0\0")], 30000),
        ([(30000, b"AMQP\3\1\0\0")], 40000),
    ],
)
def test_what_answers_a_header_tells_whose_it_is(segments: list[tuple[int, bytes]], server: int) -> None:
    row = connection(*((port, 70000 - port, ACK, data) for port, data in segments))
    assert (row["server_port"], row["roles_by"]) == (server, "content")


def tls_record(kind: int, message: bytes) -> bytes:
    body = bytes([kind]) + len(message).to_bytes(3) + message
    return b"\x16\x03\x03" + len(body).to_bytes(2) + body


@pytest.mark.parametrize(
    ("record", "client"),
    [
        (tls_record(16, b"the premaster secret"), 40000),
        (tls_record(12, b"a curve and a key"), 30000),
        (tls_record(14, b""), 30000),
        (tls_record(11, b"anybody's certificate"), None),
        (b"\x16\x03\x03\0\x28" + bytes(40), None),  # encrypted, after a number
        (b"\x16\x03\x03\0\x28" + b"\x10\x80" * 20, None),
    ],
)
def test_a_tls_message_tells_who_is_the_client(record: bytes, client: int | None) -> None:
    row = connection((40000, 30000, ACK, record))
    assert row["protocol"] == "tls"
    assert row["roles_by"] == ("content" if client else "lower-port")
    assert client in (None, row["client_port"])


# --------------------------------------------------------------------- captures that begin in the middle of connections

ACKED, BEAT = method(commands.Basic.Ack(delivery_tag=1)), raw(8, 0, b"")
CLIENTS_PORT, SERVERS_PORT = 50000, 62000


@functools.cache
def moved(name: str) -> list[Packet]:
    """The packets of a recording's first connection; its server has the higher port here, and no known one."""
    packets, ports = [], {}
    for packet in recorded(f"{name}.pcap")[0]:
        frame = dpkt.ethernet.Ethernet(packet.data)
        segment = frame.data.data
        if not ports:
            ports = {segment.sport: CLIENTS_PORT, segment.dport: SERVERS_PORT}
        if ports.keys() == {segment.sport, segment.dport}:
            segment.sport, segment.dport = ports[segment.sport], ports[segment.dport]
            packets.append(Packet(packet.ts_ns, bytes(frame)))
    return packets


@functools.cache
def senders(protocol: str) -> dict[str, bool]:
    """Whether the client sends a method or command that only one side sends."""
    return {m.full_name: m.from_client for m in spec.load(protocol).methods if m.from_client != m.from_server}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "protocol", "table", "column"),
    [
        ("unknown_tag", "amqp-0-9-1", "amqp091_frames", "method"),
        ("heartbeats", "amqp-0-9-1", "amqp091_frames", "method"),
        ("qpid_heartbeat", "amqp-0-10", "amqp010_frames", "method"),
        ("qpid_props", "amqp-0-10", "amqp010_frames", "method"),
        ("stream_calls", "rabbitmq-stream", "stream_frames", "command"),
    ],
)
def test_a_frame_that_only_one_side_sends_decides(name: str, protocol: str, table: str, column: str) -> None:
    """Wherever the capture begins, and however many frames of both sides come before."""
    sent, decided = senders(protocol), []
    packets = moved(name)
    for begin in range(3, len(packets), 2):
        tables = dissect_packets(packets[begin:])
        (row,) = rows(tables["connections"])
        shown = [
            frame["from_client"] ^ frame.get("is_response", False) == sent[frame[column]]
            for frame in rows(tables[table])
            if frame[column] in sent
        ]
        assert all(shown), begin
        assert row["server_port"] == SERVERS_PORT or not shown, begin
        assert (row["roles_by"] == "content") == bool(shown), begin
        decided.append(bool(shown))
    assert any(decided)


def both_ways(count: int, step_s: int = 0) -> Tape:
    """What both sides may send, for some time, before anything else, as of a capture that begins in the middle."""
    tape = Tape(syn=False, port=CLIENTS_PORT, server_port=SERVERS_PORT)
    for number in range(count):
        tape.play([(SERVER, ACKED * 2), (CLIENT, BEAT + ACKED * 3)])
        tape.packets[-2:] = [Packet(p.ts_ns + number * step_s * 10**9, p.data) for p in tape.packets[-2:]]
    return tape


def from_client(tables: dict[str, pa.Table]) -> list[bool]:
    found: list[bool] = tables["amqp091_frames"]["from_client"].to_pylist()
    return found


def test_frames_wait_for_one_that_only_one_side_sends() -> None:
    early, late = both_ways(40), both_ways(40).play([(CLIENT, b"".join(publish()))])
    assert not from_client(dissect_packets(early.packets, ends=False))
    (row,) = rows(dissect_packets(early.packets)["connections"])
    assert (row["server_port"], row["roles_by"]) == (CLIENTS_PORT, "lower-port")
    assert {"code": "roles-unknown"} in json.loads(row["handshake_notes"])
    whole = dissect_packets(late.packets, ends=False)
    assert from_client(whole) == [False, False, True, True, True, True] * 40 + [True] * 3


@pytest.mark.parametrize("by_method", [False, True])
def test_nobody_is_said_to_have_ended_what_may_be_the_other_way_round(by_method: bool) -> None:
    tape = both_ways(3)
    if by_method:
        tape.send(CLIENT, method(commands.Connection.Close(541, "no", 0, 0), 0))
    (row,) = rows(dissect_packets(tape.end().packets)["connections"])
    assert (row["ending"], row["severity"]) == ("ended-by-unknown", "note")


def test_what_waits_moves_to_other_dissectors(tmp_path: Path) -> None:
    frames = both_ways(5).play([(CLIENT, b"".join(publish()))])
    header = Tape(syn=False, port=50001, server_port=SERVERS_PORT, start_ns=frames.start_ns + 1)
    header.play([(SERVER, b"AMQP\3\1\0\0"), *[(SERVER, bytes(9))] * 3, (CLIENT, bytes(9))])
    path = tmp_path / "middle.pcap"
    path.write_bytes(pcap(sorted(frames.packets + header.packets, key=lambda packet: packet.ts_ns), ns=True))
    whole = by_connection(dissect(path))
    assert {row["roles_by"] for row in whole["connections"]} == {"content"}
    moving = Relay(find([str(path)]), Options(), compiled=False, batch_bytes=100)
    assert by_connection(tables(moving)) == whole
    assert moving.borders > 3


def test_frames_wait_two_minutes_at_most() -> None:
    """Rows that were written are right about the side then, or the connection says that it is not known."""
    tape = both_ways(14, step_s=10)
    assert len(from_client(dissect_packets(tape.packets, ends=False))) >= 6 * 12
    (row,) = rows(dissect_packets(tape.play([(CLIENT, b"".join(publish()))]).packets)["connections"])
    assert (row["server_port"], row["roles_by"]) == (CLIENTS_PORT, "lower-port")


def test_a_brokers_port_is_enough_not_to_wait() -> None:
    tape = both_ways(40)
    named = Options(ports={SERVERS_PORT: "amqp-0-9-1"})
    tables = dissect_packets(tape.packets, ends=False, options=named)
    assert from_client(tables)[:3] == [False, False, True]
    (row,) = rows(dissect_packets(tape.packets, options=named)["connections"])
    assert (row["server_port"], row["roles_by"]) == (SERVERS_PORT, "port")


def test_a_guess_that_other_connections_refute_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two dissectors may have seen them."""
    path = tmp_path / "captures"
    path.mkdir()
    other = Tape(port=50001, server_port=SERVERS_PORT).play([(CLIENT, HEADER)]).end()
    (path / "guessed.pcap").write_bytes(pcap(both_ways(3).packets + other.packets, ns=True))
    dissected = ["dissect", "-o", str(tmp_path / "tables")]
    for words in (["handshakes"], [*dissected, "--jobs", "2"], [*dissected, "--follow", "--until-idle", "0"]):
        assert main([*words, str(path)]) == 0
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "wrong way round" in line]
        assert "a connection has client and server the wrong way round: its client 10.0.0.2:62000 is the server" in line
    option = ["--port", line.partition("--port ")[2].partition(" ")[0]]
    assert main(["handshakes", "--format", "json", str(path), *option]) == 0
    out, err = capsys.readouterr()
    assert "wrong way" not in err and "roles-unknown" not in out and f'"server_port":{CLIENTS_PORT}' not in out


# ------------------------------------------------------------------------------------ ports that contradict the content


@pytest.mark.parametrize(
    ("stem", "named", "found"),
    [
        ("pika_consume", "5672=rabbitmq-stream", "amqp-0-9-1"),
        ("pika_consume", "5672=tls", "amqp-0-9-1"),
        ("pika_consume", "5672=unknown", "amqp-0-9-1"),
        ("qpid_plain", "5672=amqp-0-9-1", "amqp-0-10"),
        ("amqp10_handshakes", "5672=amqp-0-9-1", "amqp-1.0"),
        ("stream_rstream", "5552=amqp-0-9-1", "rabbitmq-stream"),
    ],
)
def test_a_port_that_contradicts_the_content_is_reported(
    stem: str, named: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = FOLDER / f"{stem}.pcap"
    for command in ("frames", "handshakes"):
        assert main([command, str(path), "--port", named]) == 0
        assert f"--port names {named[5:]}, but " in capsys.readouterr().err
    connections = rows(dissect(path, options=Options({int(named[:4]): named[5:]}))["connections"])
    assert {row["handshake_outcome"] for row in connections} == {"port-contradicted"}
    assert {row["handshake_cause"].rpartition(" ")[2] for row in connections} == {found}


@pytest.mark.parametrize("named", ["5672=amqp-0-9-1", "1=unknown", "1=tls"])
def test_a_port_that_agrees_is_not(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["handshakes", str(FOLDER / "pika_consume.pcap"), "--port", named]) == 0
    assert "--port" not in "".join(capsys.readouterr())


# ------------------------------------------------------------------------------------- the same from every command


def test_all_commands_say_the_same_of_amqp_1_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOLDER / "amqp10_handshakes.pcap")
    reported = []
    tables = ["dissect", path, "-o", str(tmp_path)]
    for words in (["frames", path], tables, [*tables, "--jobs", "2"]):
        assert main(words) == 0
        reported.append(capsys.readouterr().err.splitlines()[-1])
    assert len(set(reported)) == 1 and reported[0].startswith("amqpscope: 6 connections of amqp-1.0: ")
    assert main(["handshakes", path]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("6 connections") and not err


def test_a_broker_that_says_nothing_was_not_seen_to_speak_another_version(tmp_path: Path) -> None:
    path = tmp_path / "silent.pcap"
    for header in (b"AMQP\1\1\0\x0a", b"AMQP\0\1\0\0", b"AMQP\3\1\0\0"):
        tape = Tape().play([(CLIENT, header)]).end()
        path.write_bytes(pcap(tape.packets))
        (row,) = rows(dissect(path)["connections"])
        assert "refused" not in row["handshake_outcome"], row["handshake_outcome"]
