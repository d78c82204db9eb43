"""Statistics of AMQP 0-10 over recordings of Qpid, against a slow, independent reading of them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from amqpscope.pipelines.model.walk import schema
from tests.dissector.recordings import identities
from tests.pipelines.analyzed import walked
from tests.reference.amqp010 import operations
from tests.reference.sessions import statistics

FOLDER = Path(__file__).parents[1] / "captures"
SHARED = Path(os.environ.get("AMQPSCOPE_CAPTURES", Path(__file__).parents[3] / "shared/captures")) / "qpid-0-10"
UNREADABLE = {"framing_errors", "versions", "all_types", "cpp_sasl_crammd5", "cpp_client_test"}
"""What the reference does not read: broken frames, other protocols."""
CAPTURES = {path.stem.removeprefix("qpid_"): path for path in [*SHARED.glob("*.pcap"), *FOLDER.glob("qpid_*.pcap")]}
NAMES = sorted(CAPTURES.keys() - UNREADABLE)
PLACE = "channel channel_epoch"
ENDED = "outcome ended_by multiple"
COLUMNS = {
    "confirms": f"{PLACE} publish_seq exchange routing_key message_id reply_code {ENDED}".split(),
    "settlements": f"{PLACE} delivery_tag consumer_tag queue exchange routing_key requeue {ENDED}".split(),
    "rpcs": f"{PLACE} from_client request queue response reply_code outcome ended_by".split(),
    "commands": f"{PLACE} from_client session command_id method reply_code outcome ended_by".split(),
    "flow_control": f"{PLACE} consumer_tag evidence start_frame_no start_ts_ns end_frame_no end_ts_ns".split(),
    "heartbeats": ["from_client", "negotiated_s", "longest_silence_ns", "missed"],
}
ENDS = {
    "confirms": ("publish", "confirm"), "settlements": ("deliver", "settle"), "rpcs": ("request", "response"),
    "commands": ("sent", "answer"),
}  # fmt: skip
Rows = Counter[tuple[Any, ...]]


def expected(table: str, rows: list[dict[str, Any]]) -> Rows:
    found: Rows = Counter()
    for row in rows:
        values = [row["connection"], *(row[name] for name in COLUMNS[table])]
        if table in ENDS:
            asked, answer = row["asked"], row["answer"]
            values += [asked["frame_no"], asked["packet"], asked["ts_ns"]]
            values += [answer[name] if answer else None for name in ("frame_no", "packet", "ts_ns")]
            values += [row.get("end_ts_ns"), answer["ts_ns"] - asked["ts_ns"] if answer else None]
        found[tuple(values)] += 1
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_reference(name):
    theirs = statistics(operations(CAPTURES[name]))
    ours = walked(CAPTURES[name])
    names = identities(CAPTURES[name])
    assert sum(map(len, theirs.values())) > 0
    for table, columns in COLUMNS.items():
        more = [f"{end}_{at}" for end in ENDS.get(table, ()) for at in ("frame_no", "packet", "ts_ns")]
        more += ["end_ts_ns", "latency_ns"] if more else []
        assert {*columns} <= {*schema(table).names}
        mine = ours[table].to_pylist()
        if table == "flow_control":
            mine = [row for row in mine if row["cause"] == "message-credit"]
        if table == "heartbeats":  # the reference has only those that were tuned and closed
            there = {row["connection"] for row in theirs[table]}
            mine = [row for row in mine if names[row["connection_id"]] in there]
        found: Rows = Counter((names[row["connection_id"]], *(row[c] for c in (*columns, *more))) for row in mine)
        wanted = expected(table, theirs[table])
        assert sorted((found - wanted).elements(), key=repr) == []
        assert sorted((wanted - found).elements(), key=repr) == []
