"""What TLS holds has the rows that it has in plain text: every cipher, any segmentation, gaps, late secrets."""

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.dissector import Dissector, Options
from tests.dissector import runs
from tests.dissector.builders import Packet, enhanced, interface, pcap, secrets, section
from tests.dissector.comparing import TIMED, exact
from tests.dissector.runs import FOLDER, Row, rows, tables
from tests.dissector.stream import wire
from tests.dissector.tls.sessions import AGREED, SESSION, in_clear, inside, records
from tests.dissector.tls.tunnel import KINDS, Tunnel, sealed, written
from tests.dissector.wire import CLIENT, SERVER, STEP, T0, Tape, Turn, cut, publish
from tests.thorough import examples

BATCHES = (1, 64, 1000, 1 << 20)
pytestmark = pytest.mark.compiled
dissect, dissect_packets = partial(runs.dissect, compiled=True), partial(runs.dissect_packets, compiled=True)


def in_tls(version: str, suites: str, port: int = 5671) -> tuple[Tape, Options]:
    opening, turns, keylog = sealed(version, suites, SESSION)
    return Tape(server_port=port).play(opening).play(turns).end(), Options(keylog=written(keylog))


@pytest.mark.parametrize(("version", "suites"), KINDS)
def test_a_session_in_tls_has_the_rows_that_it_has_in_clear(version: str, suites: str) -> None:
    tape, options = in_tls(version, suites)
    found = dissect_packets(tape.packets, check=True, options=options)
    assert inside(found) == in_clear()
    (row,) = rows(found["connections"])
    assert (row["protocol"], row["tls_version"], row["tls_decrypted"]) == ("amqp-0-9-1", f"TLS {version}", True)
    assert row["tls_sni"] == "broker.example" and row["tls_certificate"].startswith("broker, broker.example, by broker")


@pytest.mark.parametrize(("version", "suites"), KINDS)
def test_without_secrets_it_is_tls(version: str, suites: str) -> None:
    tape, _ = in_tls(version, suites)
    found = dissect_packets(tape.packets, check=True)
    (row,) = rows(found["connections"])
    assert (row["protocol"], row["tls_decrypted"], row["handshake_outcome"]) == ("tls", False, "encrypted")
    assert not any(found[name].num_rows for name in ("amqp091_frames", "messages", "anomalies"))


@pytest.mark.parametrize("port", [5671, 1234, 443])
def test_on_any_port_by_content(port: int) -> None:
    tape, options = in_tls("1.3", "", port)
    assert inside(dissect_packets(tape.packets, options=options)) == in_clear()
    ports = {port: "amqp-0-9-1"}  # a port's protocol is that of what TLS holds
    assert inside(dissect_packets(tape.packets, options=Options(ports, keylog=options.keylog))) == in_clear()
    ports = {port: "tls"}
    assert inside(dissect_packets(tape.packets, options=Options(ports, keylog=options.keylog))) == in_clear()


def test_the_server_may_want_another_hello() -> None:
    tunnel = Tunnel("1.3", "", curve="secp521r1")  # of which clients send no key of their own accord
    tape = Tape(server_port=5671).play(list(tunnel.opening))
    tape.play([(side, tunnel.send(side, raw)) for side, raw in SESSION])
    found = dissect_packets(tape.end().packets, options=Options(keylog=written(tunnel.keylog)))
    assert inside(found) == in_clear()
    assert "tls.retry" in rows(found["connections"])[0]["handshake_steps"]


def test_after_the_line_of_a_proxy() -> None:
    opening, turns, keylog = sealed("1.3", "", SESSION)
    line = (CLIENT, b"PROXY TCP4 10.1.2.3 10.4.5.6 40000 5671\r\n")
    for begin in ([line, *opening], [(CLIENT, line[1] + opening[0][1]), *opening[1:]]):
        tape = Tape(server_port=5671).play(begin).play(turns).end()
        found = dissect_packets(tape.packets, options=Options(keylog=written(keylog)))
        assert inside(found)["frames"] == in_clear()["frames"]


def test_streams_in_tls() -> None:
    talk = [*wire.hello(), (True, wire.publish(1, [(n, wire.simple(b"%d" % n * 50)) for n in range(20)]))]
    talk += [(False, wire.confirm(1, list(range(20)))), (True, wire.HEARTBEAT)]
    turns = tuple((CLIENT if from_client else SERVER, raw) for from_client, raw in talk)
    opening, sealed_turns, keylog = sealed("1.3", "", turns)
    options = Options(keylog=written(keylog))
    found = dissect_packets(Tape(server_port=5551).play(opening).play(sealed_turns).end().packets, options=options)
    expected = dissect_packets(Tape(server_port=5552).play(turns).end().packets)
    for name in ("stream_frames", "messages"):
        ours, theirs = (rows(tables[name], "connection_id", *TIMED) for tables in (found, expected))
        assert ours == theirs and ours
    assert found["connections"].select(AGREED).to_pylist() == expected["connections"].select(AGREED).to_pylist()


