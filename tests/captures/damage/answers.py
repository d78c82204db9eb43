"""Statistics of damaged recordings, held against those of the undamaged ones.

    python -m tests.captures.damage.answers [--seeds N] [--first SEED] [--way WAY] [--examples] [capture...]

says for each way of damage, and each table that `analyze` writes of pairs, what became of the rows:

- there: rows of the undamaged recordings; found: rows of the damaged ones.
- right: with the answer, and the latency, of the undamaged one, or without an answer where there was none.
- wrong: with a latency that is not that of the undamaged one, for it is of another pair, or there was no answer; or of
  nothing that has a row there.
- blamed: without an answer where there was one, or for another reason than the real one, and not censored: as if it was
  certain that nobody answered.
- censored: without an answer, for the capture may lack it.
- no latency: answered, but without a latency: the match is ambiguous.
- otherwise: right, but another column says what the undamaged one does not.

Of heartbeats, and the credit and the deliveries of streams, wrong are values that differ (of missed heartbeats and the
offsets that streams reached: that are larger).
Rows about frames whose own heads were damaged are left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amqpscope.pipelines.run.local import analyze_folder
from amqpscope.pipelines.statistics import HOUR_NS
from tests.captures.damage.recall import Beginnings, Frame, frames_found, messages_found
from tests.captures.damage.recordings import Recording, recordings
from tests.captures.damage.thinning import THINNED
from tests.captures.damage.ways import ALWAYS_THE_SAME, FLIPPED, HARMFUL, HARMLESS
from tests.dissector.builders import Packet
from tests.dissector.runs import Row, rows

Key = tuple[Any, ...]
WHOLE = "whole"
APART_NS = 2 * HOUR_NS
"""Time between the beginnings of runs: what one lacks is in no window of another one's deliveries."""
SECOND_NS = 1_000_000_000
CENSORED = ("capture-end", "gap", "evicted")
ALL = [*HARMLESS, *HARMFUL, *FLIPPED, *THINNED]
KINDS = ("there", "found", "right", "wrong", "blamed", "censored", "no latency", "otherwise")


class Pairs(NamedTuple):
    """A table of pairs: names of both ends, whether they are messages, what else tells rows apart, and more columns."""

    ask: str
    answer: str
    latency: str = "latency_ns"
    messages: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    says: tuple[str, ...] = ()


PAIRS = {
    "confirms": Pairs(
        "publish", "confirm", messages=("publish",), key=("publisher_id",),
        says=("outcome", "multiple", "returned", "reply_code", "publish_seq", "deduplicated"),
    ),
    "settlements": Pairs(
        "deliver", "settle", messages=("deliver",),
        says=("outcome", "multiple", "requeue", "queue", "consumer_tag", "delivery_tag"),
    ),
    "rpcs": Pairs("request", "response", key=("request",), says=("outcome", "response", "reply_code")),
    "commands": Pairs(
        "sent", "answer", messages=("sent",), key=("method",), says=("outcome", "reply_code", "command_id")
    ),
    "transits": Pairs("deliver", "publish", messages=("deliver", "publish")),
    "flow_control": Pairs(
        "start", "end", "duration_ns", messages=("start",), key=("cause", "consumer_tag"), says=("side", "evidence")
    ),
}  # fmt: skip
VALUES = {
    "heartbeats": ("missed",),
    "stream_credit": ("balance", "zero_since_ts_ns"),
    "stream_deliveries": ("age_ns", "stream_offset", "lag_records"),
}
"""Tables of values; a value that is not known is null."""
LEAST = "possible"
"""What says less than any other value of its column (`evidence`)."""
LESS = ("missed", "stream_offset", "lag_records")
"""Values that may be smaller where less was captured: they are so much at least."""


