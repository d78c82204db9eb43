"""What must not change the rows: segmentation, disorder, batches, how kernels run; and what damage may do to them."""

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dissector.builders import Packet
from tests.dissector.comparing import COUNTED, TIMED, exact
from tests.dissector.recordings import COVERED, covered, ours
from tests.dissector.runs import FOLDER, Row, dissect, dissect_packets, rows
from tests.dissector.wire import ACK, CLIENT, PSH, SERVER, Tape, cut, publish, session
from tests.thorough import examples

SESSION = session()
WHOLE = [
    "any_sll2.pcap", "body_sizes.pcap", "channel_reopened.pcap", "field_types.pcap", "interleaved_channels.pcap",
    "lossy_link.pcap", "many_confirms.pcap", "port_reused.pcap", "broken_contents.pcap", "ipv6.pcap",
]  # fmt: skip


def reported(tables: dict[str, pa.Table]) -> dict[str, list[Row]]:
    """All that does not depend on how the bytes were cut into packets."""
    return {
        "frames": rows(tables["amqp091_frames"], *TIMED),
        "messages": rows(tables["messages"], *TIMED),
        "connections": rows(tables["connections"], *COUNTED),
        "anomalies": sorted(rows(tables["anomalies"], *TIMED), key=str),
    }


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[Row]]:
    """One segment a turn."""
    found = reported(dissect_packets(Tape().play(SESSION).end().packets, check=True))
    assert len(found["frames"]) > 60 and len(found["messages"]) == 8
    assert not found["anomalies"]
    return found


@st.composite
def disturbed(draw: st.DrawFn, isn: tuple[int, int] = (1000, 2000)) -> list[Packet]:
    """The session in any segmentation, each turn's segments out of order, again, overlapping."""
    tape = Tape(isn=isn)
    for side, raw in SESSION:
        places = draw(st.lists(st.integers(1, max(len(raw) - 1, 1)), max_size=6))
        chunks = cut(raw, places)
        base = tape.next[side]
        segments = []
        at = 0
        for chunk in chunks:
            segments.append((at, chunk))
            at += len(chunk)
        for _ in range(draw(st.integers(0, 2))):  # sent again, and cut otherwise
            begin = draw(st.integers(0, len(raw) - 1))
            end = draw(st.integers(begin + 1, len(raw)))
            segments.append((begin, raw[begin:end]))
        if draw(st.booleans()):
            segments = draw(st.permutations(segments))
        for begin, chunk in segments:
            tape.segment(side, chunk, seq=base + begin, flags=ACK | PSH)
        tape.next[side] = (base + len(raw)) % 2**32
        if draw(st.integers(0, 9)) == 0:  # a keep-alive: the byte before the next one, which may be anything
            tape.segment(side, b"\0", seq=tape.next[side] - 1)
    return tape.end().packets


@given(packets=disturbed())
def test_segmentation_and_disorder_do_not_change_rows(packets: list[Packet], undisturbed: dict[str, list[Row]]) -> None:
    assert reported(dissect_packets(packets)) == undisturbed


@settings(max_examples=examples(20))
@given(packets=st.integers(-5000, 5000).flatmap(lambda n: disturbed(isn=(n % 2**32, (n + 2**31) % 2**32))))
def test_sequence_numbers_may_wrap(packets: list[Packet], undisturbed: dict[str, list[Row]]) -> None:
    for mine, theirs in zip(reported(dissect_packets(packets)).values(), undisturbed.values(), strict=True):
        assert [r | {"connection_id": 0} for r in mine] == [r | {"connection_id": 0} for r in theirs]


@pytest.mark.compiled
@settings(max_examples=examples(25))
@given(packets=disturbed(), batch_bytes=st.integers(64, 5000), lost=st.sets(st.integers(0, 60), max_size=4))
def test_batches_and_compilation_change_nothing(packets: list[Packet], batch_bytes: int, lost: set[int]) -> None:
    packets = [packet for i, packet in enumerate(packets) if i not in lost]
    expected = exact(dissect_packets(packets))
    assert exact(dissect_packets(packets, batch_bytes=batch_bytes)) == expected
    assert exact(dissect_packets(packets, compiled=True, batch_bytes=batch_bytes, check=True)) == expected


@pytest.mark.sampled(3)
@pytest.mark.compiled
@pytest.mark.parametrize("name", WHOLE)
def test_batches_and_compilation_change_nothing_in_recordings(name: str) -> None:
    assert Path(name).stem in COVERED
    expected = exact(ours(FOLDER / name))
    for compiled, batch_bytes in ((False, 64), (False, 3000), (True, 64), (True, 10_000), (True, 1 << 24)):
        found = exact(dissect(FOLDER / name, compiled=compiled, batch_bytes=batch_bytes))
        assert found == expected, (compiled, batch_bytes)


