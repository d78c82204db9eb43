"""What went wrong stands first on the page, with its count, its subject, its first packet and a filter."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqpscope.dashboards import blocked, errors, findings, page, refusals, verdicts
from amqpscope.dashboards.section import Finding
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.cli.program import main
from amqpscope.pipelines.api import analyze
from tests.dashboards import synthetic
from tests.dashboards.refusing import refusing

START, SECOND = synthetic.START, synthetic.SECOND


@pytest.fixture
def refused(tmp_path: Path) -> Tables:
    """1,000 of 2,000 publishes refused, a publisher blocked for 3.67 s, channels closed; all connections fine."""
    return Tables(*refusing(tmp_path))


def listed(tables: Tables) -> list[Finding]:
    return findings.section(tables).findings


def test_refused_returned_blocked_and_channel_errors_stand_first(refused: Tables) -> None:
    texts = [f.text for f in listed(refused)]
    assert texts == [
        "1,000 of 2,000 publishes refused (nack)",
        "3 of 2,000 publishes returned (312 no-route)",
        "Publishers blocked for 3.67 s (low on memory)",
        "1 channel closed with an error: 404 NOT_FOUND - no queue 'invoices' in vhost '/'",
        "1 channel closed with an error: 406 PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'billing'",
        "1 channel closed with an error: 406 PRECONDITION_FAILED - unknown delivery tag 9",
    ]
    sections = page.sections(refused)
    assert [s.anchor for s in sections[:3]] == ["findings", "captured", "verdicts"]


def test_a_finding_has_its_subject_its_first_packet_and_a_filter(refused: Tables) -> None:
    nack, returned, stop, close = listed(refused)[:4]
    assert nack.subject == 'exchange "orders", 10.0.0.7:50001 → 10.0.0.2:5672'
    assert (nack.capture, nack.packet) == ("orders.pcap", 102)
    assert nack.first == "first: packet 102 of orders.pcap, 2026-10-14 17:46:40.007000 UTC"
    assert nack.filter == "tcp.port == 50001 && amqp.method.class == 60 && amqp.method.method == 120"
    assert returned.packet == 107
    assert stop.packet == 4711
    assert close.subject.startswith('queue.declare, queue "invoices", ')
    assert close.filter.endswith("&& amqp.method.method == 40 && amqp.method.arguments.reply_code == 404")


def test_the_verdict_is_about_connections_only(refused: Tables) -> None:
    text = page.render(refused)
    assert "No connection failed or ended badly" not in text
    assert verdicts.sentence(refused) == "Connections: 2 of 2 came up, none ended badly."
    assert text.index("publishes refused") < text.index("Connections: 2 of 2 came up")
    assert "is under Findings." in verdicts.section(refused).empty


def test_older_statistics_say_what_they_can(tmp_path: Path) -> None:
    tables = Tables(*refusing(tmp_path, reasons=False))
    shutil.rmtree(tmp_path / "tables" / "amqp091_frames")
    for table, column in (("flow_control", "reason"), ("rpcs", "reply_text"), ("rpcs", "queue")):
        part = next((tmp_path / "stats" / table).glob("*.parquet"))
        pq.write_table(pq.read_table(part).drop_columns([column]), part)
    texts = [f.text for f in listed(tables)]
    assert texts[:3] == [
        "1,000 of 2,000 publishes refused (nack)",
        "3 of 2,000 publishes returned (312 no-route)",
        "Publishers blocked for 3.67 s",
    ]
    assert texts[3:] == [
        "1 channel closed with an error: 404 not-found",
        "1 channel closed with an error: 406 precondition-failed",
    ]


def test_reasons_and_texts_are_looked_up_in_frames(tmp_path: Path) -> None:
    tables, stats = refusing(tmp_path, reasons=False)
    shutil.rmtree(tables / "amqp091_frames")
    close = {"method": "channel.close", "connection_id": 2, "from_client": False, "ts_ns": START}
    synthetic.write(
        tables,
        "amqp091_frames",
        [
            {"connection_id": 1, "frame_no": 77, "method": "connection.blocked", "reason": "low on disk"},
            close | {"reply_code": 404, "reply_text": "NOT_FOUND - here", "class_id": 50, "method_id": 10, "packet": 5},
            close | {"reply_code": 200, "reply_text": "Goodbye", "class_id": 0, "method_id": 0},
            close | {"reply_code": 0, "reply_text": "", "class_id": 0, "method_id": 0, "from_client": True},
        ],
    )
    part = next((stats / "flow_control").glob("*.parquet"))
    rows = [row | {"start_frame_no": 77} for row in pq.read_table(part).to_pylist()]
    shutil.rmtree(stats / "flow_control")
    synthetic.write(stats, "flow_control", rows)
    at = Tables(tables, stats)
    assert [f.text for f in blocked.findings(at)] == ["Publishers blocked for 3.67 s (low on disk)"]
    (closed,) = errors.closed(at, "channel.close")
    assert closed.text == "1 channel closed with an error: 404 NOT_FOUND - here"
    assert closed.subject == "queue.declare, 10.0.0.7:50002 → 10.0.0.2:5672"


def test_worse_findings_come_first(shop: Tables) -> None:
    severities = [findings.SEVERITIES.index(f.severity) for f in listed(shop)]
    assert severities == sorted(severities)
    assert len(set(severities)) > 1


def test_many_findings_of_one_kind_are_cut_and_counted(tmp_path: Path) -> None:
    rows = [
        {"connection_id": 1, "exchange": f"e{i}", "outcome": "nack", "publish_ts_ns": START, "confirm_ts_ns": START + i}
        for i in range(50)
    ]
    synthetic.write(tmp_path, "confirms", rows)
    section = findings.section(Tables(None, tmp_path))
    assert len(section.findings) == findings.MOST_ALIKE
    assert section.note == "6 of 50 shown."


@pytest.mark.parametrize("ended_by", refusals.CENSORED)
def test_what_may_have_been_answered_is_no_finding(tmp_path: Path, ended_by: str) -> None:
    base = {"connection_id": 1, "exchange": "orders", "publish_ts_ns": START, "outcome": "none"}
    synthetic.write(tmp_path, "confirms", [base | {"ended_by": ended_by}, base | {"ended_by": "channel-close"}])
    (finding,) = listed(Tables(None, tmp_path))
    assert (finding.severity, finding.text) == ("warning", "1 publish never confirmed (ended by channel-close)")


def test_requests_that_closed_nothing_are_distinguished(tmp_path: Path) -> None:
    row = {"connection_id": 1, "outcome": "error", "response_ts_ns": START, "response_packet": 9}
    synthetic.write(
        tmp_path,
        "rpcs",
        [
            row | {"request": "create", "response": "create", "reply_code": 5},
            row | {"request": "queue.declare", "response": "channel.close", "reply_code": 404, "queue": "q"},
        ],
    )
    texts = [f.text for f in listed(Tables(None, tmp_path))]
    assert texts == [
        "1 channel closed with an error: 404 not-found",
        "1 request refused: create (stream-already-exists)",
    ]


def test_intervals_at_the_same_time_count_once() -> None:
    assert blocked.covered([(0, 10), (5, 12), (20, 21), (20, 21)]) == 13
    assert blocked.covered([]) == 0


def test_negative_stops_are_no_finding(tmp_path: Path) -> None:
    row = {"connection_id": 1, "cause": "connection-blocked", "side": "server", "start_ts_ns": START}
    synthetic.write(tmp_path, "flow_control", [row | {"duration_ns": -5, "end_ts_ns": START - 5}])
    assert listed(Tables(None, tmp_path)) == []


def test_where_nothing_is_found_only_what_is_known_is_reported(tmp_path: Path) -> None:
    assert "do not show" in findings.section(Tables()).empty
    synthetic.write(tmp_path, "confirms")
    known = findings.section(Tables(None, tmp_path)).empty
    assert known == "As far as captured, no publish was refused or returned."
    synthetic.write(tmp_path, "rpcs")
    assert findings.section(Tables(None, tmp_path)).empty.endswith("and no channel was closed with an error.")


@pytest.mark.parametrize(
    ("cause", "side", "shown"),
    [
        ("zero-window", "server", "no connection.blocked was sent (a server's TCP window was closed for up to 3.9 s)"),
        ("zero-window", "client", "no publisher was blocked"),
        ("prefetch", "client", "no publisher was blocked"),
    ],
)
def test_a_server_that_reads_no_more_has_stopped_its_clients(tmp_path: Path, cause: str, side: str, shown: str) -> None:
    row = {"connection_id": 1, "cause": cause, "side": side, "start_ts_ns": START, "evidence": "proven"}
    rows = [row | {"duration_ns": wait, "end_ts_ns": START + wait} for wait in (3_900_000_000, 2_000_000)]
    synthetic.write(tmp_path, "flow_control", rows)
    assert findings.nothing(Tables(None, tmp_path)) == f"As far as captured, {shown}."


def test_the_text_of_the_broker_is_whole(tmp_path: Path) -> None:
    text = "PRECONDITION_FAILED - " + "x" * 233
    row = {"connection_id": 1, "method": "channel.close", "reply_code": 406, "reply_text": text, "ts_ns": START}
    synthetic.write(tmp_path, "channel_errors", [row])
    assert text in page.render(Tables(None, tmp_path))


def test_failed_connections_are_a_finding_with_and_without_the_tables_of_dissect(tmp_path: Path, shop: Tables) -> None:
    assert "1 connection never came up: vhost-not-found" in [f.text for f in listed(shop)]
    row = {"code": "auth-failed", "severity": "error", "came_up": False, "first_packet": 3, "first_ts_ns": START}
    synthetic.write(tmp_path, "failures", [row | {"connections": 4}, row | {"connections": 2, "client_ip": "10.0.0.9"}])
    assert [f.text for f in listed(Tables(None, tmp_path))] == ["6 connections never came up: auth-failed"]


def test_sessions_that_ended_with_an_exception(tmp_path: Path) -> None:
    tables, stats = tmp_path / "tables", tmp_path / "stats"
    capture = Path(__file__).parents[1] / "captures/qpid_exceptions.pcap"
    assert main(["dissect", str(capture), "-o", str(tables)]) == 0
    analyze(tables, stats)
    found = listed(Tables(tables, stats))
    assert found[0].text == "1 of 1 publishes refused (404)"
    closed = [each for each in found if each.text.startswith("1 session closed with an error: 4")]
    assert [each.subject.partition(", 127")[0] for each in closed] == [
        'message.subscribe, queue "no.such.queue"',
        'queue.delete, queue "no.such.queue"',
        'exchange.declare, exchange "zz"',
        'message.transfer, exchange "no.such.exchange"',
        "message.cancel",
    ]
    assert closed[0].filter == "tcp.port == 47804 && frame.number == 19"
    assert not any("refused: message.subscribe" in each.text for each in found)
