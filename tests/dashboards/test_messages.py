"""The command `messages`: a line per message, selected, with its confirm or settlement and how late it came."""

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

import amqpscope
from amqpscope.dashboards import message_lines
from amqpscope.dissector.cli.program import main
from tests.dissector.builders import Packet, pcap
from tests.dissector.wire import CLIENT, SERVER, Tape, content, deliver, handshake, method, opening, publish
from tests.pipelines.analyzed import folder_of

CAPTURES = Path(__file__).parents[1] / "captures"
EVIL = "m\x1b[2J"


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """What the command prints on standard output."""
    capsys.readouterr()
    assert main(["messages", *map(str, words)]) == 0
    return capsys.readouterr().out


def objects(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(capsys, *words, "--format", "json").splitlines()]


def tape() -> Tape:
    """Packets a millisecond apart: three publishes, of which the first two are confirmed; two deliveries, one acked."""
    consume = commands.Basic.Consume(queue="q", consumer_tag="c")
    direct = [method(commands.Basic.Publish(exchange="", routing_key="q")), *content(b"xyz", message_id="direct")]
    turns = [
        *handshake(), *opening(1),
        (CLIENT, method(commands.Confirm.Select())), (SERVER, method(commands.Confirm.SelectOk())),
        (CLIENT, method(consume)), (SERVER, method(commands.Basic.ConsumeOk(consumer_tag="c"))),
        (CLIENT, b"".join(publish(b"first", message_id=EVIL))), (CLIENT, b"".join(publish(b"second"))),
        (SERVER, method(commands.Basic.Ack(delivery_tag=2, multiple=True))),
        (SERVER, b"".join(deliver(1))), (CLIENT, method(commands.Basic.Ack(delivery_tag=1))),
        (SERVER, b"".join(deliver(2))), (CLIENT, b"".join(direct)),
        (CLIENT, method(commands.Basic.Qos(prefetch_count=1))), (SERVER, method(commands.Basic.QosOk())),
    ]  # fmt: skip
    return Tape().play(turns)


