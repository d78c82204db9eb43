"""Many records at once have the rows that they have one by one: any kind of TLS, any damage, any windows."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from unittest import mock

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.dissector.dissector import Options
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.tls import keys, stage
from amqpscope.dissector.tls.keylog import KeyLog
from amqpscope.dissector.tls.records import HEAD
from amqpscope.dissector.tls.session import Session
from tests.dissector.builders import Packet
from tests.dissector.comparing import exact
from tests.dissector.runs import dissect_packets
from tests.dissector.tls.sessions import in_clear, inside, records
from tests.dissector.tls.tunnel import KINDS, Tunnel, written
from tests.dissector.wire import CLIENT, SERVER, Tape, Turn, publish, session
from tests.thorough import examples

INTRUDERS = (
    b"\x14\x03\x03\0\1\1", b"\x15\x03\x03\0\2\1\x5a", b"\x16\x03\x03\0\4\1\0\0\0", b"\x17\x03\x03\0\x30" + bytes(48),
    b"\x17\x03\x03\0\3abc", b"\x17\x03\x03\0\0", b"GET / HTTP/1.1\r\n\r\n",
)  # fmt: skip
"""What may come between records: changes of keys, alerts, hellos, records that do not open, none at all."""


@contextmanager
def windows(reach: int | None) -> Iterator[None]:
    """Runs of so many chunks at first, however few bytes they are; None: no runs."""
    with mock.patch.object(stage, "WORTH", 1 << 60 if reach is None else 0), mock.patch.object(
        stage, "REACH", reach or 1
    ):  # fmt: skip
        yield


@cache
def long(kind: tuple[str, str]) -> tuple[list[Turn], bytes]:
    """A session with many records, large and small, and goodbyes; the key log."""
    tunnel = Tunnel(*kind)
    opening, sent = list(tunnel.opening), list(session())
    for number in range(24):
        sent.append((CLIENT, b"".join(publish(b"%d" % number * (10, 200, 4000)[number % 3], largest=300))))
        sent += [(SERVER, sent[9][1])] * (number % 4 == 0)
    turns = opening + [(side, tunnel.send(side, raw)) for side, raw in sent]
    return [*turns, (CLIENT, tunnel.close(CLIENT)), (SERVER, tunnel.close(SERVER))], tunnel.keylog


@st.composite
def damaged(draw: st.DrawFn) -> tuple[list[Packet], Options]:
    turns, keylog = long(draw(st.sampled_from(KINDS)))
    turns = list(turns)
    for place, raw in draw(st.lists(st.tuples(st.integers(0, 60), st.sampled_from(INTRUDERS)), max_size=1)):
        turns.insert(place, (draw(st.integers(0, 1)), raw))
    segment = draw(st.sampled_from([200, 1448, 60_000]))
    tape = Tape(server_port=5671)
    for side, raw in turns:
        tape.send(side, raw, range(draw(st.integers(1, segment)), len(raw), segment))
    packets = tape.end().packets
    for at in draw(st.lists(st.integers(0, len(packets) - 1), max_size=4)):
        packet, other = packets[at], min(at + 3, len(packets) - 1)
        damage = draw(st.integers(0, 3))
        if damage == 0:
            packets[at] = Packet(packet.ts_ns, packet.data[:-1] + bytes([packet.data[-1] ^ 1]))
        elif damage == 1:
            packets[at] = Packet(packet.ts_ns, packet.data[:54], len(packet.data))
        elif damage == 2:
            packets[at], packets[other] = packets[other], packets[at]
        else:
            packets[at] = packets[other]
    lines = draw(st.sampled_from([b"", b"CLIENT", b"HANDSHAKE", b"SERVER"] + [b"\n"] * 4))
    known = b"".join(line for line in keylog.splitlines(keepends=True) if lines and lines in line)
    return packets, Options(keylog=written(known) if known else None)


@settings(max_examples=examples(12))
@given(damaged(), st.sampled_from([1, 2, 9, 64]), st.sampled_from([1000, 10_000, 1 << 20]))
def test_runs_change_nothing(made: tuple[list[Packet], Options], reach: int, batch_bytes: int) -> None:
    packets, options = made
    with windows(None):
        expected = exact(dissect_packets(packets, options=options))
    with windows(reach):
        assert exact(dissect_packets(packets, options=options, batch_bytes=batch_bytes, check=True)) == expected


@pytest.mark.compiled
@settings(max_examples=examples(8))
@given(damaged(), st.sampled_from([2, 64]))
def test_compiled_runs_change_nothing(made: tuple[list[Packet], Options], reach: int) -> None:
    packets, options = made
    with windows(None):
        expected = exact(dissect_packets(packets, options=options))
    with windows(reach):
        assert exact(dissect_packets(packets, options=options, compiled=True)) == expected


@pytest.mark.parametrize("reach", [2, 64])
def test_secrets_may_come_after_runs_that_stayed_sealed(reach: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture may bring them at any place: what stays sealed before them has the lengths of its records."""
    turns, keylog = long(next(kind for kind in KINDS if kind[0] == "1.2" and "SHA384" in kind[1]))
    packets = Tape(server_port=5671).play(turns).packets
    feed = stage.Tls.feed

    def feed_and_add(tls: stage.Tls, chunks: Ints, buffer: Buffer) -> Ints:
        opened = feed(tls, chunks, buffer)
        fed.append(chunks.shape[1])
        if sum(fed) >= 20 and not tls.keylog.expecting:
            tls.keylog.add(keylog)
        return opened

    monkeypatch.setattr(stage.Tls, "feed", feed_and_add)
    found = []
    for each in (None, reach):
        fed: list[int] = []
        with windows(each):
            found.append(exact(dissect_packets(packets, batch_bytes=1000)))
    assert found[0] == found[1]