@pytest.mark.parametrize(
    "name", ["tls_sessions.pcap", "tls_sessions_13.pcap", "tls_failures.pcap", "tls_secrets.pcapng"]
)
def test_batches_and_compilation_change_nothing_in_recordings(name: str) -> None:
    expected = exact(dissect(FOLDER / name))
    for compiled, batch_bytes in ((False, 64), (False, 3000), (True, 1000)):
        assert exact(dissect(FOLDER / name, compiled=compiled, batch_bytes=batch_bytes)) == expected


# ---------------------------------------------------------------------------------------------- what was recorded


def by_client(name: str) -> dict[int, dict[str, list[Row]]]:
    found = dissect(FOLDER / name)
    ports = {row["connection_id"]: row["client_port"] for row in found["connections"].to_pylist()}
    return {
        port: inside({
            table: found[table].filter(pa.compute.equal(found[table]["connection_id"], identity)) for table in found
            if table != "captures"
        })
        for identity, port in ports.items()
    }  # fmt: skip


@pytest.mark.parametrize("name", ["tls_sessions.pcap", "tls_sessions_13.pcap"])
def test_recorded_sessions_are_alike_in_clear_and_in_every_kind_of_tls(name: str) -> None:
    plain, *others = by_client(name).values()
    assert len(plain["frames"]) == 40 and len(plain["messages"]) == 6
    others = [other for other in others if len(other["frames"]) == 40]  # not the one that OpenSSL's tool made
    assert len(others) == (8 if name == "tls_sessions.pcap" else 4)
    for other in others:
        assert other == plain


def test_a_change_of_keys_is_followed() -> None:
    found = dissect(FOLDER / "tls_sessions_13.pcap")
    (row,) = (row for row in rows(found["connections"]) if "openssl" in (row["client_properties"] or ""))
    frames = [r["method"] for r in rows(found["amqp091_frames"]) if r["connection_id"] == row["connection_id"]]
    assert frames.count("basic.publish") == frames.count("basic.ack") == 3 and frames[-1] == "connection.close-ok"


def test_secrets_in_the_capture_are_used() -> None:
    found = dissect(FOLDER / "tls_secrets.pcapng")
    (row,) = rows(found["connections"])
    assert (row["protocol"], row["frames"], row["handshake_outcome"], row["tls_decrypted"]) == (
        "amqp-0-9-1", 40, "ok", True,
    )  # fmt: skip


def test_resumed_sessions_are_known_as_such() -> None:
    for name, count in (("tls_sessions.pcap", 1), ("tls_sessions_13.pcap", 1)):
        found = rows(dissect(FOLDER / name)["connections"])
        resumed = [row for row in found if row["tls_resumed"]]
        assert len(resumed) == count and not any(row["tls_certificate"] for row in resumed)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[0] != "1.3"])
def test_a_resumed_session_is_opened_by_the_secret_of_an_earlier_one(kind: tuple[str, str], lost: bool) -> None:
    """Some libraries write no line to the key log for it. The end of the server's handshake may be lost."""
    earlier = Tunnel(*kind)
    opening = len(earlier.keylog)
    tunnel = Tunnel(*kind, earlier=earlier)
    tape = Tape(server_port=5671)
    for side, raw in tunnel.opening[:]:
        tape.send(side, raw, [len(raw) - 9] if side == SERVER else [])
    if lost:
        del tape.packets[5]
    for side, raw in SESSION:
        tape.send(side, tunnel.send(side, raw))
    keylog = Tunnel(*kind).keylog + earlier.keylog[:opening] + Tunnel(*kind).keylog
    found = dissect_packets(tape.end().packets, options=Options(keylog=written(keylog)), check=True)
    assert rows(found["connections"])[0]["tls_resumed"]
    methods = [sorted(row["method"] or "" for row in each["frames"]) for each in (inside(found), in_clear())]
    assert methods[0] == methods[1]


# ------------------------------------------------------------------------------------- segmentation, batches, order


