"""Made-up and recorded connections of the stream protocol as tables, and walks over them in every manner."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.walk import Walk
from amqpscope.pipelines.run.engine import in_order
from tests.dissector.recordings import ours
from tests.pipelines.scenario import arrow_table, ended
from tests.pipelines.walks.properties import SIZES, manners, over

CAPTURES = Path(__file__).parents[2] / "captures"
RECORDED = ("stream_calls", "stream_chunks", "stream_errors", "stream_js", "stream_rstream", "stream_super")
TABLES = ("connections", "anomalies", "stream_frames", "messages")
Row = dict[str, Any]
Tables = Mapping[str, pa.Table]


class Talk:
    """One connection of the stream protocol; each call appends a frame, at 1000 ns a frame."""

    def __init__(self, number: int, **columns: Any) -> None:
        self.number = number
        self.frames: list[Row] = []
        self.messages: list[Row] = []
        self.anomalies: list[Row] = []
        self.columns = columns

    def lose(self, **columns: Any) -> None:
        """The last frame has a gap before it."""
        names = ("connection_id", "frame_no", "capture", "packet", "ts_ns", "from_client")
        self.anomalies.append({k: self.frames[-1][k] for k in names} | {"code": "tcp-gap"} | columns)

    def frame(self, from_client: bool, command: str | None, *, is_response: bool = False, **columns: Any) -> int:
        no = len(self.frames)
        leading = {
            "connection_id": self.number,
            "capture": "a.pcap",
            "packet": no + 1,
            "ts_ns": no * 1000,
            "version": 1,
        }
        place = {"frame_no": no, "from_client": from_client, "command": command, "is_response": is_response}
        self.frames.append(leading | columns | place)
        return no

    def ask(self, command: str, correlation: int, code: int = 1, reported: Row | None = None, **columns: Any) -> None:
        """A request and its answer."""
        self.frame(True, command, correlation_id=correlation, **columns)
        answer = {"correlation_id": correlation, "response_code": code} | (reported or {})
        self.frame(False, command, is_response=True, **answer)

    def publish(
        self, *numbers: int, epoch: int | None = 1, publisher: int = 1, records: int = 1, **columns: Any
    ) -> None:
        no = self.frame(True, "publish", publisher_id=publisher)
        row = {k: v for k, v in self.frames[no].items() if k not in ("command", "is_response", "version")}
        row |= {"protocol": "rabbitmq-stream", "kind": "publish", "publisher_epoch": epoch}
        for number in numbers:
            self.messages += [row | {"publish_seq": number, "stream": "s", "body_size": 10} | columns] * records

    def confirm(self, *numbers: int, publisher: int = 1) -> None:
        self.frame(False, "publish-confirm", publisher_id=publisher, publishing_ids=json.dumps(list(numbers)))

    def refuse(self, *errors: tuple[int, int], publisher: int = 1) -> None:
        reported = json.dumps([{"publishing_id": n, "code": c} for n, c in errors], separators=(",", ":"))
        self.frame(False, "publish-error", publisher_id=publisher, publishing_errors=reported)


def tables_of(*talks: Talk) -> dict[str, pa.Table]:
    rows = {
        "stream_frames": [row for talk in talks for row in talk.frames],
        "messages": [row for talk in talks for row in talk.messages],
        "anomalies": [row for talk in talks for row in talk.anomalies],
        "connections": [
            ended({
                "connection_id": talk.number, "protocol": "rabbitmq-stream", "last_ts_ns": len(talk.frames) * 1000,
                "lost_bytes": 0, "server_ip": "::1", "rtt_ns": 10_000,
            } | talk.columns)
            for talk in talks
        ],
    }  # fmt: skip
    return {name: arrow_table(name, found) for name, found in rows.items()}


def recorded(name: str) -> dict[str, pa.Table]:
    return {table: ours(CAPTURES / f"{name}.pcap")[table] for table in TABLES}


def together(parts: Iterable[Tables]) -> dict[str, pa.Table]:
    parts = list(parts)
    return {table: pa.concat_tables([part[table] for part in parts]) for table in parts[0]}


def walk(tables: Tables, make: Callable[[], Walk], size: int = 1 << 17) -> dict[str, list[pa.Table]]:
    """All that a walk yields, partial results included, in the order in which it comes."""
    return over(make, in_order(tables, [make()]), size).parts


def rows_of(parts: Mapping[str, Sequence[pa.Table]], name: str) -> list[Row]:
    return pa.concat_tables(parts[name]).to_pylist() if name in parts else []


def same_in_every_manner(tables: Tables, make: Callable[[], Walk], sizes: Sequence[int] = SIZES) -> None:
    """Any size of batches, and state that moves (see `manners`), gives the same rows; so does each connection alone."""

    def sorted_rows(parts: Mapping[str, Sequence[pa.Table]]) -> dict[str, list[str]]:
        return {name: sorted(map(repr, rows_of(parts, name))) for name in sorted(parts)}

    ordered = list(in_order(tables, [make()]))
    expected = sorted_rows(over(make, ordered, 1 << 17).parts)
    assert expected
    for size, moved in manners(sizes):
        assert sorted_rows(over(make, ordered, size, moved).parts) == expected, (size, moved)
    one_by_one: dict[str, list[str]] = {}
    ids = {row for table in tables.values() for row in table["connection_id"].to_pylist()}
    for number in ids:
        alone = {name: table.filter(pc.equal(table["connection_id"], number)) for name, table in tables.items()}
        for name, rows in sorted_rows(walk(alone, make)).items():
            one_by_one.setdefault(name, []).extend(rows)
    assert {name: sorted(rows) for name, rows in sorted(one_by_one.items())} == expected
