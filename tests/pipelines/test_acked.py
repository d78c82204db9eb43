"""When TCP acknowledged requests: joined in plain loops, and the same however rows come."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.cli.program import main
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.tables.formats import ADDED
from amqpscope.dissector.tables.output import NOTE
from amqpscope.pipelines.run import acknowledged, engine, runner
from amqpscope.pipelines.run.event_store import EventStore
from amqpscope.pipelines.run.local import FIRST, then, walk_captures
from amqpscope.pipelines.run.runner import Runner
from amqpscope.pipelines.statistics import needs_of
from tests.dissector.builders import Packet, pcap
from tests.dissector.recordings import ours
from tests.dissector.runs import FOLDER, dissect_packets, rows
from tests.dissector.wire import CLIENT, SERVER, STEP, Tape, deliver, handshake, method, opening, publish
from tests.pipelines.analyzed import walked
from tests.thorough import examples

TABLES = {"confirms": "publish", "settlements": "deliver", "rpcs": "request"}
MINUTE_NS = 60 * 10**9
RECORDINGS = (
    "pika_confirms", "orders_aio_pika", "demo", "prefetch", "gets", "lossy_link", "stream_rstream", "stream_js",
    "qpid_messaging", "qpid_multi_session", "begun_before", "snapped",
)  # fmt: skip
Acked = dict[str, Counter[tuple[Any, ...]]]


def joined(table: str, row: dict[str, Any], acks: list[dict[str, Any]]) -> int | None:
    """The time that a row must have: that of the acknowledgement that is about its frame."""
    frame, sent = row[f"{TABLES[table]}_frame_no"], row[f"{TABLES[table]}_ts_ns"]
    from_client = row["from_client"] if table == "rpcs" else table == "confirms"
    for ack in acks:
        is_other = ack["connection_id"] == row["connection_id"] and ack["from_client"] != from_client
        if is_other and ack["first_frame_no"] <= frame <= ack["last_frame_no"]:
            return ack["ts_ns"] if ack["ts_ns"] - sent <= MINUTE_NS else None
    return None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stem", RECORDINGS)
def test_recordings_against_plain_loops(stem: str) -> None:
    acks, found = rows(ours(FOLDER / f"{stem}.pcap")["tcp_acks"]), walked(FOLDER / f"{stem}.pcap")
    known = 0
    for table in TABLES:
        for row in rows(found[table]):
            assert row["request_acked_ts_ns"] == joined(table, row, acks), (table, row)
            known += row["request_acked_ts_ns"] is not None
    assert known


# ---- made connections


class Talk(Tape):
    """A connection whose server acknowledges where a test asks it to."""

    def begin(self) -> Talk:
        self.play([*handshake(), *opening(1), *opening(2), (CLIENT, method(commands.Confirm.Select()))])
        self.play([(SERVER, method(commands.Confirm.SelectOk()))])
        self.acked = self.next[::-1]
        return self

    def say(self, side: int, data: bytes = b"", acks: bool = True, wait_ns: int = 0) -> int:
        """Send a packet, of bytes or without, that acknowledges all so far, or no more than before; its time."""
        self.start_ns += wait_ns
        if acks:
            self.acked[side] = self.next[1 - side]
        self.segment(side, data, ack=self.acked[side])
        self.next[side] += len(data)
        return self.packets[-1].ts_ns


def statistics(packets: list[Packet], folder: Path, batch_bytes: int = 1 << 16) -> Acked:
    """Which frame was acknowledged when, by table, of a capture that is analyzed at once."""
    (folder / "talk.pcap").write_bytes(pcap(packets, ns=True))
    found: Acked = {name: Counter() for name in TABLES}
    reading = Reading(find([str(folder / "talk.pcap")]), compiled=False, batch_bytes=batch_bytes)
    walk_captures(reading, partial(_take, found))
    return found


def _take(found: Acked, name: str, made: pa.Table) -> None:
    if name in TABLES:
        names = (f"{TABLES[name]}_frame_no", f"{TABLES[name]}_ts_ns", "outcome", "latency_ns", "request_acked_ts_ns")
        found[name].update(tuple(row[each] for each in names) for row in made.to_pylist())


def acked(found: Acked, table: str) -> list[int | None]:
    return [row[-1] for row in sorted(found[table])]


def test_until_when_the_network_had_a_publish(tmp_path: Path) -> None:
    talk = Talk().begin()
    talk.say(CLIENT, b"".join(publish()))
    alone = talk.say(SERVER)
    talk.say(CLIENT, b"".join(publish()), acks=False)
    answer = talk.say(SERVER, method(commands.Basic.Ack(delivery_tag=2, multiple=True)))
    talk.say(CLIENT, b"".join(publish()))
    never = talk.say(SERVER)
    talk.say(CLIENT, b"".join(publish()))
    assert acked(statistics(talk.packets, tmp_path), "confirms") == [alone, answer, never, None]


def test_an_acknowledgement_a_minute_later_does_not_count(tmp_path: Path) -> None:
    """Else events of connections of which only one direction is captured would wait until these end."""
    talk = Talk().begin()
    talk.say(CLIENT, b"".join(publish()))
    last = talk.say(SERVER, wait_ns=MINUTE_NS - STEP)
    talk.say(CLIENT, b"".join(publish()))
    talk.say(SERVER, wait_ns=MINUTE_NS - STEP + 1)
    assert acked(statistics(talk.packets, tmp_path), "confirms") == [last, None]


def test_a_request_that_was_captured_late_has_not_the_time_of_the_next(tmp_path: Path) -> None:
    talk = Talk().begin()
    talk.acked[SERVER] += len(data := b"".join(publish()))
    talk.say(SERVER, acks=False)
    talk.say(CLIENT, data)
    talk.say(CLIENT, data)
    time = talk.say(SERVER)
    assert acked(statistics(talk.packets, tmp_path), "confirms") == [None, time]


def test_one_acknowledgement_of_what_waits_and_what_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It acknowledges deliveries, and between them the beginning of one of which the rest comes in later batches."""
    talk = Talk().begin()
    frames = deliver(2)
    talk.say(SERVER, b"".join(deliver(1)))
    talk.say(SERVER, b"".join(frames[:2]))
    talk.say(SERVER, b"".join(deliver(1, channel=2)))
    first = talk.say(CLIENT)
    for _ in range(60):
        talk.say(SERVER, bytes([8, 0, 0, 0, 0, 0, 0, 0xCE]))
    talk.say(SERVER, frames[2])
    last = talk.say(CLIENT)
    assert acked(statistics(talk.packets, tmp_path), "settlements") == [first, first, last]
    monkeypatch.setattr(runner, "LEAST", 0)
    monkeypatch.setattr(runner, "MANY", 1)
    for size in (60, 120, 200, 300):
        assert acked(statistics(talk.packets, tmp_path, size), "settlements") == [first, first, last]


