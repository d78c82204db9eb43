"""Requests of the stream protocol: recorded ones against plain loops, and what loss and closes make of them."""

from __future__ import annotations

from typing import Any

import pytest

from amqpscope.pipelines.requests import numbered
from amqpscope.pipelines.run.engine import walked
from amqpscope.pipelines.stream.rpcs import ANSWERED_ALWAYS, Rpcs
from tests.dissector.recordings import ours
from tests.dissector.runs import CAPTURES
from tests.pipelines.scenario import arrow_table, by_connection, check
from tests.pipelines.walks.properties import checked

Row = dict[str, Any]


class Streams:
    """A connection of the stream protocol; each call appends a frame, at 1000 ns a frame."""

    def __init__(self, **columns: Any) -> None:
        self.frames: list[Row] = []
        self.anomalies: list[Row] = []
        self.columns = columns

    def frame(self, from_client: bool, command: str | None, response: bool | None = False, **columns: Any) -> int:
        number = len(self.frames)
        leading = {"connection_id": 1, "frame_no": number, "capture": "a.pcap", "packet": number + 1}
        leading |= {"ts_ns": number * 1000, "from_client": from_client, "is_partial": False}
        self.frames.append(leading | {"command": command, "is_response": response} | columns)
        return number

    def ask(self, command: str, correlation: int | None, client: bool = True, **columns: Any) -> int:
        return self.frame(client, command, correlation_id=correlation, **columns)

    def tell(self, command: str, correlation: int | None, code: int | None = 1, client: bool = False) -> int:
        return self.frame(client, command, True, correlation_id=correlation, response_code=code)

    def lose(self, from_client: bool) -> int:
        where = {"connection_id": 1, "frame_no": len(self.frames), "ts_ns": len(self.frames) * 1000}
        self.anomalies.append(where | {"from_client": from_client, "code": "tcp-gap"})
        return len(self.frames)

    def tables(self) -> dict[str, Any]:
        row = {"connection_id": 1, "protocol": "rabbitmq-stream", "last_ts_ns": len(self.frames) * 1000}
        rows = {"connections": [row | self.columns], "stream_frames": self.frames, "anomalies": self.anomalies}
        return {name: arrow_table(name, found) for name, found in rows.items()}

    def rows(self) -> list[Row]:
        return sorted(checked(Rpcs, self.tables()), key=lambda row: (row["connection_id"], row["request_frame_no"]))


@pytest.mark.parametrize("capture", [path for path in CAPTURES if path.stem.startswith("stream")], ids=lambda p: p.stem)
def test_recorded(capture):
    """Plainly: an answer has the number of its request; tune has none, and one a connection."""
    tables = ours(capture)
    rows = walked(tables, [Rpcs()])["rpcs"].to_pylist()
    got = {(r["connection_id"], r["request_frame_no"]): r for r in rows if not r["channel_epoch"] and not r["channel"]}
    asked: dict[tuple[Any, ...], Row] = {}
    answers = {}
    frames = sorted(tables["stream_frames"].to_pylist(), key=lambda row: (row["connection_id"], row["frame_no"]))
    for row in frames:
        if row["command"] not in ANSWERED_ALWAYS or row["is_response"] is None:
            continue
        if row["correlation_id"] is None and row["command"] != "tune":
            continue
        side = row["from_client"] != row["is_response"]
        key = row["connection_id"], row["command"], row["correlation_id"], side
        if row["is_response"]:
            request = asked.pop(key)
            answers[request["connection_id"], request["frame_no"]] = row
        else:
            asked[key] = row
    assert set(got) >= set(answers) | {(r["connection_id"], r["frame_no"]) for r in asked.values()}
    for key, answer in answers.items():
        code = answer["response_code"]
        own = got[key]
        assert own["response_frame_no"] == answer["frame_no"]
        assert own["latency_ns"] == answer["ts_ns"] - own["request_ts_ns"]
        assert own["response"] == own["request"] + "-response"
        well = code in (None, 1, 10)
        assert (own["outcome"], own["reply_code"]) == (("ok", None) if well else ("error", code))
    if capture.stem == "stream_errors":
        refused = [(r["request"], r["reply_code"]) for r in rows if r["response"] == "close"]
        assert sorted(refused) == [("create", 13), ("exchange-command-versions", 13), ("stream-stats", 13)]


def test_pair_by_command_number_and_side():
    s = Streams()
    s.ask("create", 1)
    s.ask("delete", 1)
    s.ask("consumer-update", 1, client=False)
    s.frame(False, "tune")
    s.tell("delete", 1)
    s.tell("create", 1, code=2)
    s.frame(True, "tune", True)
    s.tell("consumer-update", 1, client=True)
    s.tell("create", 9)  # of a request before the capture
    check(
        s.rows(),
        [
            {"request": "create", "response_frame_no": 5, "outcome": "error", "reply_code": 2, "from_client": True},
            {"request": "delete", "response_frame_no": 4, "outcome": "ok", "reply_code": None, "queue": None},
            {"request": "consumer-update", "response_frame_no": 7, "from_client": False, "latency_ns": 5000},
            {"request": "tune", "response": "tune-response", "response_frame_no": 6, "from_client": False},
        ],
    )


