"""Who is the client: by what was seen of a connection, and by ports only where nothing else tells."""

from pathlib import Path
from typing import Any

import pytest

from amqpscope.dissector.cli.program import main
from amqpscope.dissector.dissector import Options
from tests.dissector.builders import Packet, ethernet, ipv4, pcap, tcp
from tests.dissector.runs import FOLDER, dissect, dissect_packets, rows
from tests.dissector.wire import CLIENT, Tape

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
