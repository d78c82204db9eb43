"""Who speaks what, who is the client, and what connections tell of themselves."""

from typing import Any

import pyarrow as pa
import pytest
from pamqp import commands

from amqpscope.dissector.dissector import Options
from amqpscope.dissector.handshakes.logins import user_name
from tests.dissector.amqp010 import wire as w010
from tests.dissector.builders import Packet
from tests.dissector.runs import FOLDER, Row, dissect, dissect_packets, rows
from tests.dissector.wire import CLIENT, HEADER, SERVER, SYN, Tape, Turn, handshake, method, opening, publish

BEGIN = handshake() + opening(1)
AMQP10 = b"AMQP\0\1\0\0"


def connection(packets: list[Packet], ports: dict[int, str] | None = None) -> Row:
    tables = dissect_packets(packets, options=Options(ports or {}), check=True)
    (row,) = rows(tables["connections"])
    assert row["frames"] == sum(tables[name].num_rows for name in tables if name.endswith("_frames"))
    return row


def play(*turns: Turn, port: int = 40000, server_port: int = 5672) -> list[Packet]:
    return Tape(port=port, server_port=server_port).play(turns).packets


@pytest.mark.parametrize("port", [5672, 25999, 80, 5552, 50000])
def test_content_tells_the_protocol_on_any_port(port: int) -> None:
    row = connection(play(*BEGIN, server_port=port))
    assert (row["protocol"], row["server_port"], row["frames"]) == ("amqp-0-9-1", port, 9)
    row = connection(play(*BEGIN, server_port=port)[3:])
    assert (row["protocol"], row["server_port"], row["frames"]) == ("amqp-0-9-1", port, 9)


@pytest.mark.parametrize(
    ("first", "protocol"),
    [
        (HEADER, "amqp-0-9-1"),
        (b"AMQP\1\1\0\x09", "amqp-0-9-1"),
        (b"AMQP\1\1\x08\0", "amqp-0-9-1"),
        (b"AMQP\1\1\0\x0a", "amqp-0-10"),
        (AMQP10, "amqp-1.0"),
        (b"AMQP\3\1\0\0", "amqp-1.0"),
        (b"\x16\3\1\2\0\1\0\1\xfc\3\3", "tls"),
        (b"GET / HTTP/1.1\r\n\r\n", "unknown"),
        (b"\xff" * 20, "unknown"),
        (b"A", "unknown"),
        (b"", "unknown"),
    ],
)
def test_first_bytes_tell_the_protocol(first: bytes, protocol: str) -> None:
    """In one chunk or byte by byte."""
    assert connection(play((CLIENT, first)))["protocol"] == protocol
    tape = Tape()
    tape.send(CLIENT, first, range(len(first)))
    assert connection(tape.packets)["protocol"] == protocol


def test_frames_in_a_file_that_is_fetched_are_none() -> None:
    capture = b"".join(data for _, data in BEGIN) + b"".join(publish()) * 10
    fetched = play((CLIENT, b"GET /a.pcap HTTP/1.1\r\n\r\n"), (SERVER, b"HTTP/1.1 200 OK\r\n\r\n"), (SERVER, capture))
    row = connection(fetched)
    assert (row["protocol"], row["frames"]) == ("unknown", 0)


@pytest.mark.parametrize("lost", [[4], [4, 5], [4, 5, 6, 7, 8], [5, 6]])
def test_a_connection_whose_beginning_was_lost_behind_its_syn_is_judged_by_its_frames(lost: list[int]) -> None:
    """What comes behind the gap is not what the connection begins with."""
    packets = play(*BEGIN, (CLIENT, b"".join(publish())), (SERVER, method(commands.Basic.Ack(delivery_tag=1))))
    whole = dissect_packets(packets)["amqp091_frames"]
    row = connection([packet for n, packet in enumerate(packets, 1) if n not in lost])
    assert (row["protocol"], row["client_port"]) == ("amqp-0-9-1", 40000)
    assert row["frames"] == sum(frame["packet"] not in lost for frame in rows(whole))


def test_a_file_that_is_fetched_has_no_frames_where_the_request_was_lost() -> None:
    capture = b"".join(data for _, data in BEGIN) + b"".join(publish()) * 10
    turns = [(CLIENT, b"GET /a"), (SERVER, b"HTTP/1.1 200 OK\r\n\r\n"), (SERVER, capture), (CLIENT, b"GET /b")]
    packets = play(*turns)
    row = connection([*packets[:3], *packets[4:]])
    assert (row["protocol"], row["frames"]) == ("unknown", 0)