def test_a_number_that_is_used_anew():
    s = Streams()
    s.ask("create", 1)
    second = s.ask("create", 1)
    s.tell("create", 1)
    s.tell("create", 1)
    check(
        s.rows(),
        [
            {"request_frame_no": 0, "outcome": "none", "ended_by": "capture-end", "end_ts_ns": 4000},
            {"request_frame_no": second, "outcome": "ok", "response_frame_no": 2},
        ],
    )


def test_closed_over_the_oldest_request():
    s = Streams(closed_by="server")
    s.ask("create", 1)
    s.ask("delete", 2)
    s.ask("close", 7, client=False, closing_code=13, closing_reason="unknown frame")
    s.ask("create", 3)
    s.tell("close", 7, client=True)
    check(
        s.rows(),
        [
            {
                "response": "close",
                "outcome": "error",
                "reply_code": 13,
                "reply_text": "unknown frame",
                "latency_ns": 2000,
            },
            {"outcome": "none", "ended_by": "connection-close", "end_ts_ns": 2000, "reply_text": None},
            {"request": "close", "outcome": "ok"},
            {"outcome": "none", "ended_by": "discarded", "end_ts_ns": 2000},
        ],
    )


def test_closed_over_one_of_two():
    """The answer to the first may be lost, so the error may be that of either."""
    s = Streams(closed_by="server")
    s.ask("create", 1)
    s.lose(False)
    s.ask("delete", 2)
    s.ask("close", 7, client=False, closing_code=13)
    check(s.rows(), [*2 * [{"outcome": "none", "ended_by": "gap"}], {"request": "close"}])


def test_the_first_gap_after_the_request_counts():
    s = Streams()
    s.ask("create", 1)
    s.lose(True)
    s.ask("create", 2)
    first = s.lose(False)
    s.tell("create", 2)
    s.lose(False)
    s.tell("delete", 9)
    s.ask("close", 3, client=False, closing_code=13)
    s.ask("create", 4)
    check(
        s.rows(),
        [
            {"outcome": "none", "ended_by": "gap", "end_ts_ns": first * 1000},
            {"outcome": "ok", "response_frame_no": 2},
            {"request": "close", "from_client": False, "outcome": "none"},  # and nobody knows whose error it is
            {"ended_by": "discarded"},
        ],
    )


def test_frames_that_are_cut():
    s = Streams()
    s.ask("create", 1)
    s.frame(False, "deliver", is_partial=True)
    s.ask("delete", None, is_partial=True)  # of which the number is not known
    cut = s.frame(False, None, None, is_partial=True)
    check(s.rows(), [{"request": "create", "outcome": "none", "ended_by": "gap", "end_ts_ns": cut * 1000}])
    s.frames[cut] |= {"is_partial": False}
    check(s.rows(), [{"request": "create", "outcome": "none", "ended_by": "capture-end"}])


def test_of_one_direction_alone_the_answers_are_missing():
    s = Streams()
    s.ask("peer-properties", 1)
    s.ask("create", 2)
    check(s.rows(), [{"ended_by": "gap", "end_ts_ns": 1000}] * 2)


def test_what_is_evicted(monkeypatch):
    monkeypatch.setattr(numbered, "OPEN_AT_MOST", 2)
    s = Streams()
    for number in range(4):
        s.ask("create", number)
    s.tell("create", 0)
    s.tell("create", 3)
    check(
        s.rows(),
        [
            {"ended_by": "evicted", "end_ts_ns": 2000},
            {"ended_by": "evicted", "end_ts_ns": 3000},
            {"ended_by": "capture-end"},
            {"outcome": "ok", "response_frame_no": 5},
        ],
    )


def test_many_numbers():
    s = Streams()
    for number in range(300):
        s.ask("create", number)
    for number in reversed(range(300)):
        s.tell("create", number)
    rows = by_connection(walked(s.tables(), [Rpcs()], size=7)["rpcs"], "request_frame_no")[1]
    assert [row["response_frame_no"] for row in rows] == [599 - number for number in range(300)]


def test_requests_name_their_stream():
    c = Streams()
    for number, (command, columns) in enumerate(
        [("create", {"stream": "s"}), ("create-super-stream", {"super_stream": "u"}), ("query-offset", {})]
    ):
        c.ask(command, number, **columns)
        c.tell(command, number)
    assert [row["stream"] for row in c.rows()] == ["s", "u", None]
