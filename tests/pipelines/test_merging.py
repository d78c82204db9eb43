"""Frames that go before the walks: no row may show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from amqpscope.pipelines.amqp010.frames import FRAMES_010
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model.event_rows import prepared
from amqpscope.pipelines.model.walk import Needs
from amqpscope.pipelines.run.engine import Engine
from amqpscope.pipelines.run.event_store import EventStore
from amqpscope.pipelines.run.local import FIRST, then
from amqpscope.pipelines.run.merging import merged, wanted
from amqpscope.pipelines.statistics import needs_of
from tests.captures.damage.recordings import FOLDER, Recording
from tests.pipelines.scenario import Connection, arrow
from tests.pipelines.walks.sessions010 import Peers, tables_of

ALL = {FRAMES: Needs(), FRAMES_010: Needs()}
either_way = pytest.mark.parametrize("compiled", [False, True])


def frames(connection: Connection) -> pa.Table:
    return prepared(FRAMES, arrow([connection])["amqp091_frames"])


def kept(connection: Connection, compiled: bool, apart: tuple[int, ...] = ()) -> list[int]:
    """Numbers of the frames that stay, where only basic.ack is asked for."""
    asked = wanted([{FRAMES: Needs((), ("basic.ack",))}], FRAMES)
    rows = merged(FRAMES, frames(connection), asked, pa.array(apart, pa.int64()), compiled)
    return rows["frame_no"].to_pylist()


def talk(**second: int) -> Connection:
    """A frame of each side, two of the client in one packet, of which the second has these times, and an answer."""
    c = Connection()
    c.frame(False)
    c.frame(True)
    c.frame(True, ts_ns=2000, first_ts_ns=2000)
    c.frame(True, **({"ts_ns": 2000, "first_ts_ns": 2000} | second))
    c.ack(1)
    return c


@either_way
def test_a_frame_goes_where_the_next_begins_in_its_packet(compiled: bool):
    assert kept(talk(), compiled) == [0, 1, 3, 4]


def published(*methods: str | None) -> Connection:
    """A frame of each side, and frames of the client in one packet; None for one without a method."""
    c = Connection()
    c.frame(False)
    for method in (None, *methods):
        columns = {"method": method} if method else {}
        c.frame(True, ts_ns=2000, first_ts_ns=2000, **columns)
    return c


PUBLISH = ("basic.publish", None)


@either_way
@pytest.mark.parametrize(
    ("methods", "gone"),
    [
        ((*PUBLISH, *PUBLISH, *PUBLISH), {2, 3, 4}),
        ((*PUBLISH, "channel.close", *PUBLISH), set()),
        ((*PUBLISH, "connection.close", *PUBLISH), set()),
        ((*PUBLISH, "exchange.declare", *PUBLISH), set()),
    ],
    ids=["another follows", "channel closed between", "connection closed between", "of another method between"],
)
def test_of_some_only_the_last_before_a_close_stays(methods: tuple[str | None, ...], gone: set[int], compiled: bool):
    last = ("basic.publish", "exchange.declare")
    asked = wanted([{FRAMES: Needs((), ("channel.close", "connection.close", *last), last)}], FRAMES)
    nobody = pa.array([], pa.int64())
    c = published(*methods)
    stay = [frame["frame_no"] for frame in c.frames if frame["frame_no"] not in gone]
    assert merged(FRAMES, frames(c), asked, nobody, compiled)["frame_no"].to_pylist() == stay


def test_all_stay_where_a_close_may_be_in_another_part():
    c = published(*PUBLISH, *PUBLISH)
    del c.frames[3]
    asked = wanted([{FRAMES: Needs((), ("basic.publish",), ("basic.publish",))}], FRAMES)
    assert len(merged(FRAMES, frames(c), asked, pa.array([], pa.int64()), False)) == len(c.frames)


def test_all_are_wanted_that_one_walk_wants_all_of():
    some, all_ = {FRAMES: Needs((), ("basic.get",), ("basic.get",))}, {FRAMES: Needs((), ("basic.get",))}
    assert wanted([some, all_], FRAMES).tolist() == wanted([all_], FRAMES).tolist() != wanted([some], FRAMES).tolist()


def test_the_next_one_then_begins_when_it_did():
    c = talk(ts_ns=5000)
    c.frames[2]["first_ts_ns"] = 1500
    rows = merged(
        FRAMES, frames(c), wanted([{FRAMES: Needs((), ("basic.ack",))}], FRAMES), pa.array([], pa.int64()), False
    )
    assert rows["first_ts_ns"].to_pylist()[2] == 1500
    assert rows["ts_ns"].to_pylist()[2] == 5000


def behind_silence(c: Connection) -> None:
    c.frames[3] |= {"first_ts_ns": 2001, "ts_ns": 2001}


def of_the_other_side(c: Connection) -> None:
    c.frames[3]["from_client"] = False


def behind_one_that_is_missing(c: Connection) -> None:
    for number, frame in enumerate(c.frames[3:], 4):
        frame["frame_no"] = number


def asked_for(c: Connection) -> None:
    c.frames[3] |= {"method": "basic.ack", "frame_type": "method"}


def cut(c: Connection) -> None:
    c.frames[3] |= {"frame_type": "method", "is_partial": True}


def without_a_time(c: Connection) -> None:
    c.frames[3]["first_ts_ns"] = None


def not_seen_from_both_sides(c: Connection) -> None:
    c.frames[0]["from_client"] = True


def not_in_order(c: Connection) -> None:
    c.frames[0]["frame_no"] = 9


@either_way
@pytest.mark.parametrize(
    "change",
    [behind_silence, of_the_other_side, behind_one_that_is_missing, asked_for, cut, without_a_time,
     not_seen_from_both_sides, not_in_order],
)  # fmt: skip
def test_it_stays_where_somebody_could_tell(change: Callable[[Connection], None], compiled: bool):
    c = talk()
    change(c)
    assert kept(c, compiled) == [frame["frame_no"] for frame in c.frames]


@either_way
@pytest.mark.parametrize("channel", [1, 2])
def test_bytes_of_content_go_to_the_next_of_their_channel(channel: int, compiled: bool):
    peers = Peers(1)
    for from_client in (False, True, True, True):
        peers.control(from_client, None, segment_type="body", size=22, ts_ns=2000, first_ts_ns=2000)
    peers.frames[-1]["channel"] = channel
    rows = prepared(FRAMES_010, tables_of(peers)["amqp010_frames"].drop_columns("content_size"))
    found = merged(FRAMES_010, rows, wanted([{}], FRAMES_010), pa.array([], pa.int64()), compiled)
    assert found["content_size"].to_pylist() == ([10, 10, 20] if channel == 1 else [10, 10, 10, 10])


@either_way
def test_it_stays_where_frames_may_be_missing(compiled: bool):
    c = talk()
    assert kept(c, compiled, (c.id,)) == [0, 1, 2, 3, 4]


def statistics(tables: dict[str, pa.Table], *needs: dict[int, Needs]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    engine = Engine(emit=lambda name, rows: found.setdefault(name, Counter()).update(map(repr, rows.to_pylist())))
    engine.runner.store = EventStore([*needs_of(engine.runner.chains), *needs])
    for name in FIRST + then():
        engine.add(engine.runner.prepare(name, tables[name].select(engine.runner.columns(name))))
    engine.finish()
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        "many_confirms", "prefetch", "recover", "failed_handshakes", "gets", "failed_calls", "publish_behind_close",
        "qpid_flow_credit", "qpid_messaging", "qpid_python_peers",
    ],
)  # fmt: skip
def test_no_row_of_a_recording_shows_it(name):
    recording = Recording.of(FOLDER / f"{name}.pcap")
    captures = [recording.tables] + [
        recording.dissect(recording.damaged(way, 1)) for way in ("lossy", "snapped", "one way", "late")
    ]
    for tables in captures:
        assert statistics(tables) == statistics(tables, ALL)