@settings(max_examples=examples(10))
@given(kind=st.sampled_from(KINDS), data=st.data(), batch_bytes=st.sampled_from(BATCHES))
def test_segmentation_and_batches_do_not_change_rows(
    kind: tuple[str, str], data: st.DataObject, batch_bytes: int
) -> None:
    opening, turns, keylog = sealed(*kind, SESSION)
    tape = Tape(server_port=5671)
    for side, raw in opening + turns:
        tape.send(side, raw, data.draw(st.lists(st.integers(1, len(raw)), max_size=4)))
    options = Options(keylog=written(keylog))
    assert inside(dissect_packets(tape.end().packets, batch_bytes=batch_bytes, options=options)) == in_clear()


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_bytes_one_by_one(version: str) -> None:
    opening, turns, keylog = sealed(*next(kind for kind in KINDS if kind[0] == version), SESSION[:9])
    tape = Tape(server_port=5671)
    for side, raw in opening + turns:
        tape.send(side, raw, range(len(raw)))
    whole = Tape(server_port=5671).play(opening).play(turns)
    options = Options(keylog=written(keylog))
    found, expected = (inside(dissect_packets(t.packets, options=options)) for t in (tape, whole))
    assert found == expected and found["frames"]


def test_packet_and_time_are_those_of_the_records_last_byte() -> None:
    opening, turns, keylog = sealed("1.3", "", SESSION)
    tape = Tape(server_port=5671).play(opening)
    before = len(tape.packets)
    tape.send(*turns[0], [3, 10])  # the header in three packets
    frames = rows(dissect_packets(tape.packets, options=Options(keylog=written(keylog)))["amqp091_frames"])
    assert [(row["first_packet"], row["packet"]) for row in frames] == [(before + 1, before + 3)]
    assert frames[0]["ts_ns"] == tape.packets[before + 2].ts_ns


# ----------------------------------------------------------------------------------------------------------- gaps


def long_session() -> list[Turn]:
    """Many records, some of a body that takes several, some of several frames."""
    turns = list(SESSION)
    for number in range(12):
        turns.append((CLIENT, b"".join(publish(b"%d" % number * 900, largest=300))))
        turns.append((SERVER, SESSION[9][1]))
    turns.append((CLIENT, b"".join(publish(b"long" * 20_000, largest=60_000))))  # of several records
    return [*turns, *turns[-3:], *turns[-4:-1]]


LONG = tuple(long_session())


RECORD = 1 << 14
"""Bytes that OpenSSL puts in a record at most."""
EXACT = [kind for kind in KINDS if not kind[1].endswith(("-SHA", "AES128-SHA256", "AES256-SHA384")) or "GCM" in kind[1]]
"""With CBC the length of what was lost is not known exactly."""


@settings(max_examples=examples(10))
@given(kind=st.sampled_from(EXACT), data=st.data())
def test_a_gap_costs_the_records_in_it_and_no_more(kind: tuple[str, str], data: st.DataObject) -> None:
    """The same rows as of plain text in which the same records are missing."""
    opening, turns, keylog = sealed(*kind, LONG)
    tape, plain = Tape(server_port=5671).play(opening), Tape()
    lost, gone = set(), set()
    for number, ((side, raw), (_, sealed_bytes)) in enumerate(zip(LONG, turns, strict=True)):
        for at, record in enumerate(records(sealed_bytes)):
            begin = len(tape.packets)
            tape.send(side, record, data.draw(st.lists(st.integers(1, len(record)), max_size=3)) if number > 20 else [])
            # of the first ones the handshake is made, and of the last ones nothing would show that they are missing
            if 20 < number < len(LONG) - 2 and data.draw(st.integers(0, 2)) == 0:
                lost.add(data.draw(st.integers(begin, len(tape.packets) - 1)))
                gone.add(len(plain.packets))
            plain.send(side, raw[at * RECORD : (at + 1) * RECORD])
    kept = [p for i, p in enumerate(tape.end().packets) if i not in lost]
    expected = [p for i, p in enumerate(plain.end().packets) if i not in gone]
    found = dissect_packets(kept, options=Options(keylog=written(keylog)), check=True), dissect_packets(expected)
    left_out = ("connection_id", "frame_no", "first_frame_no", *TIMED)  # what is missing shows earlier or later
    for name in ("amqp091_frames", "messages"):
        ours, theirs = (sorted(rows(tables[name], *left_out), key=str) for tables in found)
        assert ours == theirs