@dataclass
class Run:
    """A recording as a whole or damaged: its tables, and what its frames and messages are in the whole one."""

    recording: Recording
    way: str
    packets: list[Packet]
    tables: dict[str, pa.Table]
    frames: dict[Key, Key] = field(default_factory=dict)
    messages: dict[Key, Key] = field(default_factory=dict)
    connections: dict[int, int] = field(default_factory=dict)
    damaged: set[Key] = field(default_factory=set)
    """Frames that were not sent so, but may be ones with damaged heads."""

    def __post_init__(self) -> None:
        sent = self.recording.sent
        beginnings = Beginnings(sent, self.packets)
        damaged = beginnings.visible.damaged
        of: dict[int, Counter[int]] = defaultdict(Counter)
        for row, found in frames_found(sent, beginnings, self.tables):
            frame = found.row if isinstance(found, Frame) else found
            if frame is None and any(map(damaged, beginnings.placed(row))):
                self.damaged.add((row["connection_id"], row["frame_no"]))
            if frame is not None:
                self.frames[row["connection_id"], row["frame_no"]] = frame["connection_id"], frame["frame_no"]
                of[row["connection_id"]][frame["connection_id"]] += 1
        for row, message in messages_found(sent, beginnings, rows(self.tables["messages"])):
            if message is not None:
                begins = message["connection_id"], message["first_frame_no"]
                self.messages[row["connection_id"], row["frame_no"]] = begins
        self.connections = {mine: count.most_common(1)[0][0] for mine, count in of.items()}

    def end(self, row: Row, end: str, is_message: bool, identity: int) -> Key | None:
        """What an end of a pair is in the undamaged recording; None: there is no such end.

        Raises:
            KeyError: it is nothing of that.
        """
        frame, packet = row[f"{end}_frame_no"], row[f"{end}_packet"]
        if frame is not None:
            key = identity, frame
            return self.messages[key] if is_message and key in self.messages else self.frames[key]
        return None if packet is None else ("packet", self.packets[packet - 1].interface)

    def rests_on_damage(self, table: str, row: Row) -> bool:
        """Whether a row of statistics is about a frame whose own head was damaged."""
        ends = (PAIRS[table].ask, PAIRS[table].answer) if table in PAIRS else ("",)
        return any(
            (
                row.get(f"{end}_connection_id", row.get("connection_id")),
                row.get(f"{end}_frame_no" if end else "frame_no"),
            )
            in self.damaged
            for end in ends
        )

    @property
    def name(self) -> str:
        return f"{self.recording.name}, {self.way}"


class Pair(NamedTuple):
    """A row of statistics, in terms of the undamaged recording."""

    row: Row
    key: Key | None
    answer: Key | None
    run: Run


def runs_of(found: Iterable[Recording], ways: Iterable[str], seeds: Iterable[int]) -> Iterator[Run]:
    """Each recording as a whole, then damaged in all ways."""
    for recording in found:
        yield Run(recording, WHOLE, recording.capture.packets, recording.tables)
        for way in ways:
            for seed in [0] if way in ALWAYS_THE_SAME else seeds:
                packets = recording.damaged(way, seed)
                yield Run(recording, way, packets, recording.dissect(packets))


