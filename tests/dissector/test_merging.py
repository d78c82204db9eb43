"""Several captures of the same traffic: rotated sets, overlapping files, several capture points."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.packets.merging import SLACK_NS, Capture, Decoded, Span, Times, arrange, merge
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.reading import Reading
from tests.captures.damage import ways
from tests.captures.damage.points import changed, copies
from tests.dissector.builders import Packet, ethernet, fragments, pcap
from tests.dissector.comparing import COUNTED, TIMED
from tests.dissector.runs import Row, dissect, recorded, rows, tables
from tests.dissector.wire import CLIENT, SERVER, STEP, T0, Tape, handshake, method, opening, publish, raw, session
from tests.thorough import examples

WHERE = ("capture", "first_capture", "last_capture")
SECOND = 1_000_000_000
SESSION = Tape().play(session()).end().packets
SEEN = (*COUNTED, "first_capture", "last_capture", "vantage", "duplicated_bytes", "last_packet", "closed_ts_ns")


def write(folder: Path, link: int = 1, /, **files: list[Packet]) -> list[str]:
    for name, packets in files.items():
        (folder / f"{name}.pcap").write_bytes(pcap(packets, ns=True, link=link))
    return [str(folder / f"{name}.pcap") for name in files]


def reported(tables: dict[str, Any]) -> dict[str, list[Row]]:
    """All that does not depend on where and when it was seen."""
    return {
        "frames": rows(tables["amqp091_frames"], *TIMED, *WHERE),
        "messages": rows(tables["messages"], *TIMED, *WHERE),
        "connections": rows(tables["connections"], *SEEN),
        "anomalies": sorted(rows(tables["anomalies"], *TIMED, *WHERE), key=str),
    }


ORDER = ("frame_no", "first_frame_no", "channel_epoch", "no_ack")
"""What depends on whether something was seen before its answer was."""


def each_side(found: dict[str, list[Row]]) -> list[Any]:
    """The rows of each direction, in their order."""
    frames, messages = (
        [
            [{n: v for n, v in row.items() if n not in ORDER} for row in found[table] if row["from_client"] == side]
            for side in (True, False)
        ]
        for table in ("frames", "messages")
    )  # fmt: skip
    counts = [(row["connection_id"], row["frames"], row["messages"], row["lost_bytes"]) for row in found["connections"]]
    return [frames, messages, counts]


def moved(packets: list[Packet], by: int) -> list[Packet]:
    return [Packet(packet.ts_ns + by, packet.data) for packet in packets]


def without(packets: list[Packet], lost: set[int]) -> list[Packet]:
    return [packet for i, packet in enumerate(packets) if i not in lost]


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    return reported(dissect(*write(tmp_path_factory.mktemp("whole"), whole=SESSION)))


@pytest.mark.parametrize("clocks_ms", [100, 2_500, 25_000, -25_000])
def test_ports_are_used_again_within_the_difference_of_the_clocks(clocks_ms: int, tmp_path: Path) -> None:
    """Another point shows earlier connections after the own point shows later ones."""
    packets: list[Packet] = []
    for isn in range(1000, 5000, 1000):
        begin = packets[-1].ts_ns + abs(clocks_ms) * STEP // 2 if packets else T0
        packets += Tape(isn=(isn, isn), start_ns=begin).play(handshake()).end().packets
    paths = write(tmp_path, one=packets, two=moved(packets, clocks_ms * STEP))
    assert reported(dissect(*paths)) == reported(dissect(paths[0]))


INNER = st.sets(st.integers(3, len(SESSION) - 4), max_size=12)
"""Packets but those of the beginning and the end."""


@pytest.mark.parametrize(("offset_s", "times"), [(5, 1), (100, 2)])
def test_rows_that_are_there_twice_for_want_of_a_common_clock_are_reported(
    offset_s: int, times: int, tmp_path: Path, undamaged: dict[str, list[Row]]
) -> None:
    """Clocks differ by more than a closed connection is waited for."""
    tables = dissect(*write(tmp_path, one=SESSION, two=moved(SESSION, offset_s * SECOND)))
    assert len(rows(tables["amqp091_frames"])) == times * len(undamaged["frames"])
    found = [(row["code"], row["first_capture"]) for row in rows(tables["anomalies"])]
    assert found == [("connection-twice", "two.pcap")] * (times - 1)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lost=st.tuples(INNER, INNER), offset=st.sampled_from([-15, -5, -1, 0, 1, 5, 15]), batch_bytes=st.integers(200, 4000)
)
def test_two_capture_points_give_one_connection(
    lost: tuple[set[int], set[int]], offset: int, batch_bytes: int, tmp_path: Path, undamaged: dict[str, list[Row]]
) -> None:
    """What one of them missed the other fills, whichever is ahead; all is timed at one of them."""
    one, two = without(SESSION, lost[0]), moved(without(SESSION, lost[1] - lost[0]), offset * STEP)
    paths = write(tmp_path, one=one, two=two)
    tables = dissect(*paths, check=True)
    assert reported(tables) == undamaged
    times = {packet.ts_ns for packet in (two if offset < 0 else one)}
    assert {row["ts_ns"] for row in rows(tables["amqp091_frames"])} <= times
    (row,) = rows(tables["connections"])
    assert row["vantage"] == ("two.pcap" if offset < 0 else "one.pcap")
    again = dissect(*paths, batch_bytes=batch_bytes)
    for name, table in tables.items():
        assert sorted(again[name].to_pylist(), key=str) == sorted(table.to_pylist(), key=str), name


def test_rows_may_be_made_late_where_a_capture_begins_amid_a_batch_of_another(tmp_path: Path) -> None:
    """Both parts of that batch lie in the same bytes, and unfinished contents are carried from one to the other."""
    tape = Tape().play([*handshake(), *opening(1)])
    for number in range(40):
        tape.send(CLIENT, b"".join(publish(bytes(300), message_id=f"m{number}")), [100])
    begins = (tape.packets[len(tape.packets) * part // 3 + 1].ts_ns + 1 for part in (1, 2))
    others = [Tape(port=50_000 + n, start_ns=begin).play(opening(1)).packets for n, begin in enumerate(begins)]
    reading = Reading(find(write(tmp_path, one=tape.packets, two=others[0], three=others[1])), compiled=False)
    late = tables(row for work in list(reading.work()) for row in work())
    found = {row["message_id"]: row["exchange"] for row in rows(late["messages"])}
    assert found == {f"m{number}": "e" for number in range(40)}


@pytest.mark.compiled
def test_capture_points_compiled(tmp_path: Path, undamaged: dict[str, list[Row]]) -> None:
    paths = write(tmp_path, one=without(SESSION, {9, 14}), two=moved(without(SESSION, {11, 20}), 5 * STEP))
    expected = dissect(*paths)
    found = dissect(*paths, compiled=True)
    assert each_side(reported(found)) == each_side(undamaged)
    assert {name: table.to_pylist() for name, table in found.items()} == {
        name: table.to_pylist() for name, table in expected.items()
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["many_confirms", "orders_pika", "port_reused", "stream_chunks", "qpid_props"])
@pytest.mark.parametrize("seed", range(2))
def test_rows_of_a_capture_point_do_not_change_by_what_another_has_seen(name: str, seed: int) -> None:
    packets, link = recorded(f"{name}.pcap")
    count, others = changed(*copies(ways.Capture(ways.numbered(packets), link), random.Random(f"{seed} {name}")), link)
    assert (count > 0, others) == (True, [])


def published(number: int) -> bytes:
    return b"".join(publish(b"x" * 50, message_id=f"m{number}"))


def test_a_retransmission_at_the_own_point_comes_before_a_copy_from_elsewhere(tmp_path: Path) -> None:
    """The network loses a publish between both points; it is sent again, after others that wait for it."""
    tape = Tape().play([*handshake(), *opening(1)])
    for number in range(6):
        tape.play([(CLIENT, published(number))])
    lost = len(tape.packets) - 4
    again = replace(tape.packets[lost], ts_ns=tape.packets[-1].ts_ns + 200 * STEP)
    two, one = [*tape.packets, again], [*without(tape.packets, {lost}), again]
    found = dissect(*write(tmp_path, one=one, two=moved(two, STEP // 10)))
    alone = dissect(*write(tmp_path, one=one))
    assert [row["ts_ns"] for row in rows(found["messages"])][2:] == [again.ts_ns] * 4
    for table in ("amqp091_frames", "messages"):
        assert found[table].to_pylist() == alone[table].to_pylist()
    assert rows(found["connections"])[0]["retransmitted_bytes"] == 0


def test_own_bytes_inside_a_segment_of_another_point_are_kept(tmp_path: Path) -> None:
    tape = Tape().play([*handshake(), *opening(1)])
    begin = len(tape.packets)
    data = b"".join(published(number) for number in range(3))
    tape.send(CLIENT, data)
    tape.play([(SERVER, raw(8, 0, b""))])
    parts = Tape().play([*handshake(), *opening(1)])
    parts.send(CLIENT, data, [40, 90, 200])
    one = [*parts.packets[: begin + 1], parts.packets[begin + 2], *moved(tape.packets[begin + 1 :], 5 * STEP)]
    for offset in (0, STEP, 3 * STEP):
        found = dissect(*write(tmp_path, one=one, two=moved(tape.packets, offset)))
        assert [row["is_partial"] for row in rows(found["messages"])] == [False] * 3
        firsts = [(row["first_capture"], row["first_packet"]) for row in rows(found["amqp091_frames"])]
        assert firsts[9] == ("one.pcap", begin + 1)
        assert all(row["capture"] == "one.pcap" for row in rows(found["amqp091_frames"]))
        assert rows(found["connections"])[0]["lost_bytes"] == 0


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_each_direction_at_a_point_of_its_own(side: int, tmp_path: Path, undamaged: dict[str, list[Row]]) -> None:
    mine = [packet.data[34:36] == (40000).to_bytes(2, "big") for packet in SESSION]
    one = [packet for packet, is_client in zip(SESSION, mine, strict=True) if is_client == (side == CLIENT)]
    two = [packet for packet, is_client in zip(SESSION, mine, strict=True) if is_client != (side == CLIENT)]
    found = reported(dissect(*write(tmp_path, one=one, two=moved(two, STEP))))
    names = ("from_client", "method", "frame_type", "channel", "size")
    assert sorted(str([row[n] for n in names]) for row in found["frames"]) == sorted(
        str([row[n] for n in names]) for row in undamaged["frames"]
    )


@pytest.mark.parametrize("overlap", [0, 1, 20])
def test_files_of_a_set_are_one_sequence(overlap: int, tmp_path: Path, undamaged: dict[str, list[Row]]) -> None:
    """Also when the second begins with packets that the first has, too."""
    paths = write(tmp_path, a1=SESSION[:30], a2=SESSION[30 - overlap :])
    tables = dissect(*paths)
    assert reported(tables) == undamaged
    (row,) = rows(tables["connections"])
    assert (row["vantage"], row["retransmitted_bytes"]) == ("a1.pcap", 0)


def test_files_that_overlap_by_more_than_connections_linger(tmp_path: Path) -> None:
    packets: list[Packet] = []
    for number in range(120):
        packets += Tape(port=40000 + number, start_ns=T0 + number * SECOND).play(opening(1)).end().packets
    half = len(packets) // 120
    whole = dissect(*write(tmp_path, whole=packets))
    parts = dissect(*write(tmp_path, a=packets[: 100 * half], b=packets[30 * half :]))
    assert reported(parts) == reported(whole)
    assert len(rows(parts["connections"])) == 120


def test_where_a_capture_point_ends_another_goes_on(tmp_path: Path) -> None:
    tape = Tape().play(session())
    rest = Tape(syn=False, start_ns=T0 + 60 * SECOND)
    rest.next = list(tape.next)
    rest.play([(CLIENT, b"".join(publish(b"late"))), (SERVER, method(commands.Basic.Ack(delivery_tag=9)))]).end()
    whole = dissect(*write(tmp_path, whole=tape.packets + rest.packets))
    found = dissect(*write(tmp_path, one=tape.packets, two=moved(tape.packets + rest.packets, 5 * STEP)))
    assert reported(found) == reported(whole)


def test_another_point_goes_on_until_the_own_one_returns(tmp_path: Path) -> None:
    """For a minute what it sees waits; after that, it is read as it comes."""
    tape = Tape().play([*handshake(), *opening(1)])
    start = len(tape.packets)
    for number in range(30):
        tape.start_ns += 10 * SECOND
        tape.play([(CLIENT, published(number)), (SERVER, raw(8, 0, b""))])
    two = moved(tape.packets, STEP)
    gone = set(range(start + 10, start + 40))
    found = dissect(*write(tmp_path, one=without(tape.packets, gone), two=two))
    (row,) = rows(found["connections"])
    assert (row["messages"], row["lost_bytes"], row["vantage"]) == (30, 0, "one.pcap")
    times = [row["ts_ns"] for row in rows(found["messages"])]
    late = [packet.ts_ns for packet in tape.packets[start::2]]
    assert times[:5] + times[20:] == late[:5] + late[20:]
    assert times == sorted(times)
    assert times[12:20] == [at + STEP for at in late[12:20]]


@pytest.mark.parametrize("batch_bytes", [300, 2000])
def test_points_do_not_depend_on_how_much_is_read_at_a_time(batch_bytes: int, tmp_path: Path) -> None:
    """A file that goes on from one that ended, beside one that lasts, is of the first one's capture point."""
    long = [Packet(T0 + (p.ts_ns - T0) * 4, p.data) for p in SESSION]
    third = len(long) // 3
    paths = write(tmp_path, a1=long[:third], a2=long[2 * third :], b=moved(long, STEP))
    whole = dissect(*paths)
    (row,) = rows(whole["connections"])
    assert row["vantage"] == "a1.pcap"
    found = dissect(*paths, batch_bytes=batch_bytes)
    for name, table in whole.items():
        assert sorted(found[name].to_pylist(), key=str) == sorted(table.to_pylist(), key=str), name