def test_tls_is_recognised_where_its_client_hello_was_lost() -> None:
    hello = b"\x16\3\3\0\x2e\2\0\0\x2a\3\3" + bytes(40)
    packets = play((CLIENT, b"\x16\3\1\0\5\1\0\0\1\0"), (SERVER, hello), (CLIENT, b"\x14\3\3\0\1\1"))
    assert connection([*packets[:3], *packets[4:]])["protocol"] == "tls"


PROXIES = {
    "line": b"PROXY TCP4 10.0.0.9 10.0.0.2 4000 5672\r\n",
    "unknown": b"PROXY UNKNOWN\r\n",
    "head": b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\0\0\x09\x0a\0\0\x02\x0f\xa0\x16\x28",
    "local": b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
}


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("ports", [{}, {5672: "amqp-0-9-1"}])
def test_a_proxys_header_is_skipped_exactly(proxy: str, ports: dict[int, str]) -> None:
    """In one segment with what is after it, in one of its own, byte by byte."""
    first = PROXIES[proxy] + HEADER
    rest = [*BEGIN[1:], (CLIENT, b"".join(publish()))]
    expected = connection(play(*BEGIN, rest[-1]), ports)
    for cuts in ([], [len(first) - 8], [3], range(len(first))):
        tape = Tape()
        tape.send(CLIENT, first, cuts)
        row = connection(tape.play(rest).packets, ports)
        reported = ("protocol", "frames", "skipped_bytes", "handshake_stage")
        assert [row[name] for name in reported] == [expected[name] for name in reported]


def test_a_proxys_header_alone_is_nobodys() -> None:
    for proxy in PROXIES.values():
        assert connection(play((CLIENT, proxy)))["protocol"] == "unknown"
        assert connection(play((CLIENT, proxy[:-1]), (CLIENT, b"?" * 40)))["frames"] == 0


def test_a_port_that_was_named_is_believed() -> None:
    assert connection(play(*BEGIN), {5672: "unknown"})["frames"] == 0
    assert connection(play(*BEGIN), {5672: "tls"})["protocol"] == "tls"
    assert connection(play((CLIENT, b"\xff" * 20)), {5672: "amqp-0-9-1"})["protocol"] == "amqp-0-9-1"
    assert connection(play(*BEGIN, port=5672, server_port=40000), {40000: "amqp-0-9-1"})["server_port"] == 40000


def test_methods_rather_than_ports_show_who_is_the_client() -> None:
    packets = play(*BEGIN, (CLIENT, b"".join(publish())), port=5672, server_port=40000)
    assert connection(packets)["client_port"] == 5672
    assert connection(packets[3:])["client_port"] == 5672  # its header
    assert connection(packets[4:])["client_port"] == 5672  # connection.start


@pytest.mark.parametrize(
    ("header", "protocol", "frames"),
    [(HEADER, "amqp-0-9-1", 1), (w010.HEADER, "amqp-0-10", 1), (AMQP10, "amqp-1.0", 0)],
)
def test_the_header_of_a_broker_whose_client_was_not_captured_tells_the_protocol(
    header: bytes, protocol: str, frames: int
) -> None:
    """A broker that refuses a client says no more than its header."""
    _, syn_ack, _, sent, _, fin, _ = Tape().play([(SERVER, header)]).end().packets
    row = connection([syn_ack, sent, fin])
    assert (row["protocol"], row["client_port"], row["frames"]) == (protocol, 40000, frames)


# what is not read is reported


def whole_connections(tables: dict[str, pa.Table]) -> dict[str, list[int]]:
    """Anomalies that stand for a connection, by code: the first packets of these."""
    found: dict[str, list[int]] = {"version-mismatch": [], "stream-unrecognised": []}
    for row in sorted(rows(tables["anomalies"]), key=lambda row: row["packet"]):
        if row["code"] in found:
            assert row["packet"] == row["first_packet"]
            assert row["frame_no"] is row["channel"] is row["offset"] is None
            found[row["code"]].append(row["packet"])
    return found


@pytest.mark.parametrize(
    ("name", "mismatches", "unrecognised"),
    [
        ("wrong_ports.pcap", [17, 25], [33, 41]),  # headers of 0-10 and of no version; MQTT and random bytes
        ("failed_handshakes.pcap", [38, 47, 55], [63]),  # two of 1.0 and one of 0-10; HTTP
        ("orders_pika.pcap", [], []),
        ("amqp10_handshakes.pcap", [], []),
    ],
)
def test_connections_that_are_not_read_are_anomalies(name: str, mismatches: list[int], unrecognised: list[int]) -> None:
    """Those of which the recording's clients tell; one that sent nothing is none."""
    tables = dissect(FOLDER / name, check=True)
    assert whole_connections(tables) == {"version-mismatch": mismatches, "stream-unrecognised": unrecognised}


