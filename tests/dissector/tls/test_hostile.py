"""What hostile bytes may do to TLS: nothing. No crash, bounded memory and time, and no row that was not there."""

import random
import re
import struct
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.dissector.cli.program import main
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.tls import certificates, messages, opener
from amqpscope.dissector.tls.keylog import KeyLog
from amqpscope.dissector.tls.messages import MalformedError
from amqpscope.dissector.tls.records import HEAD, LONGEST, Record, Walk, boundary, is_followed
from amqpscope.dissector.tls.session import Session
from amqpscope.errors import installing
from tests.dissector.builders import Packet
from tests.dissector.comparing import exact
from tests.dissector.runs import FOLDER, dissect, dissect_packets, recorded, rows
from tests.dissector.tls.tunnel import NAME, Tunnel, certificate, sealed, written
from tests.dissector.wire import CLIENT, SERVER, Tape, session
from tests.thorough import examples

AT = (1, 0, 0)
SESSION = tuple(session())
RECORDED = ("tls_sessions.pcap", "tls_sessions_13.pcap", "tls_failures.pcap")


def record(kind: int, body: bytes, version: int = 0x0303) -> bytes:
    return struct.pack(">BHH", kind, version, len(body)) + body


def message(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "big") + body


# --------------------------------------------------------------------------------------------------------- the walk


def walked(data: bytes, places: list[int], gaps: set[int] = frozenset()) -> list[object]:  # type: ignore[assignment]
    walk = Walk(True, lambda o, length, gap: is_followed(o, length))
    found: list[object] = []
    edges = sorted({0, len(data), *(p for p in places if p < len(data))})
    for number, (begin, end) in enumerate(pairwise(edges)):
        chunk = None if number in gaps else data[begin:end]
        found += walk.feed(chunk, end - begin, (begin, 0, 0), (begin, 0, 0))
        assert len(walk.buffered) <= 2 * (HEAD + LONGEST) + end - begin and len(walk.marks) <= len(walk.buffered) + 1
    return found


@given(
    st.lists(st.tuples(st.sampled_from([20, 21, 22, 23]), st.binary(min_size=1, max_size=40))),
    st.lists(st.integers(0, 900), max_size=12),
)
def test_records_are_the_same_in_any_chunks(parts: list[tuple[int, bytes]], places: list[int]) -> None:
    data = b"".join(record(kind, body) for kind, body in parts)
    found = walked(data, places)
    assert [(r.kind, r.body) for r in found if isinstance(r, Record)] == parts and len(found) == len(parts)


@given(st.binary(max_size=600), st.lists(st.integers(0, 600), max_size=8), st.sets(st.integers(0, 8)))
def test_any_bytes_can_be_walked(data: bytes, places: list[int], gaps: set[int]) -> None:
    walked(data, places, gaps)
    walked(b"\x17\x03\x03" + data, places, gaps)
    assert boundary(data, 1) <= len(data) and boundary(data * 3, 3) <= 3 * len(data)


@settings(max_examples=examples(10))
@given(st.lists(st.binary(min_size=1, max_size=300), min_size=6, max_size=30), st.data())
def test_after_a_gap_the_walk_is_in_step_again(bodies: list[bytes], data: st.DataObject) -> None:
    """All records after the next one that is whole are found, whatever bytes are in those that are hit."""
    parts = [record(23, body) for body in bodies]
    content = b"".join(parts)
    begin = data.draw(st.integers(0, len(content) - 1))
    end = data.draw(st.integers(begin + 1, len(content)))
    walk = Walk(True, lambda o, length, gap: o[HEAD:length] in bodies)
    found = [*walk.feed(content[:begin], begin, AT, AT), *walk.feed(None, end - begin, AT, AT)] if begin else [
        *walk.feed(None, end, AT, AT)
    ]  # fmt: skip
    found += walk.feed(content[end:], len(content) - end, AT, AT) if end < len(content) else []
    starts = [sum(map(len, parts[:n])) for n in range(len(parts))]
    whole = [body for at, part, body in zip(starts, parts, bodies, strict=True) if at + len(part) <= begin or at >= end]
    ours = [r.body for r in found if isinstance(r, Record)]
    assert ours == whole or len(ours) >= len(whole)  # bytes in a hit record may be those of another one


# ----------------------------------------------------------------------------------------------------- the messages


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read_as_messages(data: bytes) -> None:
    for read in (
        messages.client_hello, messages.server_hello, messages.encrypted_extensions, certificates.read,
        lambda o: messages.certificates(o, 0x0303), lambda o: messages.certificates(o, 0x0304),
    ):  # fmt: skip
        with suppress(MalformedError):
            read(data)