def own(
    tables: dict[str, pa.Table], packets: list[Packet], number: int, later_ns: int, ids: dict[int, int]
) -> Iterator[tuple[str, pa.Table]]:
    """The tables of a run with captures, brokers, connections, messages and streams, and at a time, of its own."""
    changed = {
        "connection_id": ids.get,
        "message_id": lambda text: text and f"{number}-{text}",
        "trace_id": lambda text: text and f"{number}-{text}",
        "stream": lambda text: text and f"{number}-{text}",
        "server_ip": lambda text: text and f"{number}-{text}",
        "server_properties": lambda text: text and text.replace('"cluster_name":"', f'"cluster_name":"{number}-'),
        "capture": lambda path: path and f"{number}.pcap",
        "body_hash": lambda value: None if value is None else value ^ number,
    }
    cut = {len(packet.data) for packet in packets if packet.wire > len(packet.data)}
    captures = {"capture": f"{number}.pcap", "snap_length": cut.pop() if len(cut) == 1 else None}
    yield "captures", pa.Table.from_pylist([captures], tables["captures"].schema)
    for name, table in tables.items():
        if name == "captures":
            continue
        mine = table
        for at, column in enumerate(table.schema):
            if column.name in changed:
                values = [changed[column.name](value) for value in table[column.name].to_pylist()]
                mine = mine.set_column(at, column, pa.array(values, column.type))
            elif column.name.endswith("ts_ns"):
                mine = mine.set_column(at, column, pc.add(table[column.name], later_ns))
            elif column.name == "chunk_timestamp":
                mine = mine.set_column(at, column, pc.add(table[column.name], later_ns // 1_000_000))
        yield name, mine


def analyzed(runs: Iterable[Run], folder: Path) -> dict[str, list[tuple[Run, Row]]]:
    """The rows of all tables of statistics, with the runs that they are of, analyzed all at once.

    Args:
        runs: any.
        folder: empty; for tables and statistics.
    """
    parts: dict[str, list[pa.Table]] = defaultdict(list)
    owners: dict[int, tuple[int, Run, int]] = {}
    began_ns = 0
    for number, run in enumerate(runs, 1):
        first_ns = run.recording.capture.packets[0].ts_ns
        began_ns = began_ns or first_ns
        later_ns = (number * APART_NS + began_ns - first_ns) // SECOND_NS * SECOND_NS
        mine = sorted(set(run.tables["connections"]["connection_id"].to_pylist()))
        ids = {identity: 1_000_000 * number + k for k, identity in enumerate(mine)}
        owners |= {ids[identity]: (later_ns, run, identity) for identity in mine}
        for name, table in own(run.tables, run.packets, number, later_ns, ids):
            parts[name].append(table)
        run.tables = {}
    for name, found in parts.items():
        (folder / "tables" / name).mkdir(parents=True)
        pq.write_table(pa.concat_tables(found), folder / "tables" / name / "part-0.parquet")
    analyze_folder(folder / "tables", folder / "statistics", {}, relations=())
    result: dict[str, list[tuple[Run, Row]]] = {}
    for name in (*PAIRS, *VALUES):
        result[name] = []
        columns = ("publish_connection_id", "deliver_connection_id") if name == "transits" else ("connection_id",)
        for row in pq.read_table(folder / "statistics" / name).to_pylist():
            later_ns, run, _ = owners[row[columns[-1]]]
            row |= {column: row[column] and owners[row[column]][2] for column in columns}
            row |= {name: value and value - later_ns for name, value in row.items() if name.endswith("ts_ns")}
            result[name].append((run, row))
    return result


def pair_of(table: str, run: Run, row: Row) -> Pair:
    """The row in terms of the undamaged recording; without a key where it is of nothing of that."""
    if table in VALUES:
        connection = run.connections.get(row["connection_id"])
        if table == "heartbeats":
            return Pair(row, None if connection is None else (connection, row["from_client"]), None, run)
        return Pair(row, run.frames.get((row["connection_id"], row["frame_no"])), None, run)
    pairs = PAIRS[table]
    ask, answer = (row.get(f"{end}_connection_id", row.get("connection_id")) for end in (pairs.ask, pairs.answer))
    extra = [row[name] for name in pairs.key]
    if table == "confirms" and row["protocol"] == "rabbitmq-stream":
        extra.append(row["publish_seq"])
    try:
        asked = run.end(row, pairs.ask, pairs.ask in pairs.messages, ask)
    except KeyError:
        return Pair(row, None, None, run)
    try:
        answered = run.end(row, pairs.answer, pairs.answer in pairs.messages, answer)
    except KeyError:
        answered = ("never sent",)
    return Pair(row, asked and (*asked, *extra), answered, run)


def judged(table: str, mine: Pair, theirs: list[Pair]) -> str:
    """What became of a row, one of KINDS, when these are the rows of the same in the undamaged recording."""
    if table in VALUES:
        return _valued(table, mine, theirs)
    pairs, row = PAIRS[table], mine.row
    retimed = mine.run.way in HARMLESS
    latency = row[pairs.latency]
    if row[f"{pairs.answer}_ts_ns"] is None:
        by = row.get("ended_by")
        if by in CENSORED or row.get("outcome") in ("unknown", "auto") or table in ("transits", "flow_control"):
            return "right" if any(each.row[f"{pairs.answer}_ts_ns"] is None for each in theirs) else "censored"
        return "right" if any(each.answer is None and each.row["ended_by"] == by for each in theirs) else "blamed"
    same = [
        each for each in theirs
        if each.answer == mine.answer and (retimed or latency is None or each.row[pairs.latency] in (None, latency))
    ]  # fmt: skip
    if latency is None:
        return "right" if any(each.row[pairs.latency] is None for each in same) else "no latency"
    same = [each for each in same if each.row[pairs.latency] is not None]
    if not same:
        return "wrong"
    agree = any(all(row[name] in (None, LEAST, each.row[name]) for name in pairs.says) for each in same)
    return "right" if agree or (retimed and table == "flow_control") else "otherwise"


def _valued(table: str, mine: Pair, theirs: list[Pair]) -> str:
    def fits(name: str, each: Pair) -> bool:
        value, true = mine.row[name], each.row[name]
        return value is None or value == true or (name in LESS and true is not None and value <= true)

    if not any(all(fits(name, each) for name in VALUES[table]) for each in theirs):
        return "wrong"
    same = any(all(mine.row[name] == each.row[name] for name in VALUES[table]) for each in theirs)
    return "right" if same else "censored"


@dataclass
class Judgement:
    """How many rows are what, by way and table; and the rows that are wrong in any manner, with those of the whole."""

    counts: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    examples: list[tuple[str, str, Pair, list[Pair]]] = field(default_factory=list)


def judge(statistics: dict[str, list[tuple[Run, Row]]]) -> Judgement:
    """Hold the rows of damaged recordings against those of the whole ones."""
    result = Judgement()
    for table, found in statistics.items():
        by_key: dict[Key, list[Pair]] = defaultdict(list)
        damaged: list[Pair] = []
        for run, row in found:
            if run.rests_on_damage(table, row):
                continue
            each = pair_of(table, run, row)
            if run.way != WHOLE:
                damaged.append(each)
            elif each.key is not None:
                by_key[run.recording.name, *each.key].append(each)
        there = Counter(key[0] for key, rows in by_key.items() for _ in rows)
        for run in {id(each.run): each.run for each in damaged}.values():
            result.counts[run.way, table]["there"] += there[run.recording.name]
        for mine in damaged:
            if mine.run.way in HARMLESS and table not in PAIRS:
                continue
            theirs = by_key.get((mine.run.recording.name, *mine.key), []) if mine.key else []
            kind = judged(table, mine, theirs) if theirs else "no latency"
            if not theirs and mine.row.get(PAIRS[table].latency if table in PAIRS else "") is not None:
                kind = "wrong"
            result.counts[mine.run.way, table].update(("found", kind))
            if kind in ("wrong", "blamed", "otherwise"):
                result.examples.append((kind, table, mine, theirs))
    return result


def main(arguments: list[str]) -> int:
    """Print what was found; 1 when a row is wrong."""
    assert __doc__
    parser = argparse.ArgumentParser(
        prog="python -m tests.captures.damage.answers", description=__doc__.split("\n", 1)[0], epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=2, help="how often each recording is damaged (default 2)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument(
        "--way", action="append", choices=[*HARMLESS, *HARMFUL, *FLIPPED, *THINNED], help="default: all"
    )
    parser.add_argument("--examples", action="store_true", help="print the rows that are wrong, blamed or otherwise")
    parser.add_argument("captures", nargs="*", type=Path, help="default: the recordings")
    given = parser.parse_args(arguments)
    ways = given.way or ALL
    found = (Recording.of(path, compiled=True) for path in given.captures or recordings())
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(given.first, given.first + given.seeds)
        result = judge(analyzed(runs_of(found, ways, seeds), Path(folder)))
    if given.examples:
        for kind, table, mine, theirs in result.examples:
            print(f"{kind}: {table}, {mine.run.name}: {_short(mine)}; whole: {'; '.join(map(_short, theirs))}")
    print(f"| damage | table | {' | '.join(KINDS)} |")
    print(f"|---|---|{'--:|' * len(KINDS)}")
    for way in ways:
        for table in (*PAIRS, *VALUES):
            if count := result.counts.get((way, table)):
                print(f"| {way} | {table} | {' | '.join(str(count[kind]) for kind in KINDS)} |")
    return int(any(count["wrong"] for count in result.counts.values()))


def _short(each: Pair) -> str:
    values = {name: value for name, value in each.row.items() if value is not None and not name.endswith("capture")}
    return f"{each.key} -> {each.answer} {values}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