TURNS = st.tuples(
    st.sampled_from(["publish", "confirm", "deliver", "settle", "ask", "ack", "heartbeat"]),
    st.sampled_from([CLIENT, SERVER]), st.booleans(), st.sampled_from([0, 0, 0, 0, 10**9, 25 * 10**9, 61 * 10**9]),
)  # fmt: skip


def any_talk(turns: list[tuple[str, int, bool, int]]) -> Talk:
    """Any requests and answers, acknowledged at once, later or never."""
    talk, published, delivered = Talk().begin(), 0, 0
    for what, side, acks, wait_ns in turns:
        if what == "publish":
            published += 1
            talk.say(CLIENT, b"".join(publish()), acks, wait_ns)
        elif what == "confirm" and published:
            talk.say(SERVER, method(commands.Basic.Ack(delivery_tag=published, multiple=side == SERVER)), acks, wait_ns)
        elif what == "deliver":
            delivered += 1
            frames = deliver(delivered)
            talk.say(SERVER, b"".join(frames[:2]), acks, wait_ns)
            if side == CLIENT:
                talk.say(CLIENT)
            talk.say(SERVER, b"".join(frames[2:]), acks)
        elif what == "settle" and delivered:
            talk.say(CLIENT, method(commands.Basic.Ack(delivery_tag=delivered, multiple=side == CLIENT)), acks, wait_ns)
        elif what == "ask":
            talk.say(CLIENT, method(commands.Queue.Purge(queue="q")), acks, wait_ns)
        elif what == "ack":
            talk.say(side, b"", True, wait_ns)
        else:
            talk.say(side, bytes([8, 0, 0, 0, 0, 0, 0, 0xCE]), acks, wait_ns)
    return talk