def test_anomalies_of_connections_say_what_was_there() -> None:
    turns = (CLIENT, b"AMQP\x01\x01\x07\x07"), (SERVER, HEADER)
    tape = Tape().play(turns).end()
    tape.port = 40001
    tape.next = [1001, 2001]
    tape.segment(CLIENT, seq=1000, flags=SYN, ack=0)
    tape.play([(CLIENT, b"EHLO here\r\n" * 2)])
    tables = dissect_packets(tape.packets, check=True)
    by_port = {row["client_port"]: row["connection_id"] for row in rows(tables["connections"])}
    reported = {
        row["connection_id"]: (row["code"], row["severity"], row["detail"]) for row in rows(tables["anomalies"])
    }
    code, severity, detail = reported.pop(by_port[40000])
    assert (code, severity) == ("version-mismatch", "error")
    assert "version" in detail
    assert reported == {by_port[40001]: ("stream-unrecognised", "note", "22 bytes")}


# logins


def amqplain(*entries: tuple[str, bytes]) -> str:
    """A login table as the plan hands it over: bytes that are no UTF-8 replaced."""
    data = b"".join(
        bytes([len(name)]) + name.encode() + b"S" + len(value).to_bytes(4, "big") + value for name, value in entries
    )
    return data.decode(errors="replace")


@pytest.mark.parametrize("name", ["guest", "grün", "é" * 60, "x" * 127])
def test_the_name_in_amqplain_never_runs_into_the_password(name: str) -> None:
    login, password = ("LOGIN", name.encode()), ("PASSWORD", b"s3cret")
    assert user_name("AMQPLAIN", amqplain(login, password)) == name
    assert user_name("AMQPLAIN", amqplain(password, login)) == name


def test_a_name_whose_length_is_no_text_is_not_guessed() -> None:
    assert user_name("AMQPLAIN", amqplain(("LOGIN", b"x" * 200), ("PASSWORD", b"s3cret"))) is None


def test_names_of_other_mechanisms() -> None:
    assert user_name("PLAIN", "\0me\0s3cret") == "me"
    assert user_name("PLAIN", "me s3cret") is None
    assert user_name("PLAIN", "\0me\0s3\0cret") is None
    assert user_name("RABBIT-CR-DEMO", "me") == "me"
    assert user_name("EXTERNAL", "whatever") is None
    assert user_name(None, "whatever") is None


DIGEST = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("mechanism", "answer", "user"),
    [
        ("CRAM-MD5", f"me and you {DIGEST}", "me and you"),
        ("CRAM-MD5", f"me {DIGEST}0", None),
        ("CRAM-MD5", "me s3cret", None),
        ("CRAM-MD5", f"m\0e {DIGEST}", None),
        ("DIGEST-MD5", f'charset=utf-8,username="me",realm="r",response={DIGEST}', "me"),
        ("DIGEST-MD5", f'username="m\\"e",response={DIGEST}', None),
        ("RABBIT-CR-DEMO", f"My password is {DIGEST}", None),
        ("PLAIN", f"me {DIGEST}", None),
    ],
)
def test_names_in_answers_to_challenges(mechanism: str, answer: str, user: str | None) -> None:
    """Answers of mechanisms that are not known may hold the password anywhere."""
    properties: Any = {}
    sent = [
        (SERVER, commands.Connection.Start(server_properties=properties, mechanisms=mechanism, locales="en_US")),
        (CLIENT, commands.Connection.StartOk(client_properties=properties, mechanism=mechanism, response="")),
        (SERVER, commands.Connection.Secure(challenge="c")),
        (CLIENT, commands.Connection.SecureOk(response=answer)),
    ]
    old = [(CLIENT, HEADER), *((side, method(command, 0)) for side, command in sent)]
    new = [
        *w010.opening()[:3],
        (CLIENT, b"".join(w010.operation("connection.start-ok", 0, mechanism=mechanism))),
        (SERVER, b"".join(w010.operation("connection.secure", 0, challenge=b"c"))),
        (CLIENT, b"".join(w010.operation("connection.secure-ok", 0, response=answer.encode()))),
    ]
    for turns in (old, new):
        [connection] = rows(dissect_packets(Tape().play(turns).end().packets)["connections"])
        assert (connection["user"], connection["mechanism"]) == (user, mechanism)