@settings(max_examples=examples(10))
@given(kind=st.sampled_from(KINDS), data=st.data())
def test_lost_packets_invent_nothing_in_any_batches(kind: tuple[str, str], data: st.DataObject) -> None:
    tape, options = in_tls(*kind)
    lost = data.draw(st.sets(st.integers(0, len(tape.packets) - 1), max_size=6))
    kept = [packet for i, packet in enumerate(tape.packets) if i not in lost]
    expected = exact(dissect_packets(kept, options=options))
    assert exact(dissect_packets(kept, options=options, batch_bytes=data.draw(st.sampled_from(BATCHES)))) == expected
    names = ("from_client", "frame_type", "method", "channel", "size")
    there = [tuple(row[name] for name in names) for row in in_clear()["frames"]]
    for row in expected["amqp091_frames"]:
        if not row["is_partial"]:
            assert tuple(row[name] for name in names) in there


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_ends_of_the_handshake_may_be_lost(kind: tuple[str, str], whole: bool) -> None:
    """The packets with them, or no more than their last bytes."""
    for side in (CLIENT, SERVER):
        tunnel = Tunnel(*kind)
        tape, lost = Tape(server_port=5671), 0
        last = max(n for n, turn in enumerate(tunnel.opening) if turn[0] == side)
        for number, (by, raw) in enumerate(tunnel.opening[:]):
            tape.send(by, raw, [len(raw) - 9] if number == last and not whole else [])
            lost = len(tape.packets) - 1 if number == last else lost
        for by, raw in SESSION:
            tape.send(by, tunnel.send(by, raw))
        del tape.packets[lost]
        found = dissect_packets(tape.end().packets, options=Options(keylog=written(tunnel.keylog)), check=True)
        methods = [sorted(row["method"] or "" for row in each["frames"]) for each in (inside(found), in_clear())]
        assert methods[0] == methods[1], side


@pytest.mark.parametrize("count", [1, 7, 400])
def test_record_numbers_are_found_again_after_many_lost_records(count: int) -> None:
    for kind in (KINDS[0], KINDS[2], KINDS[5], KINDS[-1]):
        tunnel = Tunnel(*kind)
        tape = Tape(server_port=5671).play(tunnel.opening)
        for turn in SESSION:
            tape.send(turn[0], tunnel.send(*turn))
        begin = len(tape.packets)
        for number in range(count):
            tape.send(CLIENT, tunnel.send(CLIENT, b"".join(publish(b"%d" % number))))
        end = len(tape.packets)
        tape.send(CLIENT, tunnel.send(CLIENT, b"".join(publish(b"behind", message_id="behind"))))
        kept = tape.packets[:begin] + tape.packets[end:]
        found = dissect_packets(kept, options=Options(keylog=written(tunnel.keylog)))
        assert "behind" in [row["message_id"] for row in rows(found["messages"])], kind


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[-1]])
def test_begun_in_the_middle_it_is_tls_and_nothing_else(kind: tuple[str, str]) -> None:
    """Whichever record is the first; without the client's hello, which names its secrets, none can be opened."""
    tape, options = in_tls(*kind)
    for begin in range(4, len(tape.packets) - 3, 3):
        for how in (options, Options()):
            found = dissect_packets(tape.packets[begin:], options=how, check=True)
            (row,) = rows(found["connections"])
            assert (row["protocol"], row["frames"], row["client_port"]) == ("tls", 0, 40000), begin
            assert row["handshake_outcome"] == "tls-begun-before" and not found["anomalies"].num_rows, begin


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[-1]])
def test_a_client_hello_is_beginning_enough(kind: tuple[str, str]) -> None:
    tape, options = in_tls(*kind)
    expected = in_clear()["connections"][0]
    (row,) = inside(dissect_packets(tape.packets[3:], options=options, check=True))["connections"]
    assert row == expected
    (row,) = rows(dissect_packets(tape.packets[3:], check=True)["connections"])
    assert (row["handshake_stage"], row["handshake_outcome"], row["handshake_ns"] is None) == (
        "tls",
        "encrypted",
        False,
    )


def test_the_servers_hello_may_be_missing_in_tls_1_3() -> None:
    tape, options = in_tls("1.3", "")
    hello = next(i for i, p in enumerate(tape.packets) if b"\x16\x03\x03" in p.data and i > 3)
    kept = tape.packets[:hello] + tape.packets[hello + 1 :]
    found = dissect_packets(kept, options=options)
    bodies = [sorted(row["body_hash"] for row in rows) for rows in (inside(found)["messages"], in_clear()["messages"])]
    assert bodies[0] == bodies[1]  # in another order: what is missing shows late


# ---------------------------------------------------------------------------------------------------- late secrets