@settings(max_examples=examples(100), deadline=None)
@given(turns=st.lists(TURNS, min_size=5, max_size=60), batch_bytes=st.integers(60, 1500), span=st.sampled_from([3, 20]))
def test_any_talk_however_rows_come(
    turns: list[Any], batch_bytes: int, span: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All at once; while the connection goes on; by way of files, in spans of few frames."""
    folder, talk = tmp_path_factory.getbasetemp(), any_talk(turns)
    whole = statistics(talk.packets, folder)
    tables = dissect_packets(talk.packets)
    acks = rows(tables["tcp_acks"])
    for table, found in whole.items():
        for frame, sent, *_, time in found:
            sides = (True, False) if table == "rpcs" else (True,)
            row = {f"{TABLES[table]}_frame_no": frame, f"{TABLES[table]}_ts_ns": sent}
            row |= {"connection_id": acks[0]["connection_id"]} if acks else {"connection_id": 0}
            assert time in [joined(table, row | {"from_client": side}, acks) for side in sides]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "LEAST", 0)
        patched.setattr(runner, "MANY", 1)
        assert statistics(talk.packets, folder, batch_bytes) == whole
        patched.setattr(engine, "Runner", partial(Runner, room=4000))
        assert statistics(talk.packets, folder, batch_bytes) == whole
    assert in_files(tables, span) == whole


def in_files(tables: dict[str, pa.Table], span: int) -> Acked:
    """The same of tables whose rows all go to files."""
    found: Acked = {name: Counter() for name in TABLES}
    whole = engine.Engine(emit=partial(_take, found))
    whole.runner.store = EventStore(needs_of(whole.runner.chains), room=2000, span=span)
    for name in FIRST + then():
        if name in tables:
            table = tables[name].select(whole.runner.columns(name))
            for first in range(0, len(table), 7) or (0,):
                whole.add(whole.runner.prepare(name, table.slice(first, 7)))
    whole.finish()
    return found


def test_messages_of_more_frames_than_are_looked_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However rows come: they may stand in one file, and their acknowledgement in another."""
    monkeypatch.setattr(acknowledged, "LONGEST", 4)
    talk = Talk().begin()
    for size in (40, 30):
        talk.say(SERVER, b"".join(deliver(1, b"x" * size, largest=10)))
        time = talk.say(CLIENT)
    whole = statistics(talk.packets, tmp_path)
    assert acked(whole, "settlements") == [None, time]
    for span in (2, 3, 5):
        assert in_files(dissect_packets(talk.packets), span) == whole


def test_tables_of_an_earlier_release_have_no_acknowledgements(tmp_path: Path) -> None:
    tables, out = tmp_path / "tables", tmp_path / "statistics"
    assert main(["dissect", str(FOLDER / "pika_confirms.pcap"), "-o", str(tables)]) == 0
    shutil.rmtree(tables / "tcp_acks")
    assert main(["analyze", str(tables), "-o", str(out)]) == 2
    note = json.loads((tables / NOTE).read_text())
    (tables / NOTE).write_text(json.dumps(note | {"format": ADDED["tcp_acks"] - 1}))
    assert main(["analyze", str(tables), "-o", str(out)]) == 0
    made = pq.read_table(out / "confirms")
    assert made.num_rows and made["request_acked_ts_ns"].null_count == made.num_rows