@pytest.mark.compiled
def test_a_late_syn_changes_nothing_before_it_whatever_the_batches() -> None:
    tape = Tape().play([(CLIENT, b"GET / HTTP/1.1\r\n\r\n"), (SERVER, b"HTTP/1.1 400\r\n\r\n")]).end()
    syn, *rest = tape.packets
    packets = [*rest[:3], Packet(rest[2].ts_ns, syn.data), *rest[3:]]
    expected = dissect_packets(packets)["connections"].to_pylist()
    for compiled in (False, True):
        found = dissect_packets(packets, compiled=compiled, batch_bytes=64)
        assert found["connections"].to_pylist() == expected


def test_bytes_one_by_one(undisturbed: dict[str, list[Row]]) -> None:
    tape = Tape()
    for side, raw in SESSION:
        tape.send(side, raw, range(len(raw)))
    assert reported(dissect_packets(tape.end().packets)) == undisturbed


def test_an_initial_sequence_number_names_the_connection() -> None:
    identities = set()
    for isn in ((1, 2), (2, 2), (1, 3)):
        (row,) = rows(dissect_packets(Tape(isn=isn).play(SESSION).packets)["connections"])
        identities.add(row["connection_id"])
    assert len(identities) == 2  # the server's does not count


# damage

SHOWN = ("from_client", "first_ts_ns", "frame_type", "channel", "method", "size")
SAME_IN_DAMAGE = (
    "frame_no", "packet", "ts_ns", "ts", "first_packet", "channel_epoch", "is_partial", "unfinished", "missing",
    "connection_id", "publish_seq", "publish_seq_unsure", "no_ack", "first_frame_no",
)  # fmt: skip


def assert_nothing_invented(damaged: dict[str, pa.Table], whole: dict[str, pa.Table]) -> None:
    """Every frame and message of a damaged run is in the undamaged one, and says nothing else than there."""
    for table, names in (("amqp091_frames", SHOWN), ("messages", ("from_client", "first_ts_ns", "kind", "channel"))):
        there: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows(whole[table], *SAME_IN_DAMAGE):
            there.setdefault(tuple(row[name] for name in names), []).append(row)
        for row in rows(damaged[table]):
            key = tuple(row[name] for name in names)
            partial = row["is_partial"]
            if table == "amqp091_frames" and partial and row["method"] is None:  # the method may be in the gap
                alike = [r for k, rs in there.items() for r in rs if k[:4] + k[5:] == key[:4] + key[5:]]
            else:
                alike = there.get(key, [])
            assert any(
                all(row[n] == v or (row[n] is None or (partial and n in LONG)) for n, v in r.items()) for r in alike
            ), (table, {n: v for n, v in row.items() if v is not None})
        counts = Counter(tuple(row[name] for name in names) for row in rows(damaged[table]) if not row["is_partial"])
        assert all(len(there[key]) >= count for key, count in counts.items())


LONG = {"arguments", "headers", "client_properties", "server_properties"}
"""A table that is cut shows the entries before the gap."""
DAMAGED = [
    "any_sll2.pcap", "body_sizes.pcap", "channel_reopened.pcap", "field_types.pcap", "gets.pcap", "ipv6.pcap",
    "many_confirms.pcap", "interleaved_channels.pcap", "topology.pcap", "orders_pika.pcap",
]  # fmt: skip


@functools.cache
def without_loss(name: str) -> dict[str, pa.Table]:
    return dissect_packets(*covered(name))


@given(name=st.sampled_from(DAMAGED), data=st.data())
def test_lost_packets_invent_nothing(name: str, data: st.DataObject) -> None:
    packets, link = covered(name)
    lost = data.draw(st.sets(st.integers(0, len(packets) - 1), min_size=1, max_size=6))
    kept = [packet for i, packet in enumerate(packets) if i not in lost]
    assert_nothing_invented(dissect_packets(kept, link, check=True), without_loss(name))


@given(name=st.sampled_from(DAMAGED), snap=st.integers(60, 400))
def test_a_snap_length_invents_nothing(name: str, snap: int) -> None:
    packets, link = covered(name)
    cut_off = [Packet(p.ts_ns, p.data[:snap], len(p.data)) for p in packets]
    assert_nothing_invented(dissect_packets(cut_off, link, check=True), without_loss(name))


def test_a_lost_head_of_a_body_full_of_frames_invents_nothing() -> None:
    inner = b"".join(publish(b"inner"))
    tape = Tape().play(SESSION)
    raw = b"".join(publish(inner * 40, largest=1 << 16))
    tape.send(CLIENT, raw, range(raw.index(inner) - 3, len(raw), len(inner)))
    tape.play([(CLIENT, b"".join(publish(b"behind")))])
    begin = len(Tape().play(SESSION).packets)
    lost = [packet for i, packet in enumerate(tape.packets) if i != begin + 1]
    assert_nothing_invented(dissect_packets(lost), dissect_packets(tape.packets))