class Late:
    """A dissector to which packets are given one by one, and a key log that grows."""

    def __init__(self) -> None:
        self.path = written(b"")
        self.dissector = Dissector(Options(keylog=self.path), compiled=False)
        self.dissector.captures.append("memory.pcap")
        self.found: list[Any] = []

    def take(self, packets: list[Packet]) -> None:
        for batch in CaptureFile(io.BytesIO(pcap(packets, ns=True)), "memory.pcap", 0, compiled=False):
            self.found += self.dissector.feed(batch)

    def add(self, raw: bytes) -> None:
        with Path(self.path).open("ab") as file:
            file.write(raw)

    def end(self) -> dict[str, pa.Table]:
        self.found += self.dissector.finish()
        return tables(self.found)


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.7, 1.0])
def test_a_key_log_may_be_written_late_and_in_parts(version: str, place: float) -> None:
    opening, turns, keylog = sealed(*next(kind for kind in KINDS if kind[0] == version), SESSION)
    packets = Tape(server_port=5671).play(opening).play(turns).end().packets
    late = Late()
    parts = cut(keylog, [len(keylog) // 3, len(keylog) // 2])
    begin = int(place * (len(packets) - len(parts)))
    for number, packet in enumerate(packets):
        if begin <= number < begin + len(parts):
            late.add(parts[number - begin])
        late.take([packet])
    expected = dissect_packets(packets, options=Options(keylog=late.path))
    left_out = ("packet", "first_packet", "last_packet", "handshake_steps", "handshake_evidence")
    assert inside(late.end(), *left_out) == inside(expected, *left_out)


def test_rows_come_as_soon_as_the_secrets_are_there() -> None:
    opening, turns, keylog = sealed("1.3", "", SESSION)
    packets = Tape(server_port=5671).play(opening).play(turns).packets
    late = Late()
    late.take(packets[:-1])
    assert not late.found
    late.add(keylog)
    late.take(packets[-1:])
    assert any(name == "amqp091_frames" for name, _ in late.found)


def test_the_content_may_be_read_before_the_server_sends_its_first_bytes() -> None:
    """Packets of the server that come late: its hello is no beginning of what TLS holds, whatever the batches."""
    tape, options = in_tls(*KINDS[-1])
    client = [packet for packet in tape.packets[3:] if packet.data[34:36] == (40000).to_bytes(2, "big")]
    server = [packet for packet in tape.packets[3:] if packet.data[34:36] != (40000).to_bytes(2, "big")]
    packets = [*tape.packets[:3], *client[:-1], *server]
    packets = [Packet(T0 + n * STEP, packet.data) for n, packet in enumerate(packets)]
    expected = dissect_packets(packets, options=options)
    found = dissect_packets(packets, options=options, batch_bytes=64)
    assert found["connections"].to_pylist() == expected["connections"].to_pylist()


def pcapng(parts: Sequence[Packet | bytes]) -> bytes:
    """Packets, and key logs between them."""
    blocks = [secrets(part) if isinstance(part, bytes) else enhanced(part, part.ts_ns // 1000) for part in parts]
    return section() + interface() + b"".join(blocks)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[-1]])
@pytest.mark.parametrize("overlapping", [False, True])
def test_records_wait_from_the_first_key_log_on_in_any_batches(
    kind: tuple[str, str], overlapping: bool, tmp_path: Path
) -> None:
    """Those before it are sealed for good. One capture may hold the secrets of what another saw."""
    opening, turns, keylog = sealed(*kind, SESSION)
    packets = Tape(server_port=5671).play(opening).play(turns).end().packets
    others = [Packet(packet.ts_ns + STEP // 2, packet.data) for packet in Tape(port=40_001).play(SESSION).packets]
    names = [tmp_path / name for name in ("one.pcapng", "two.pcapng")]
    names[0].write_bytes(pcapng(packets))
    for first, last in ((3, 4), (9, 20), (12, len(packets) - 5)):
        holder: list[Packet | bytes] = [*(others if overlapping else packets)]
        holder[last:last] = [keylog]
        holder[first:first] = [b"CLIENT_RANDOM " + b"00" * 32 + b" " + b"11" * 48]
        names[overlapping].write_bytes(pcapng(holder))
        found = [dissect(*names[: 1 + overlapping], batch_bytes=size) for size in (300, 1 << 20)]
        assert exact(found[0]) == exact(found[1])
        if (kind, first) == (KINDS[0], 9):
            frames = [row["packet"] for row in rows(found[0]["amqp091_frames"]) if row["capture"] == "one.pcapng"]
            assert (min(frames), max(frames)) == (11, len(packets) - 3)


def test_no_secret_shows() -> None:
    _, options = in_tls("1.3", "")
    dissector = Dissector(options, compiled=False)
    reported = repr(dissector.tls.keylog) + repr(vars(dissector.tls))
    for line in Path(options.keylog or "").read_text().splitlines():
        assert line.split()[-1] not in reported