def saved(packets: list[Packet], path: Path) -> Path:
    path.write_bytes(pcap(packets))
    return path


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its statistics; that captures give the same lines is a test of the demo."""
    folder = tmp_path_factory.mktemp("messages")
    stats: Path = amqpscope.analyze(saved(tape().packets, folder / "tape.pcap"), folder / "stats")
    return stats


def test_each_message_has_its_answer_and_how_late_it_came(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = objects(capsys, capture)
    ms = 1_000_000
    shown = ("kind", "exchange", "routing_key", "queue", "size", "outcome", "waited_ns")
    assert [tuple(row.get(name) for name in shown) for row in rows] == [
        ("publish", "e", "k", None, 5, "ack", 2 * ms),
        ("publish", "e", "k", None, 6, "ack", 1 * ms),
        ("deliver", "e", "k", "q", 1, "ack", 1 * ms),
        ("deliver", "e", "k", "q", 1, "none", 3 * ms),
        ("publish", "", "q", "q", 3, "none", 2 * ms),
    ]
    first = rows[0]["packet"]
    assert [row["packet"] - first for row in rows] == [0, 1, 3, 5, 6]
    assert [row.get("answer_packet", first) - first for row in rows] == [2, 2, 4, 0, 0]
    assert [row.get("ended_by") for row in rows] == [None, None, None, "capture-end", "capture-end"]


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (["--exchange", "e"], [0, 1, 2, 3]),
        (["--exchange", ""], [4]),
        (["--routing-key", "q"], [4]),
        (["--queue", "q"], [2, 3, 4]),
        (["--message-id", "direct"], [4]),
        (["--message-id", "direct", "--message-id", EVIL], [0, 4]),
        (["--slower-than", "1ms"], [0, 3, 4]),
        (["--unanswered"], [3, 4]),
        (["--unanswered", "--exchange", "e"], [3]),
        (["-c", "2"], [0, 1]),
    ],
)
def test_selection(options: list[str], chosen: list[int], capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = objects(capsys, capture)
    assert objects(capsys, capture, *options) == [rows[at] for at in chosen]


def test_what_a_gap_may_hide_is_unknown_and_not_unanswered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packets = tape().packets
    answer = objects(capsys, saved(packets, tmp_path / "whole.pcap"))[0]["answer_packet"]
    lossy = saved([*packets[: answer - 1], *packets[answer:]], tmp_path / "lossy.pcap")
    lines = said(capsys, lossy).splitlines()
    assert [line.endswith("unknown: a gap") for line in lines[1:3]] == [True, True]
    assert all(row.get("ended_by") != "gap" for row in objects(capsys, lossy, "--unanswered"))
    assert all(row.get("ended_by") != "gap" for row in objects(capsys, lossy, "--slower-than", "0ns"))


def test_no_match_says_so(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json"):
        assert main(["messages", str(capture), "--queue", "other", "--format", form]) == 0
        assert capsys.readouterr() == ("", "amqpscope: none of 5 messages matches\n")


def test_formats_have_the_same_messages_and_names_from_the_wire_control_nothing(
    capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, table = said(capsys, capture), said(capsys, capture, "--format", "csv")
    assert "\x1b" not in text + table and "m\\x1b[2J" in table
    rows = list(csv.DictReader(io.StringIO(table)))
    given = [{k: str(v).lower() for k, v in row.items() if k != "message_id"} for row in objects(capsys, capture)]
    assert [{name: row[name].lower() for name in one} for row, one in zip(rows, given, strict=True)] == given
    assert len(text.splitlines()) == 1 + len(rows)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [80, 130])
@pytest.mark.parametrize("name", ["demo", "stream_js", "qpid_messaging"])
def test_lines_fit_the_terminal(
    name: str, width: int, demo_statistics: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = said(capsys, demo_statistics if name == "demo" else CAPTURES / f"{name}.pcap").splitlines()
    assert len(lines) > 8 and max(map(len, lines)) <= width


def test_all_that_was_published_in_confirm_mode_and_delivered_is_there_in_order_of_time(
    demo_statistics: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = objects(capsys, demo_statistics)
    assert [row["ts_ns"] for row in rows] == sorted(row["ts_ns"] for row in rows)
    frames = amqpscope.frames(CAPTURES / "demo.pcap")
    seen = Counter(row["method"] for row in frames if row.get("method", "").startswith("basic."))
    found = Counter(row["kind"] for row in rows)
    assert found["deliver"] == seen["basic.deliver"] and found["get"] == seen["basic.get-ok"]
    names = {row["client"] for row in rows}
    assert {"billing", "statistics"} <= names
    of_one = objects(capsys, demo_statistics, "--message-id", "order-496")
    assert {row["kind"] for row in of_one} == {"publish", "deliver"}
    assert all(row["publish_packet"] == of_one[0]["packet"] for row in of_one[1:])


@pytest.mark.parametrize("name", ["orders_pika", pytest.param("demo", marks=pytest.mark.thorough)])
def test_captures_give_the_lines_of_their_statistics(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert objects(capsys, CAPTURES / f"{name}.pcap") == objects(capsys, folder_of(name)) != []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["rpc_calls", "orders_pika", "publish_before_confirm", "lossy_link", "qpid_messaging"])
def test_every_publish_has_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    capture = CAPTURES / f"{name}.pcap"
    table = "amqp010_frames" if name.startswith("qpid") else "amqp091_frames"
    sent = {"basic.publish"} if table == "amqp091_frames" else {"message.transfer"}
    frames = amqpscope.read(capture)
    methods = frames[table].read_all().select(["connection_id", "method", "from_client"]).to_pylist()
    published = Counter(row["connection_id"] for row in methods if row["method"] in sent and row["from_client"])
    lines = [row for row in objects(capsys, capture) if row["kind"] == "publish"]
    assert len({(row["connection_id"], row["frame_no"]) for row in lines}) == len(lines)
    assert Counter(int(row["connection_id"]) for row in lines) == published
    assert published


def test_publishes_that_nobody_answers_and_nobody_gets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [
        *handshake(), *opening(1),
        (CLIENT, b"".join(publish(b"first", message_id="m"))),
        (CLIENT, b"".join([method(commands.Basic.Publish(exchange="", routing_key="q")), *content(b"xyz")])),
    ]  # fmt: skip
    made = saved(Tape().play(turns).packets, tmp_path / "made.pcap")
    shown = ("kind", "exchange", "routing_key", "queue", "message_id", "size", "outcome")
    assert [tuple(row.get(name) for name in shown) for row in objects(capsys, made)] == [
        ("publish", "e", "k", None, "m", 5, None),
        ("publish", "", "q", "q", None, 3, None),
    ]
    assert said(capsys, made).splitlines()[1].endswith(" -")
    assert objects(capsys, made, "--unanswered") == []


def test_streams_have_confirms_and_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    rows = objects(capsys, CAPTURES / "stream_js.pcap", "--queue", "js")
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["publish"] and kinds["deliver"]
    assert {row["outcome"] for row in rows if row["kind"] == "publish"} == {"ack"}
    assert sum(row["records"] for row in rows if row["kind"] == "deliver") == 8
    assert message_lines.answer(rows[-1] | {"outcome": None}) == "3 from 5"


def test_a_publish_whose_number_is_not_known() -> None:
    """In a connection that began before the capture: no bytes are missing, but nobody knows which confirm is its."""
    row: dict[str, Any] = dict.fromkeys(
        ("incomplete", "waited_ns", "latency_ns", "returned", "requeue", "first_offset")
    )
    row |= {"kind": "publish", "outcome": "none", "ended_by": "gap", "publish_seq": None}
    assert message_lines.answer(row) == "unknown number"
    for other in ({"publish_seq": 7}, {"kind": "deliver"}):
        assert message_lines.answer(row | other) == "unknown: a gap"