def test_runs_are_what_sessions_mostly_are_read_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing here would be a test."""
    alone: list[int] = []
    feed = Session.feed
    monkeypatch.setattr(Session, "feed", lambda self, *chunk: alone.append(1) or feed(self, *chunk))
    for kind in KINDS:
        turns, keylog = long(kind)
        for options in (Options(keylog=written(keylog)), Options()):
            alone.clear()
            with windows(64):
                found = dissect_packets(Tape(server_port=5671).play(turns).packets, options=options)
            assert found["connections"].to_pylist()[0]["tls_decrypted"] is (options.keylog is not None)
            assert len(alone) < 30 < len(turns), (kind, len(alone), len(turns))


# -------------------------------------------------------------------------------------------------- many at a time


@given(st.sampled_from(KINDS), st.data())
def test_a_cipher_opens_many_records_as_it_opens_one(kind: tuple[str, str], data: st.DataObject) -> None:
    turns, keylog = long(kind)
    found = Session(KeyLog(written(keylog)), True)
    for side, raw in turns[:14]:
        found.feed(side, raw, len(raw), (1, 0, 0), (1, 0, 0))
    opener = found.halves[CLIENT].opener
    assert opener
    parts = [part for side, raw in turns[14:-2] if side == CLIENT for part in records(raw)]
    for _ in range(data.draw(st.integers(0, 2))):
        at, length = data.draw(st.integers(0, len(parts) - 1)), data.draw(st.integers(0, 60))
        parts[at] = data.draw(
            st.sampled_from([parts[at][:3] + length.to_bytes(2, "big") + bytes(length), parts[at][:-1] + b"\0"])
        )
    cipher, expected, number = opener.epoch.cipher, [], opener.epoch.number
    for part in parts:
        opened = cipher.open(number + len(expected), part[:HEAD], part[HEAD:])
        if opened is None:
            break
        expected.append(opened.content + bytes([opened.kind]) if cipher.hides else opened.content)
    edges = np.array([0, *accumulate(map(len, parts))])
    assert cipher.open_run(number, b"".join(parts), edges) == expected


def padded(secret: bytes, contents: list[tuple[bytes, int]]) -> Iterator[bytes]:
    """Records of TLS 1.3 with AES-256-GCM and SHA-384: contents, and how many zeros stand after them."""
    key, iv = (keys.expand("sha384", secret, label, count) for label, count in ((b"key", 32), (b"iv", 12)))
    for number, (content, zeros) in enumerate(contents):
        inner = content + b"\x17" + bytes(zeros)
        head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        nonce = (int.from_bytes(iv, "big") ^ number).to_bytes(12, "big")
        yield head + AESGCM(key).encrypt(nonce, inner, head)


@pytest.mark.parametrize("reach", [None, 2, 64])
def test_records_may_be_padded_and_empty(reach: int | None) -> None:
    tunnel = Tunnel("1.3", "")
    words = [line.split() for line in tunnel.keylog.splitlines()]
    (secret,) = (bytes.fromhex(word[2].decode()) for word in words if word[0] == b"CLIENT_TRAFFIC_SECRET_0")
    assert len(secret) == 48
    sent = session()
    sealed = padded(secret, [(raw, 37 * n % 500) for n, (side, raw) in enumerate(sent) if side == CLIENT])
    nothing = next(padded(secret, [(b"", 99)]))  # numbered as the first: it does not open, and costs nothing
    tape = Tape(server_port=5671).play(tunnel.opening)
    for side, raw in sent:
        tape.send(side, next(sealed) if side == CLIENT else tunnel.send(side, raw))
    tape.send(CLIENT, nothing)
    with windows(reach):
        found = dissect_packets(tape.end().packets, options=Options(keylog=written(tunnel.keylog)))
    assert inside(found)["frames"] == in_clear()["frames"]
    assert inside(found)["messages"] == in_clear()["messages"]