def test_which_captures_are_open_rests_on_times_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more that overlap than are read side by side, one is opened where the first of the others ends."""
    monkeypatch.setattr(limits, "CAPTURES", 3)
    long = [Packet(T0 + (p.ts_ns - T0) * 4, p.data) for p in SESSION]
    lacking = without(long, {22, 23, 24, 25, 26})
    paths = write(tmp_path, z=lacking, a1=long[:20], a2=lacking[18:], b=long[19:45])
    whole = dissect(*paths)
    for batch_bytes in (200, 700, 2000):
        found = dissect(*paths, batch_bytes=batch_bytes)
        for name, table in whole.items():
            assert sorted(found[name].to_pylist(), key=str) == sorted(table.to_pylist(), key=str), name


def in_fragments(packets: list[Packet]) -> list[Packet]:
    """Each IP packet in two fragments, the second half a step after the first."""
    parts = []
    for number, packet in enumerate(packets):
        ip = packet.data[14 : 14 + int.from_bytes(packet.data[16:18])]
        parts += [
            Packet(packet.ts_ns + half * STEP // 2, ethernet(part))
            for half, part in enumerate(fragments(ip, [2], ident=number))
        ]
    return parts


@pytest.mark.parametrize("batch_bytes", [500, 1 << 20])
def test_fragments_are_put_together_at_each_capture_point(
    batch_bytes: int, tmp_path: Path, undamaged: dict[str, list[Row]]
) -> None:
    """A fragment seen at another point is no copy, and does not complete what was seen here."""
    parts = in_fragments(SESSION)
    lost = {30, 41, 58}
    one, two = without(parts, lost), moved(without(parts, {n ^ 1 for n in lost} | {n + 8 for n in lost}), STEP // 4)
    whole = [without(SESSION, {n // 2 for n in lost}), moved(without(SESSION, {n // 2 for n in lost} | {
        (n + 8) // 2 for n in lost}), STEP // 4)]  # fmt: skip
    found = dissect(*write(tmp_path, one=one, two=two), batch_bytes=batch_bytes)
    expected = dissect(*write(tmp_path, w_one=whole[0], w_two=whole[1]))
    reported_by = [{**reported(tables), "anomalies": []} for tables in (found, expected)]
    assert reported_by[0] == reported_by[1]
    counts = ("packets", "duplicated_bytes", "retransmitted_bytes", "lost_bytes")
    assert [[row[n] for n in counts] for row in rows(found["connections"])] == [
        [row[n] for n in counts] for row in rows(expected["connections"])
    ]


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    most=st.sampled_from([2, 3, 64]),
    spans=st.lists(st.tuples(st.integers(0, len(SESSION) - 2), st.integers(1, 40)), min_size=2, max_size=6),
    batch_bytes=st.integers(200, 4000),
)
def test_any_overlap_gives_the_same_rows_however_it_is_read(
    most: int, spans: list[tuple[int, int]], batch_bytes: int, tmp_path: Path
) -> None:
    """Also where more overlap than are read side by side."""
    long = [Packet(T0 + (p.ts_ns - T0) * 4, p.data) for p in SESSION]
    parts = {f"f{number}": long[at : at + count] for number, (at, count) in enumerate(spans)}
    for old in tmp_path.iterdir():
        old.unlink()
    paths = write(tmp_path, **parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CAPTURES", most)
        whole, found = dissect(*paths), dissect(*paths, batch_bytes=batch_bytes)
    for name, table in whole.items():
        assert sorted(found[name].to_pylist(), key=str) == sorted(table.to_pylist(), key=str), name


def decoded_of(times: list[int], capture: int) -> Decoded:
    segments = SegmentBatch(*np.zeros((len(SegmentBatch._fields), len(times)), np.int64))
    segments.ts_ns[:], segments.packet[:], segments.capture[:] = times, np.arange(len(times)), capture
    return Decoded(segments, np.zeros(0, np.uint8), 0)


def parted(times: list[int], size: int) -> range:
    """Where batches of so many segments begin."""
    return range(0, len(times), size)


TIMES = st.lists(st.integers(-3, 8), max_size=12).map(lambda steps: np.cumsum(steps, dtype=np.int64).tolist())
"""Times of segments in units of a third of what files of a set may overlap; clocks go back, too."""


@settings(max_examples=examples(300))
@given(
    most=st.sampled_from([1, 2, 3, 64]),
    files=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), TIMES), max_size=7),
    size=st.integers(1, 5),
)
def test_where_captures_stand_follows_from_their_times(most: int, files: list[tuple[str, int, Any]], size: int) -> None:
    """What one pass merges is what sorting by time and capture gives, once the first and last times are known."""
    unit = SLACK_NS // 3
    begins = sorted((begin, stem, times) for stem, begin, times in files)
    times = [[(begin + t) * unit for t in times] for begin, _, times in begins]
    names = [f"{stem}{number}" for number, (_, stem, _) in enumerate(begins)]

    def batches(index: int, count: int) -> Iterator[Decoded]:
        for at in parted(times[index], size):
            decoded = decoded_of(times[index][at : at + size], index)
            decoded.segments.packet[:] += at
            yield decoded

    captures = [Capture(name, begin * unit, batches) for name, (begin, *_) in zip(names, begins, strict=True)]
    points: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CAPTURES", most)
        parts = [decoded.segments for decoded in merge(captures, points)]
        spans = [
            Span(
                name, begin * unit, Times.joined(Times.of(np.array(mine[at : at + size])) for at in parted(mine, size))
            )
            for name, mine, (begin, *_) in zip(names, times, begins, strict=True)
        ]
        seats = arrange(spans)
    merged = [place for s in parts for place in zip(s.capture.tolist(), s.packet.tolist(), strict=True)]
    keys = [np.maximum.accumulate([seat.floor, *mine])[1:] for seat, mine in zip(seats, times, strict=True)]
    expected = sorted((int(key), n, i) for n, mine in enumerate(keys) for i, key in enumerate(mine))
    assert merged == [(n, i) for _, n, i in expected]
    assert points == [seat.point for seat in seats]


def test_a_file_that_continues_another_comes_after_it() -> None:
    """Also where its first packets are a little older than the last ones of the other."""
    times = [[0, 5], [3, 4, 9]]
    captures = [
        Capture(f"a{n}", mine[0], lambda index, _: iter([decoded_of(times[index], index)]))
        for n, mine in enumerate(times)
    ]
    parts = [decoded.segments for decoded in merge(captures, [])]
    assert [t for s in parts for t in s.ts_ns.tolist()] == [0, 5, 3, 4, 9]


def late_by(capture: ways.Capture, rnd: random.Random, longest_ns: int) -> list[Packet]:
    """Packets as two cards write them, one for each direction, that are emptied now and then."""
    held: dict[tuple[bool, int], int] = {}
    places = []
    for number, (packet, card) in enumerate(zip(capture.packets, ways.toward_server(capture), strict=True)):
        turn = packet.ts_ns // longest_ns
        at = held.setdefault((card, turn), (turn + 1) * longest_ns + rnd.randint(0, longest_ns // 2))
        places.append((at, number))
    return [capture.packets[number] for _, number in sorted(places)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["many_confirms", "orders_aio_pika", "pika_confirms"])
@pytest.mark.parametrize("seed", range(3))
def test_a_rotation_whose_packets_are_seconds_out_of_order_is_one_sequence(
    name: str, seed: int, tmp_path: Path
) -> None:
    """Each file goes on where the one before ended, though its first packets are older."""
    found, link = recorded(f"{name}.pcap")
    begin, length = found[0].ts_ns, found[-1].ts_ns - found[0].ts_ns
    slow = [replace(p, ts_ns=begin + (p.ts_ns - begin) * 60 * SECOND // length) for p in found]
    rnd = random.Random(f"{seed} {name}")
    packets = late_by(ways.Capture(slow, link), rnd, rnd.choice([1, 2]) * SECOND)
    assert Times.of(np.array([packet.ts_ns for packet in packets])).disorder > SECOND // 2
    step = len(packets) // 5
    cuts = [0, *(step * part + rnd.randrange(step // 4) for part in range(1, 5)), len(packets)]
    parts = {f"part_{number}": packets[first:end] for number, (first, end) in enumerate(pairwise(cuts))}
    whole, rotated = (dissect(*write(tmp_path, link, **files)) for files in ({"whole": packets}, parts))
    places = {"packet", "first_packet", "last_packet", "vantage", "handshake_steps", "handshake_evidence", *WHERE}
    for table in ("amqp091_frames", "messages", "connections"):
        assert [{n: v for n, v in row.items() if n not in places} for row in rows(rotated[table])] == [
            {n: v for n, v in row.items() if n not in places} for row in rows(whole[table])
        ], table
    assert {row["vantage"] for row in rows(rotated["connections"])} == {"part_0.pcap"}
    codes = [[row["code"] for row in rows(found["anomalies"])] for found in (rotated, whole)]
    # A clock that steps from one file to the next has no anomaly.
    mine, theirs = (sorted(code for code in each if code != "clock-step") for each in codes)
    assert mine == theirs