@settings(max_examples=examples(200))
@given(st.data())
def test_a_damaged_certificate_is_read_or_refused(data: st.DataObject) -> None:
    der = bytearray(certificate()[1])
    for _ in range(data.draw(st.integers(1, 4))):
        der[data.draw(st.integers(0, len(der) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedError):
        certificates.read(bytes(der[: data.draw(st.integers(0, len(der)))] if data.draw(st.booleans()) else der))


def test_a_certificate_says_what_another_reader_finds() -> None:
    der = certificate()[1]
    theirs, ours = x509.load_der_x509_certificate(der), certificates.read(der)
    assert (ours.subject, ours.issuer, ours.names) == ("broker", "broker", (NAME,))
    assert ours.begins_s == theirs.not_valid_before_utc.timestamp()
    assert ours.ends_s == theirs.not_valid_after_utc.timestamp()  # beyond 2049: the other kind of time


def test_hellos_say_what_was_agreed() -> None:
    tunnel = Tunnel("1.2", "ECDHE-ECDSA-AES128-GCM-SHA256", ("amqp", "other"))
    found = Session(KeyLog(), True)
    for side, data in tunnel.opening:
        found.feed(side, data, len(data), AT, AT)
    hello, chosen = found.handshake.shown.hello, found.handshake.shown.chosen
    assert hello and chosen and found.handshake.shown.client == CLIENT
    assert (hello.server_name, hello.protocols, hello.versions) == (NAME, ("amqp", "other"), (0x0303,))
    assert 0xC02B in hello.suites and (chosen.version, chosen.suite) == (0x0303, 0xC02B)
    assert [step.event for step in found.handshake.shown.steps] == ["tls.certificate", "tls.finished", "tls.finished"]


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_malformed_messages_are_reported(batch_bytes: int) -> None:
    opening, _, _ = sealed("1.2", "ECDHE-ECDSA-AES128-GCM-SHA256", SESSION)
    der = certificate()[1]
    (side, hello), (other, answer), *rest = opening
    assert (side, other) == (CLIENT, SERVER) and der in answer
    answer = answer.replace(der, der[:1] + b"\xff" + der[2:])
    hello = hello[:43] + b"\xff" + hello[44:]  # the length of the session's name
    tape = Tape(server_port=5671).play([(side, hello), (other, answer), *rest])
    found = dissect_packets(tape.packets, batch_bytes=batch_bytes, check=True)
    reported = [(r["code"], r["from_client"], r["packet"], r["detail"]) for r in rows(found["anomalies"])]
    data = len(hello) - HEAD - 4
    assert reported == [
        ("tls-message-malformed", True, 4, f"the lengths in client_hello ({data} bytes) contradict each other"),
        ("tls-message-malformed", False, 5, "the certificate cannot be parsed"),
    ]
    (row,) = rows(found["connections"])
    assert {r["connection_id"] for r in rows(found["anomalies"])} == {row["connection_id"]}
    assert {r["ts_ns"] for r in rows(found["anomalies"])} == {p.ts_ns for p in tape.packets[3:5]}


def test_names_cannot_play_with_the_terminal() -> None:
    name = b"evil\x1b[2J\n\xff"
    extension = struct.pack(">HHHBH", 0, len(name) + 5, len(name) + 3, 0, len(name)) + name
    body = (
        b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\xc0\x2f" + b"\x01\0" + struct.pack(">H", len(extension)) + extension
    )
    reported = messages.client_hello(body).server_name
    assert reported and reported.isprintable() and reported.startswith("evil")


# ------------------------------------------------------------------------------------------------------ whole runs


@settings(max_examples=examples(10))
@given(st.binary(max_size=400), st.binary(max_size=400), st.sampled_from([1, 64, 1 << 20]))
def test_garbage_in_tls_has_no_rows(client: bytes, server: bytes, batch_bytes: int) -> None:
    opening, turns, keylog = sealed("1.3", "", SESSION[:3])
    options = Options(keylog=written(keylog))
    for begin in (opening[:1], opening, opening + turns):
        tape = Tape(server_port=5671).play(begin)
        for side, data in ((CLIENT, client), (SERVER, server)):
            if data:
                tape.send(side, data, [len(data) // 2])
        found = exact(dissect_packets(tape.packets, options=options, check=True))
        assert len(found["amqp091_frames"]) <= 3
        assert exact(dissect_packets(tape.packets, options=options, batch_bytes=batch_bytes)) == found


@settings(max_examples=examples(10))
@given(st.sampled_from(RECORDED), st.data())
def test_damaged_recordings(name: str, data: st.DataObject) -> None:
    packets, link = recorded(name)
    options = Options(keylog=str((FOLDER / name).with_suffix(".keylog")))
    begin = data.draw(st.integers(0, max(len(packets) - 40, 0)))
    packets = packets[begin : begin + 40]
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(packets) - 1))
        content = bytearray(packets[at].data)
        content[data.draw(st.integers(66, max(len(content) - 1, 66))) % len(content)] ^= data.draw(st.integers(1, 255))
        packets[at] = Packet(packets[at].ts_ns, bytes(content))
    expected = exact(dissect_packets(packets, link, options=options, check=True))
    assert exact(dissect_packets(packets, link, options=options, batch_bytes=64)) == expected


def test_what_waits_for_secrets_is_not_tried_again_with_the_same_ones() -> None:
    """Each batch brought another try, and so many in vain that the connection was given up, by how many batches."""
    opening, turns, keylog = sealed("1.3", "", SESSION)
    some = b"".join(line for line in keylog.splitlines(keepends=True) if b"HANDSHAKE" in line)
    packets = Tape(server_port=5671).play(opening).play(turns * 3).end().packets
    assert len(packets) > 2 * opener.REFUSED
    options = Options(keylog=written(some))
    expected = exact(dissect_packets(packets, options=options))
    assert exact(dissect_packets(packets, options=options, batch_bytes=1)) == expected


@pytest.mark.parametrize("year", [b"99991231235959Z", b"22620412000000Z"])
def test_a_certificate_may_have_no_end(year: bytes) -> None:
    opening, _, _ = sealed("1.2", "ECDHE-ECDSA-AES128-GCM-SHA256", SESSION)
    (ends,) = re.findall(rb"\x18\x0f(20\d{12}Z)", b"".join(data for _, data in opening))
    packets = Tape(server_port=5671).play([(side, data.replace(ends, year)) for side, data in opening]).packets
    (row,) = rows(dissect_packets(packets)["connections"])
    assert row["tls_certificate_ends_ns"] is None
    assert f"valid until {year[:4].decode()}-" in row["tls_certificate"]


def test_a_certificate_is_valid_or_not_by_the_time_of_the_capture() -> None:
    opening, _, _ = sealed("1.2", "ECDHE-ECDSA-AES128-GCM-SHA256", SESSION)
    tape = Tape(server_port=5671).play(opening)
    began, ended = 1_577_836_800, 3_305_836_800
    words = {began - 1: "not valid before 2020-01-01", began: "valid until 2074-10-04", ended: "valid until 2074-10-04",
             ended + 1: "expired on 2074-10-04"}  # fmt: skip
    for begin, reported in words.items():
        tls = next(n for n, packet in enumerate(tape.packets) if certificate()[1] in packet.data)
        packets = [Packet(begin * 1_000_000_000 + n - tls, packet.data) for n, packet in enumerate(tape.packets)]
        (row,) = rows(dissect_packets(packets)["connections"])
        assert row["tls_certificate"] == f"broker, broker.example, by broker, {reported}"
        assert reported in row["handshake_steps"]


def test_a_flipped_bit_costs_one_record() -> None:
    opening, turns, keylog = sealed("1.2", "ECDHE-ECDSA-AES128-GCM-SHA256", SESSION)
    turns = list(turns)
    side, data = turns[10]
    turns[10] = side, data[:-1] + bytes([data[-1] ^ 1])
    options = Options(keylog=written(keylog))
    found = dissect_packets(Tape(server_port=5671).play(opening).play(turns).packets, options=options)
    whole = dissect_packets(Tape().play(SESSION).packets)
    methods = [[row["method"] for row in rows(t["amqp091_frames"])] for t in (found, whole)]
    assert 0 < len(methods[1]) - len(methods[0]) < 20 and methods[0][-4:] == methods[1][-4:]


def test_the_wrong_secrets_open_nothing() -> None:
    opening, turns, keylog = sealed("1.3", "", SESSION)
    turns = turns * 3  # more than are tried
    wrong = b"".join(line[:-4] + b"beef\n" for line in keylog.splitlines())
    found = dissect_packets(
        Tape(server_port=5671).play(opening).play(turns).packets, options=Options(keylog=written(wrong))
    )
    (row,) = rows(found["connections"])
    assert (row["protocol"], row["tls_decrypted"]) == ("tls", False) and not found["amqp091_frames"].num_rows
    reported = rows(found["anomalies"])
    assert {(r["code"], r["connection_id"]) for r in reported} == {("tls-undecrypted", row["connection_id"])}


def test_without_the_library_it_is_reported_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    path = str(FOLDER / "tls_secrets.pcapng")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    assert main(["frames", path, "--keylog", str(FOLDER / "tls_sessions.keylog")]) == 2
    assert installing("tls") in capsys.readouterr().err
    found = dissect(path)  # nobody asked for what the file holds: it is read as far as it can be
    assert [row["code"] for row in rows(found["anomalies"])] == ["tls-undecrypted"]
    assert "amqpscope[tls]" in rows(found["anomalies"])[0]["detail"]
    assert rows(found["connections"])[0]["handshake_outcome"] == "encrypted"


@pytest.mark.parametrize(
    ("keylog", "reported"),
    [
        ("tls_sessions_13.log.json", "not a TLS key log, so 5 TLS connections stay encrypted"),
        ("tls_pika.keylog", "5 TLS connections stay encrypted"),
        ("tls_sessions_13.keylog", ""),
    ],
)
def test_a_key_log_that_opens_nothing_is_reported(keylog: str, reported: str, capsys: Any) -> None:
    assert main(["frames", str(FOLDER / "tls_sessions_13.pcap"), "--keylog", str(FOLDER / keylog)]) == 0
    error = capsys.readouterr().err
    assert reported in error if reported else not error


def test_a_key_log_that_is_not_there(capsys: Any) -> None:
    assert main(["frames", str(FOLDER / "ipv6.pcap"), "--keylog", "/nowhere/keys"]) == 2
    assert "/nowhere/keys: cannot read the key log" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ the bounds


@pytest.mark.parametrize("length", [0xFFFFFF, limits.TLS_MESSAGE + 1])
def test_a_long_message_is_skipped(length: int) -> None:
    found = Session(KeyLog(), True)
    head = bytes([11]) + length.to_bytes(3, "big")
    part = bytes(1 << 14)
    data = record(22, head + part[:-4])
    found.feed(SERVER, data, len(data), AT, AT)
    for _ in range(20):
        data = record(22, part)
        found.feed(SERVER, data, len(data), AT, AT)
        assert len(found.halves[SERVER].message) <= limits.TLS_MESSAGE + 4


def test_records_wait_for_secrets_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TLS_HELD", 20_000)
    opening, turns, _ = sealed("1.3", "", SESSION)
    keylog = KeyLog(written(b""))
    found = Session(keylog, True)
    for side, data in [*opening, *turns, *turns, *turns, *turns, *turns, *turns]:
        found.feed(side, data, len(data), AT, AT)
        assert found.held <= 20_000
    assert not found.awaits_secrets and not found.waiting and found.handshake.shown.version == 0x0304
    assert [fault.code for fault in found.faults] == ["limit-reached"]


def test_tries_after_gaps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TLS_TRIES_ALL", 500)
    opening, turns, keylog = sealed("1.3", "", SESSION)
    found = Session(KeyLog(written(keylog)), True)
    for side, data in [*opening, *turns[:4]]:
        found.feed(side, data, len(data), AT, AT)
    tried = found.halves[CLIENT].opener
    assert tried and tried.worked
    calls = []
    was = tried.epoch.cipher.open
    monkeypatch.setattr(tried.epoch.cipher, "open", lambda *a: calls.append(1) or was(*a), raising=False)
    found.feed(CLIENT, None, 1 << 20, AT, AT)
    rnd = random.Random(1)
    for _ in range(200):
        data = record(23, rnd.randbytes(60))
        found.feed(CLIENT, data, len(data), AT, AT)
    assert len(calls) <= 600
    assert opener.AHEAD < 500


@given(st.binary(max_size=300), st.integers(1, 40))
def test_any_key_log(data: bytes, step: int) -> None:
    path = written(b"")
    keylog = KeyLog(path)
    for at in range(0, len(data), step):
        with Path(path).open("ab") as file:
            file.write(data[at : at + step])
        keylog.look()
    keylog.add(data)
    assert keylog.secrets(bytes(32)) == {}


def test_secrets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TLS_SECRETS", 10)
    keylog = KeyLog()
    for number in range(20):
        keylog.add(b"CLIENT_RANDOM %064x %096x\n" % (number, number))
    assert keylog.full and keylog.secrets((3).to_bytes(32, "big")) and not keylog.secrets((15).to_bytes(32, "big"))


def test_a_bounded_number_of_secrets_is_tried_for_resumed_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture may bring as many secrets as it likes, and sessions that none of them opens."""
    monkeypatch.setattr(limits, "TLS_MASTERS", 5)
    keylog = KeyLog()
    keylog.add(b"".join(b"CLIENT_RANDOM %064x %096x\n" % (number, number) for number in range(9)))
    assert [len(list(keylog.masters())) for _ in range(2)] == [5, 0]


def test_masters_are_the_latest_first_and_among_secrets_of_other_kinds() -> None:
    keylog = KeyLog()
    for number in (3, 1, 2, 1):
        keylog.add(b"CLIENT_TRAFFIC_SECRET_0 %064x %064x\n" % (10 + number, number))
        keylog.add(b"CLIENT_RANDOM %064x %096x\n" % (number, number))
    assert [int.from_bytes(master, "big") for master in keylog.masters()] == [2, 1, 3]
