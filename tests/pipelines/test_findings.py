"""Findings: what the rules say of recordings, and of what they cannot judge."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pamqp import commands

from amqpscope.dashboards import first_screen
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.cli.program import main
from amqpscope.pipelines.findings import evaluate, filled, needed_by
from amqpscope.pipelines.model.walk import conform
from amqpscope.pipelines.relations import compute
from amqpscope.pipelines.relations.texts import read_by_rules
from amqpscope.spec import findings as rules
from amqpscope.spec import tables as declared
from tests.captures.damage.recordings import Recording
from tests.captures.damage.ways import two_points_in_one
from tests.dissector.builders import Packet, pcap
from tests.dissector.paths import NetworkPath
from tests.dissector.wire import (
    ACK,
    CLIENT,
    FIN,
    RST,
    SERVER,
    SYN,
    Tape,
    deliver,
    handshake,
    method,
    opening,
    publish,
    raw,
)  # fmt: skip
from tests.pipelines.analyzed import HEALTHY, findings, folder_of, related, statistics, walked
from tests.pipelines.conversations import later
from tests.tickets import FOLDER as TICKETS

CAPTURES = Path(__file__).parents[1] / "captures"
DEMO = {
    "pub-blocked": (3, None), "con-slow": (284, 643), "pub-nacked": (56, 96), "pub-unroutable": (7, 7),
    "chn-error": (5, None), "con-poll": (46, 46), "chn-churn": (41, None), "pub-noconfirm": (172, None),
    "con-rejected": (18, 903), "cnx-hb-off": (7, 7),
}  # fmt: skip
"""What the script that recorded the demo does wrong, in the order of the first screen; counts as its log has them."""


def found(stem: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = statistics(stem)["findings"].to_pylist()
    return rows


def states(stem: str) -> dict[str, str]:
    return {row["code"]: row["state"] for row in statistics(stem)["rules"].to_pylist()}


def test_the_demo_has_what_its_script_does_wrong() -> None:
    assert {row["code"]: (row["count"], row["of"]) for row in found("demo")} == DEMO
    assert [row["code"] for row in found("demo")] == list(DEMO)
    text = {row["code"]: row["text"] for row in found("demo")}
    assert "low on memory" in text["pub-blocked"] and "1.94 s" in text["pub-blocked"]
    assert all(each in text["con-slow"] for each in ("warehouse-1", "prefetch 4", "92 %", "359", "8.39 s"))
    assert all(
        each in text["pub-nacked"]
        for each in ("56 of 96 publishes of web", "queue carts", "x-max-length 40", "packet 184")
    )
    assert '"nobody"' in text["pub-unroutable"] and "7 of 7" in text["pub-unroutable"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stem", HEALTHY)
def test_healthy_recordings_have_no_findings_but_notes(stem: str) -> None:
    assert [row for row in found(stem) if row["severity"] != "note"] == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "stem", ["demo", "failed_calls", "thrown_out", "tls_failures", "stream_calls", "qpid_exceptions", "violations"]
)
def test_texts_are_whole(stem: str) -> None:
    for row in found(stem):
        for text in (row["text"], row["advice"]):
            assert not re.search(r"\{\w+\}|\{\w+:|None|\(s\)|unknown an| null", text), text
        assert row["first_packet"] is not None, row
        assert row["party"] in rules.PARTIES


@pytest.mark.parametrize(("stem", "reason"), [("tls_pika", "encrypted"), ("snapped", "bytes are missing")])
def test_silence_is_no_praise(stem: str, reason: str) -> None:
    rows = {row["code"]: row for row in statistics(stem)["rules"].to_pylist()}
    assert rows["pub-unconfirmed"]["state"] == "not-measurable"
    assert reason in rows["pub-unconfirmed"]["reason"]
    if stem == "tls_pika":
        assert "clear" not in {row["state"] for code, row in rows.items() if not code.startswith("cap-")}


def test_tls_to_a_port_without_tls_hides_nothing() -> None:
    """The hello is all that was sent."""
    found_rules = statistics("failed_handshakes")["rules"].to_pylist()
    ends = statistics("failed_handshakes")["endpoints"]["handshake_outcome"].to_pylist()
    assert "tls-on-plain-port" in ends
    assert "cap-encrypted" not in {row["code"] for row in found("failed_handshakes")}
    assert not [row for row in found_rules if "encrypted" in (row["reason"] or "")]


def test_four_refusals_of_several_causes_are_several_findings() -> None:
    texts = [row["text"] for row in found("refused_opens") if row["code"] == "cnx-refused"]
    assert len(texts) == len(set(texts)) > 1


def test_every_rule_is_declared_and_has_a_state() -> None:
    codes = {rule.code for rule in rules.load()}
    assert codes == set(states("demo"))
    columns = {column.name for column in declared()["findings"].columns}
    for rule in rules.load():
        assert {"count", "first_ts_ns"} <= rule.values.keys(), rule.code
        assert rule.group is None or rule.group == () or "group by" in rule.sql
        assert {*rule.values} & columns


def test_a_finding_of_rows_in_another_order_is_the_same() -> None:
    tables = {
        name: rows.take(pa.array(range(len(rows) - 1, -1, -1), pa.int64())) for name, rows in statistics("demo").items()
    }
    made = dict(compute.compute({name: tables[name] for name in compute.SOURCES}))
    assert made["findings"].to_pylist() == found("demo")


@pytest.mark.parametrize("stem", ["demo", "any_sll", "stream_js"])
def test_what_selects_from_tables_without_rows_finds_nothing(stem: str) -> None:
    """Our rules are not run then; where users give rules, all are."""
    for name, rows in compute.of_folder(folder_of(stem), compute.FINDINGS, rules.load()):
        assert rows.to_pylist() == statistics(stem)[name].to_pylist()


def test_tables_that_a_select_needs_are_those_before_others() -> None:
    assert needed_by("flow_control f join endpoints n on f.a = n.a left join (select a from rpcs) r on r.a = n.a") == {
        "flow_control", "endpoints"
    }  # fmt: skip
    assert needed_by("(select a from rpcs join confirms on a = b) r join endpoints n on r.a = n.a") == set()
    assert needed_by("select 1 from published where a in (select a from rpcs)") == {"published"}
    assert needed_by("select 1\nfrom published -- join late\nwhere a > 1") == {"published"}
    lines = "\nlate l\njoin endpoints n on l.a = n.a\njoin (\n    select a from rpcs\n) r"
    assert needed_by(lines) == {"late", "endpoints"}


def test_findings_on_spark_are_the_same(spark: Any) -> None:
    """By the engine that runs where tables are not small; `test_relations` has what is done where they are."""
    from amqpscope.pipelines.spark import relations  # noqa: PLC0415

    tables = {name: spark.createDataFrame(statistics("demo")[name]) for name in read_by_rules()}
    made = relations.findings(spark, tables, {})
    for name in ("findings", "rules"):
        assert made[name].to_pylist() == statistics("demo")[name].to_pylist()


# ---- texts


def test_numbers_and_words_agree() -> None:
    assert (
        filled("{n:count} connection(s) of {m:count} client(s)", {"n": 1, "m": 1200}) == "1 connection of 1,200 clients"
    )


def test_values_from_the_wire_are_no_templates() -> None:
    assert filled("{name}: {reason}", {"name": "{reason}(s)", "reason": "{name}"}) == "{reason}(s): {name}"


def test_a_failure_is_the_partys_that_can_mend_it() -> None:
    """A scripted server that says nothing, or hangs up: none of it is the client's fault, but its leaving is."""
    said = {re.search(r"\((.*?)\)", row["text"])[1]: row["party"] for row in found("cut_handshakes")}  # type: ignore[index]
    assert said == {
        "no-answer": "network", "closed-on-accept": "broker", "closed-after-header": "broker",
        "client-left-at-start": "client", "server-gave-up": "broker", "stalled": "broker",
    }  # fmt: skip


def test_words_are_those_of_the_protocol() -> None:
    """Sessions of AMQP 0-10, names of codes that have no text, and what came before a client left."""
    errors = [row["text"] for row in found("qpid_session_controls") if row["code"] == "chn-error"]
    assert [text.partition("failed with ")[2] for text in errors] == [
        "1, 1 session closed: session-busy (code 1)", "3, 1 session closed: not-attached (code 3)",
    ]  # fmt: skip
    (refused,) = [row for row in found("stream_calls") if row["code"] == "pub-nacked"]
    assert refused["text"].endswith(": publisher-does-not-exist (code 18)") and refused["party"] == "client"
    left = [row["text"] for row in found("stream_patience") if "client-left-at-start" in row["text"]]
    assert len(left) == 1 and "connection.start" not in left[0]


def test_counts_are_of_connections_that_can_be_told() -> None:
    """Heartbeats of those that agreed on them; two connections in one sentence; a stray packet is no connection."""
    (off,) = [row for row in found("tls_sessions") if row["code"] == "cnx-hb-off"]
    assert (off["count"], off["of"]) == (1, 1)
    (both,) = [row for row in found("handshake_timeouts") if "protocol header" in row["text"]]
    assert both["count"] == 2 and "(handshake-timeout, 2 connections)" in both["text"]
    assert "cap-one-way" not in {row["code"] for row in found("refused_tunings")}


def test_a_broker_that_stops_channels_is_said() -> None:
    """The scripted server sends channel.flow three times."""
    (row,) = [row for row in found("channel_flow") if row["severity"] == "error"]
    assert row["code"] == "pub-blocked" and "channel.flow" in row["text"] and "memory or disk" not in row["advice"]


def test_what_was_put_back_and_not_delivered_again_is_left() -> None:
    (queue,) = [row for row in statistics("qpid_tx")["queues"].to_pylist() if row["queue"] == "txq"]
    assert (queue["ins"], queue["outs"], queue["requeued"], queue["left_over"]) == (6, 6, 3, 3)


@pytest.mark.parametrize(
    ("ticket", "left"),
    [("dropping_queue", None), ("delivery_limit", None), ("full_queue", 10), ("queue_expires", None)],
)
def test_what_a_queue_may_have_dropped_is_not_left(ticket: str, left: int | None) -> None:
    """One drops its oldest beyond ten, one what came back too often; one refuses what is too much; one is deleted."""
    queues = {row["queue"]: row for row in related(walked(TICKETS / f"{ticket}.pcap"), "queues")}
    assert queues[ticket]["left_over"] == left


@pytest.mark.parametrize(
    ("ticket", "ins"),
    [
        pytest.param("silent_path", {"silent_path": None}, id="dead path"),
        pytest.param("wrong_exchange", {"wrong_exchange": None}, id="channel in error"),
        pytest.param("alternate_exchange", {"alternate_exchange": 12, "alternate_exchange_lost": None}, id="alternate"),
        pytest.param("delivery_limit", {"delivery_limit": 5, "dead": None}, id="dead letters"),
        pytest.param("full_in_bytes", {"full_in_bytes": 6}, id="refused"),
        pytest.param("queue_expires", {"queue_expires": 20}, id="returned"),
    ],
)
def test_what_may_not_have_arrived_is_not_counted(ticket: str, ins: dict[str, int | None]) -> None:
    queues = related(walked(TICKETS / f"{ticket}.pcap"), "queues")
    assert {row["queue"]: row["ins"] for row in queues} == ins


def test_a_queue_that_went_with_its_caller_takes_no_answers() -> None:
    queues = related(walked(TICKETS / "late_replies_to_queues.pcap"), "queues")
    assert [row["ins"] for row in queues if row["queue"].startswith("amq.gen")] == [None] * 8


def test_an_error_is_about_what_its_text_says() -> None:
    """Publishes to another exchange were under way behind the one that failed."""
    errors = walked(TICKETS / "wrong_exchange.pcap")["channel_errors"].to_pylist()
    assert [row["exchange"] for row in errors if row["reply_code"] == 404] == ["god"]


def test_what_began_before_the_capture_is_said() -> None:
    (row,) = [row for row in found("begun_before") if row["code"] == "cap-begun"]
    outcomes = statistics("begun_before")["endpoints"]["handshake_outcome"].to_pylist()
    assert (row["count"], row["of"]) == (outcomes.count("begun-before"), len(outcomes)) and row["severity"] == "note"
    assert "cap-begun" not in {row["code"] for row in found("demo")}


def test_what_expired_elsewhere_is_not_left() -> None:
    queues = {row["queue"]: row for row in related(walked(TICKETS / "delayed_messages.pcap"), "queues")}
    waiting = queues["delayed_messages_wait"]
    assert (waiting["ins"], waiting["outs"], waiting["left_over"]) == (20, 0, None)


def test_who_is_refused_is_no_consumer() -> None:
    (queue,) = related(walked(TICKETS / "standby.pcap"), "queues")
    assert (queue["consumers"], queue["client"]) == (1, "leader")


def test_names_that_read_like_sentences_are_in_quotation_marks() -> None:
    names = ("heartbeats of the broker missed", "vhost down", "shop")
    found = [filled("{client} gave up: {cause}", {"client": name, "cause": "no more came"}) for name in names]
    assert found == [
        '"heartbeats of the broker missed" gave up: no more came',
        '"vhost down" gave up: no more came',
        "shop gave up: no more came",
    ]


def test_parts_in_brackets_are_left_out_where_a_value_is_null() -> None:
    text = "{client} waits[; {late:count} time(s)][, up to {most:duration}]."
    assert filled(text, {"client": "shop", "late": 2, "most": None}) == "shop waits; 2 times."
    assert filled(text, {"client": "shop", "late": 1, "most": 10**9}) == "shop waits; 1 time, up to 1 s."


# ---- rules of users

RULE = """
[[rule]]
code = "my-exchange"
severity = "warning"
party = "client"
from = "exchanges x"
where = "x.publishes > 1000"
[rule.values]
count = "x.publishes"
exchange = "x.exchange"
[rule.texts]
text = "exchange {exchange} has {count:count} messages"
"""


def test_users_add_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text(RULE)
    assert main(["summary", str(folder_of("demo")), "--rules", str(tmp_path / "mine.toml")]) == 0
    assert "exchange orders has 1,075 messages" in capsys.readouterr().out


def test_habits_stand_behind_what_users_ask_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    habit = RULE.replace("my-exchange", "a-habit").replace('where = "', 'habit = true\nwhere = "')
    (tmp_path / "mine.toml").write_text(habit + RULE)
    assert main(["summary", str(folder_of("demo")), "--rules", str(tmp_path / "mine.toml"), "--format", "json"]) == 0
    codes = [row["code"] for row in json.loads(capsys.readouterr().out)["findings"]]
    assert codes.index("my-exchange") < codes.index("con-poll") < codes.index("a-habit")


OVER_LINES = ('"x.publishes > 1000"', "'''\nx.publishes > 1000\n    and x.exchange <> '' -- the default one\n'''")
"""What is long stands in literal strings."""


def test_rules_may_stand_over_several_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = ('count = "x.publishes"', "count = '''\nx.publishes -- of all keys\n'''")
    (tmp_path / "mine.toml").write_text(RULE.replace(*OVER_LINES).replace(*counts))
    assert main(["summary", str(folder_of("demo")), "--rules", str(tmp_path / "mine.toml")]) == 0
    assert "exchange orders has 1,075 messages" in capsys.readouterr().out


def test_our_rules_can_be_read() -> None:
    """A screen of SQL on one line cannot; texts are sentences."""
    lines = (Path(rules.__file__).parent / "findings.toml").read_text(encoding="utf-8").splitlines()
    assert [line[:40] for line in lines if len(line) > 200 and not re.match("(text|advice) = ", line)] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("x.publishes > 1000", "x.nothing > 1"), "rule my-exchange: .*nothing"),
        ((OVER_LINES[0], OVER_LINES[1].replace("x.exchange", "x.nothing")), "rule my-exchange: .*nothing"),
        (("exchanges x", "read_csv('/etc/passwd') x"), "rule my-exchange: "),
        (("x.publishes > 1000", "true; select 1"), "rule my-exchange: more than one statement"),
        (("{exchange}", "{queue}"), "names {queue}, which is not among its values"),
        (('"warning"', '"bad"'), "severity is not one of"),
        (('where = "', 'several = "yes"\nwhere = "'), "several is true or false"),
        (('where = "', 'habit = 1\nwhere = "'), "habit is true or false"),
        (('where = "', 'several = true\nwhere = "'), "several .* says of which connections its connection_id is one"),
        (("[[rule]]", "[[rules]]"), "no .*rule.* in it"),
    ],
)
def test_a_wrong_rule_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], message: str
) -> None:
    (tmp_path / "mine.toml").write_text(RULE.replace(*change))
    assert main(["summary", str(folder_of("any_sll")), "--rules", str(tmp_path / "mine.toml")]) == 2
    out = capsys.readouterr()
    assert re.search(message, out.err) and len(out.err.splitlines()) == 1
    assert out.out == ""


def test_a_rule_is_about_one_connection_or_several(tmp_path: Path) -> None:
    def is_about_one(fields: str, connection: str) -> bool:
        values = f"{fields}\n[rule.values]{connection}"
        (tmp_path / "mine.toml").write_text(RULE.replace("[rule.values]", values))
        (rule,) = rules.user(tmp_path / "mine.toml")
        return rule.is_about_one_connection

    one, least = '\nconnection_id = "x.connection_id"', '\nconnection_id = "min(x.connection_id)"'
    assert is_about_one("", one) and is_about_one('group = ["x.connection_id"]', one)
    assert not is_about_one('group = ["x.client"]', least) and not is_about_one("group = []", least)
    assert not is_about_one("several = true", one) and not is_about_one("", "")


# ---- the first screen


def test_the_first_screen_fits_a_terminal() -> None:
    data = first_screen.collect(Tables(None, folder_of("demo")))
    for width in (60, 80, 120):
        text = first_screen.text(data, width)
        assert max(len(line) for line in text.splitlines() if not line.startswith("more:")) <= width
    assert "1 BROKER" in text and "warehouse" in text and "+359" in text
    assert first_screen.failing(data, ["error"]) and not first_screen.failing(data, ["cap-gaps"])


def test_a_broker_has_its_name_where_it_refused_connections() -> None:
    endpoints = walked(TICKETS / "restarted.pcap")["endpoints"].to_pylist()
    brokers = first_screen._brokers(endpoints)
    assert brokers == ["RabbitMQ 3.10.8 at 127.0.0.1:5672"]


def test_what_cannot_be_read_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(CAPTURES / "tls_pika.pcap")]) == 0
    out = capsys.readouterr().out
    assert out.index("NOT READABLE") < 250 and "--keylog" in out
    assert "None of" not in out
    head = out[: out.index("NOT READABLE")]
    assert "not known" in head and "deliveries/s" not in head and "came up" not in head


def test_records_of_streams_are_deliveries() -> None:
    tables = walked(CAPTURES.parent / "tickets" / "stream_little_credit.pcap")
    chunks = sum(row["records"] for row in tables["stream_deliveries"].to_pylist())
    assert chunks == 125  # five chunks of 25: frames 118 to 151 as the capture shows them
    assert sum(row["deliveries"] for row in related(tables, "rates") if row["grouping"] == "all") == 125
    assert {row["client"]: row["deliveries"] for row in related(tables, "clients")}["chart"] == 125


def test_what_the_broker_says_of_streams_has_rows() -> None:
    """Two clients have a stream until it is deleted; one asks for it then. Codes are the protocol's."""
    rows = walked(TICKETS / "stream_deleted.pcap")["stream_metadata"].to_pylist()
    assert {row["stream"] for row in rows} == {"stream_deleted"}
    said = [(row["command"], row["response_code"]) for row in sorted(rows, key=lambda row: row["packet"])]
    assert said[:4] == [("metadata", 1), ("metadata", 1), ("metadata-update", 6), ("metadata-update", 6)]
    assert len(said) > 4 and set(said[4:]) == {("metadata", 2)}


def test_a_healthy_capture_is_said_to_be_judged_by_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(CAPTURES / "any_sll.pcap"), "--fail-on", "warning"]) == 0
    assert "rules found anything wrong" in capsys.readouterr().out


def test_fail_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(CAPTURES / "blocked.pcap"), "--fail-on", "pub-blocked", "--format", "json"]) == 1
    assert '"pub-blocked"' in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["summary", str(CAPTURES / "blocked.pcap"), "--fail-on", "pub-bloked"])
    assert "did you mean pub-blocked" in capsys.readouterr().err


def test_a_capture_without_a_command_is_summed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([str(CAPTURES / "any_sll.pcap"), "--fail-on", "error"]) == 0
    assert "rules found anything wrong" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec").write_bytes(b"not a capture")  # a command wins over a file of its name
    assert main(["spec", "basic.publish"]) == 0
    capsys.readouterr()
    assert main(["sumary"]) == 2
    said = capsys.readouterr().err
    assert "no command and no file 'sumary'" in said and "summary" in said and len(said.splitlines()) == 1


def test_what_is_declared_once_at_the_start_is_no_habit() -> None:
    assert "pub-declare" not in {row["code"] for row in found("no_wait")}


def test_one_event_is_one_finding() -> None:
    assert not [row for row in found("handshake_timeouts") if row["code"] == "cnx-reconnect-loop"]
    assert [row["code"] for row in found("qpid_exceptions") if row["first_packet"] == 100] == ["chn-error"]


def test_more_out_than_in_is_not_known() -> None:
    tickets = CAPTURES.parent / "tickets"
    queues = related(walked(tickets / "far_consumer.pcap"), "queues")
    assert [(row["ins"], row["outs"], row["left_over"]) for row in queues] == [(None, 74, None)]


def analyzed(packets: list[Packet], folder: Path, code: str | None = None) -> list[dict[str, Any]]:
    """What is found in packets, or what one rule finds."""
    (folder / "made.pcap").write_bytes(pcap(sorted(packets, key=lambda each: each.ts_ns), ns=True))
    return findings(walked(folder / "made.pcap"), code)


def at(tape: Tape, seconds: float) -> None:
    """Move the last packet of a tape to a time after the one before it."""
    tape.packets[-1] = replace(tape.packets[-1], ts_ns=tape.packets[-2].ts_ns + int(seconds * 10**9))


def cut_off(port: int, after: float, quiet: float, end: int = RST) -> list[Packet]:
    """A connection that lives for a while, is silent, and then ends without an answer."""
    tape = Tape(port=port).play([*handshake(), *opening(1)])
    for side in (CLIENT, SERVER):
        tape.send(side, raw(8, 0, b""))
        at(tape, after)
    tape.segment(CLIENT)
    at(tape, 0.01)
    tape.send(CLIENT, raw(8, 0, b""))
    at(tape, quiet)
    tape.segment(SERVER if end == RST else CLIENT, flags=end)
    at(tape, 0.05)
    return tape.packets


def codes(rows: list[dict[str, Any]]) -> set[str]:
    return {row["code"] for row in rows}


def test_ends_after_the_same_silence_are_those_of_a_device_in_between(tmp_path: Path) -> None:
    (row,) = analyzed([*cut_off(40001, 1, 30), *cut_off(40002, 3, 30.5)], tmp_path, "cnx-middlebox")
    assert (row["count"], row["party"]) == (2, "network") and "same silence of 30" in row["text"]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(lambda: cut_off(40002, 3, 60), id="another silence"),
        pytest.param(lambda: cut_off(40002, 40, 30), id="a longer silence was outlived"),
        pytest.param(lambda: cut_off(40002, 1, 30), id="at the same time"),
        pytest.param(lambda: cut_off(40002, 3, 30, FIN | ACK), id="no reset"),
        pytest.param(list, id="one connection"),
    ],
)
def test_other_ends_are_not(others: Callable[[], list[Packet]], tmp_path: Path) -> None:
    assert analyzed([*cut_off(40001, 1, 30), *others()], tmp_path, "cnx-middlebox") == []


def test_two_points_in_one_file_are_said_first(tmp_path: Path) -> None:
    recording = Recording.of(CAPTURES / "orders_pika.pcap")
    packets = two_points_in_one(recording.capture, random.Random(1))
    (tmp_path / "twice.pcap").write_bytes(pcap(packets, ns=True, link=recording.link))
    rows = findings(walked(tmp_path / "twice.pcap"))
    assert rows[0]["code"] == "cap-twice" and "2 capture points" in rows[0]["text"]
    assert "cap-twice" not in codes(found("orders_pika"))


def waiting(
    path: Path, prefetch: int = 10, unacked: int = 0, delivered: bool = False, **arguments: dict[str, Any]
) -> bool:
    """Whether the rule fires where a queue holds messages for 4 s, and a consumer gets none."""
    tape = Tape().play([*handshake(), *opening(1)])
    tape.play([
        (CLIENT, method(commands.Queue.Declare(queue="work", arguments=arguments.get("declare", {})))),
        (SERVER, method(commands.Queue.DeclareOk(queue="work", message_count=0, consumer_count=0))),
        (CLIENT, method(commands.Basic.Qos(prefetch_count=prefetch))),
        (SERVER, method(commands.Basic.QosOk())),
        (CLIENT, method(commands.Basic.Consume(queue="work", consumer_tag="t", arguments=arguments.get("consume")))),
        (SERVER, method(commands.Basic.ConsumeOk(consumer_tag="t"))),
    ])  # fmt: skip
    tape.play([(SERVER, b"".join(deliver(tag, consumer="t"))) for tag in range(1, unacked + 1)])
    for count in range(3):
        tape.send(CLIENT, method(commands.Queue.Declare(queue="work", passive=True)))
        at(tape, 2)
        tape.send(SERVER, method(commands.Queue.DeclareOk(queue="work", message_count=40, consumer_count=1)))
        at(tape, 0.01)
        if delivered:
            tape.send(SERVER, b"".join(deliver(unacked + count + 1, consumer="t")))
            at(tape, 0.01)
    return bool(analyzed(tape.packets, path, "con-idle-backlog"))


def test_a_queue_that_holds_back_what_a_consumer_could_take(tmp_path: Path) -> None:
    assert waiting(tmp_path)
    assert waiting(tmp_path, unacked=3)
    assert not waiting(tmp_path, prefetch=3, unacked=3)
    assert not waiting(tmp_path, declare={"x-single-active-consumer": True})
    assert not waiting(tmp_path, declare={"x-queue-type": "stream"}), "what was delivered stays in it"
    assert not waiting(tmp_path, consume={"x-stream-offset": "next"})
    assert not waiting(tmp_path, delivered=True)


def rejecting(folder: Path, requeue: bool, **arguments: Any) -> str:
    """What is said of a consumer that rejects all of ten deliveries of a queue."""
    tape = Tape().play([*handshake(), *opening(1)])
    tape.play([
        (CLIENT, method(commands.Queue.Declare(queue="work", arguments=arguments))),
        (SERVER, method(commands.Queue.DeclareOk(queue="work", message_count=0, consumer_count=0))),
        (CLIENT, method(commands.Basic.Consume(queue="work", consumer_tag="t"))),
        (SERVER, method(commands.Basic.ConsumeOk(consumer_tag="t"))),
    ])  # fmt: skip
    for tag in range(1, 11):
        tape.send(SERVER, b"".join(deliver(tag, consumer="t")))
        tape.send(CLIENT, method(commands.Basic.Reject(delivery_tag=tag, requeue=requeue)))
    (row,) = analyzed(tape.packets, folder, "con-rejected")
    return str(row["text"])


def test_where_rejected_messages_go_is_as_the_queue_was_declared(tmp_path: Path) -> None:
    assert "goes to exchange dead (packet" in rejecting(tmp_path, False, **{"x-dead-letter-exchange": "dead"})
    assert "goes to the default exchange" in rejecting(tmp_path, False, **{"x-dead-letter-exchange": ""})
    assert "is dropped: the queue was declared without" in rejecting(tmp_path, False)
    assert rejecting(tmp_path, True).endswith("all to be put back")
    assert "x-delivery-limit, packet" in rejecting(tmp_path, True, **{"x-delivery-limit": 3})


def falls_behind(ages_ms: list[int], lag: int | None = None) -> bool:
    """Whether the rule fires where chunks of a stream, one each second, are so old."""
    given = dict(statistics("stream_rstream"))
    one = given["stream_deliveries"].to_pylist()[0]
    rows = [
        one | {"frame_no": n, "ts_ns": one["ts_ns"] + n * 10**9, "age_ns": age * 10**6, "lag_records": lag}
        for n, age in enumerate(ages_ms)
    ]
    given["stream_deliveries"] = pa.Table.from_pylist(rows, given["stream_deliveries"].schema)
    return bool(findings(given, "str-lag"))


def test_a_consumer_that_falls_behind_in_a_stream() -> None:
    assert falls_behind([100 + 400 * n for n in range(12)])
    assert not falls_behind([9000 - 400 * n for n in range(12)])  # it catches up
    assert not falls_behind([100 + 20 * n for n in range(60)])
    assert not falls_behind([100, 9000])


def small_writes(
    times: int, delay: float, pause: float = 0.0001, side: int = CLIENT, first: float | None = None
) -> list[Packet]:
    """Each message in two writes; the other side acknowledges the first one after a while, then comes the second."""
    tape = Tape().play([*handshake(), *opening(1)])
    for tag in range(1, times + 1):
        frames = publish() if side == CLIENT else deliver(tag)
        tape.send(side, frames[0])
        at(tape, 0.2)
        tape.segment(1 - side)
        at(tape, first if first and tag == 1 else delay)
        tape.send(side, b"".join(frames[1:]))
        at(tape, pause)
        tape.segment(1 - side)
        at(tape, 0.0001)
    return tape.packets


@pytest.mark.parametrize(("side", "party"), [(CLIENT, "client"), (SERVER, "broker")])
def test_writes_held_for_acknowledgements_are_said(side: int, party: str, tmp_path: Path) -> None:
    packets = small_writes(12, 0.04, side=side, first=0.06)
    (row,) = analyzed(packets, tmp_path, "net-nagle")
    assert (row["party"], row["count"], row["severity"]) == (party, 12, "warning")
    assert "up to 60 ms each" in row["text"] and "500 ms in all" in row["text"]


def timed(count: int, pauses: Callable[[], float], rtt: float) -> list[Packet]:
    """Whole publishes over a way of `rtt`, captured at the client; the broker's system acknowledges after 40 ms."""
    tape = Tape()
    at(tape, 0.00001)
    first = tape.packets[0].ts_ns
    tape.packets[1] = replace(tape.packets[1], ts_ns=first + int(rtt * 10**9))
    tape.packets[2] = replace(tape.packets[2], ts_ns=tape.packets[1].ts_ns + 10_000)
    for side, data in [*handshake(), *opening(1)]:
        tape.send(side, data)
        at(tape, rtt / 2)
    pause, late = 0.001, rtt + 0.04
    for _ in range(count):
        tape.send(CLIENT, b"".join(publish()))
        at(tape, pause)
        pause = pauses()
        if pause > late:
            tape.segment(SERVER)
            at(tape, late)
            pause -= late
    return tape.packets


@pytest.mark.parametrize(
    "packets",
    [
        pytest.param(lambda: timed(60, lambda: 0.1, 0.05), id="a timer of 100 ms over a way of 50 ms"),
        pytest.param(lambda: timed(2000, partial(random.Random(1).expovariate, 10.0), 0.001), id="ten a second"),
        pytest.param(lambda: small_writes(9, 0.04), id="a few times"),
        pytest.param(lambda: small_writes(12, 0.02), id="acknowledged at once"),
        pytest.param(lambda: small_writes(12, 0.04, pause=0.02), id="the sender has nothing to send yet"),
    ],
)
def test_others_are_not_held(packets: Callable[[], list[Packet]], tmp_path: Path) -> None:
    assert analyzed(packets(), tmp_path, "net-nagle") == []


def confirmed(again: float | None, slow: float = 0.0) -> list[Packet]:
    """A publish, which is lost and sent again; its confirm takes so long besides."""
    tape = Tape().play([*handshake(), *opening(1)])
    tape.play([(CLIENT, method(commands.Confirm.Select())), (SERVER, method(commands.Confirm.SelectOk()))])
    for tag in range(1, 11):
        data, seq = b"".join(publish()), tape.next[CLIENT]
        tape.send(CLIENT, data)
        at(tape, 0.1)
        if tag == 5 and again is not None:
            tape.segment(CLIENT, data, seq=seq)
            at(tape, again)
        tape.send(SERVER, method(commands.Basic.Ack(delivery_tag=tag)))
        at(tape, slow if tag == 5 else 0.001)
    return tape.packets


def test_a_confirm_that_falls_on_a_loss_is_the_networks(tmp_path: Path) -> None:
    (row,) = analyzed(confirmed(1.2, 0.01), tmp_path, "net-retrans")
    assert (row["party"], row["severity"], row["count"]) == ("network", "warning", 1)
    assert "1 answer came late by packets that got lost, up to 1.21 s" in row["text"]
    assert (row["first_packet"], row["last_packet"]) == (22, 23)
    (row,) = analyzed(confirmed(0.2, 0.01), tmp_path, "net-retrans")
    assert row["severity"] == "note"


def test_what_waits_before_a_full_link_is_the_networks(tmp_path: Path) -> None:
    path = NetworkPath([(0.0, 300_000)])
    (row,) = analyzed(path.packets(), tmp_path, "net-full")
    assert (row["party"], row["severity"], row["count"]) == ("network", "warning", 1)
    assert "what the client sends" in row["text"] and "instead of 20 ms" in row["text"]
    (spent,) = related(walked(tmp_path / "made.pcap"), "time_spent")
    assert 4 * spent["network_ns"] > 3 * spent["wall_ns"]
    later = [(30_000.0, 1_000)]  # and then nothing for half a minute
    (row,) = analyzed(NetworkPath([*path.writes, *later]).packets(), tmp_path, "net-full")
    assert row["severity"] == "note"
    (row,) = analyzed(NetworkPath(path.writes, side=SERVER, at_sender=False).packets(), tmp_path, "net-full")
    assert "what the broker sends" in row["text"]


def test_a_slow_broker_is_not_the_network(tmp_path: Path) -> None:
    """Nothing was lost; or a probe after 4 ms, which explains nothing."""
    for packets in (confirmed(None, 1.2), confirmed(0.004, 1.2)):
        assert analyzed(packets, tmp_path, "net-retrans") == []


def test_connections_that_began_before_did_not_come_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor are their addresses clients: several may share one."""
    packets: list[Packet] = []
    for port in (40000, 40001):
        tape = Tape(syn=False, port=port).play([(CLIENT, b"".join(publish())), (SERVER, b"".join(deliver(1)))])
        packets += tape.packets
    (tmp_path / "made.pcap").write_bytes(pcap(packets, ns=True))
    assert main(["summary", str(tmp_path / "made.pcap")]) == 0
    head = " ".join(capsys.readouterr().out.split())
    assert "1 address, 2 connections, both began before the capture" in head


def test_names_that_the_broker_makes_up_are_one_thing() -> None:
    row = {"client": "page", "queue": "amq.gen-Xa1"}
    assert filled("{client}: {queue}", row) == "page: amq.gen-Xa1"
    assert filled("{client}: {queue}", row, figures=False) == "page: #"


def probed(times: int) -> list[Packet]:
    """Twenty publishes of 600 bytes, some of which are sent again after 4 ms."""
    tape = Tape().play([*handshake(), *opening(1)])
    for place in range(20):
        data, seq = b"".join(publish(body=b"x" * 600)), tape.next[CLIENT]
        tape.send(CLIENT, data)
        at(tape, 0.004)
        if place < times:
            tape.segment(CLIENT, data, seq=seq)
        at(tape, 0.1)
    return tape.packets


def test_a_packet_or_two_sent_again_are_no_sign_of_loss(tmp_path: Path) -> None:
    """A machine that is busy acknowledges late, and the kernel probes."""
    assert analyzed(probed(2), tmp_path, "net-retrans") == []
    (row,) = analyzed(probed(3), tmp_path, "net-retrans")
    assert "in 3 segments were sent again, 13 % of all" in row["text"]


def one_at_a_time(times: int, held: int, lost: bool = False) -> list[Packet]:
    """Publishes, each confirmed after 20 ms and waited for; some in two writes, of which the second one is held."""
    tape = Tape().play([*handshake(), *opening(1)])
    tape.play([(CLIENT, method(commands.Confirm.Select())), (SERVER, method(commands.Confirm.SelectOk()))])
    for tag in range(1, times + 1):
        frames, seq = publish(), tape.next[CLIENT]
        for data in (frames[0], b"".join(frames[1:])) if tag <= held else (b"".join(frames),):
            tape.send(CLIENT, data)
            at(tape, 0.0001)
            if data == frames[0]:
                tape.segment(SERVER)
                at(tape, 0.04)
        if lost and tag == 9:
            tape.segment(CLIENT, b"".join(frames), seq=seq)
            at(tape, 3)
        tape.send(SERVER, method(commands.Basic.Ack(delivery_tag=tag)))
        at(tape, 0.02)
    return tape.packets


def test_a_few_held_writes_do_not_excuse_waiting_for_each_confirm(tmp_path: Path) -> None:
    """Where these took most of the time, they are said instead."""
    assert "pub-sync" in codes(analyzed(one_at_a_time(150, 10), tmp_path))
    found = codes(analyzed(one_at_a_time(60, 60), tmp_path))
    assert "net-nagle" in found and "pub-sync" not in found


def test_a_loss_does_not_change_how_fast_it_could_publish(tmp_path: Path) -> None:
    (row,) = analyzed(one_at_a_time(30, 0, lost=True), tmp_path, "pub-sync")
    assert "20.1 ms each, so 50/s at most" in row["text"]


def seen_at_the_broker(turn: float, halts: int = 0) -> list[Packet]:
    """Publishes over a round trip of 60 ms, each confirmed at once; the next comes after a turn, or after 0.4 s."""
    tape = Tape(syn=False)
    tape.segment(CLIENT, seq=tape.isn[0], flags=SYN, ack=0)
    tape.segment(SERVER, seq=tape.isn[1], flags=SYN | ACK)
    later(tape, 0.059).segment(CLIENT)
    tape.play([*handshake(), *opening(1)])
    tape.play([(CLIENT, method(commands.Confirm.Select())), (SERVER, method(commands.Confirm.SelectOk()))])
    for tag in range(1, 41):
        later(tape, 0.4 if tag <= halts else turn).play(
            [(CLIENT, b"".join(publish())), (SERVER, method(commands.Basic.Ack(delivery_tag=tag)))]
        )
    return tape.packets


def test_who_waits_for_each_confirm_far_from_the_capture(tmp_path: Path) -> None:
    """It publishes again when the confirm has gone one way and the publish come the other; losses make some late."""
    for halts in (0, 6):
        packets = seen_at_the_broker(0.059, halts)
        (row,) = analyzed(packets, tmp_path, "pub-sync")
        assert "most of that is the way to the broker" in row["text"]
        (spent,) = related(walked(tmp_path / "made.pcap"), "time_spent")
        assert spent["network_ns"] >= 40 * 59_000_000
    assert analyzed(seen_at_the_broker(0.1), tmp_path, "pub-sync") == [], "it has a pace of its own"


def test_segments_lost_at_once_delay_an_answer_once(tmp_path: Path) -> None:
    """All are sent again 0.2 s later, and the broker confirms after 4.5 s more."""
    tape = Tape().play([*handshake(), *opening(1)])
    tape.play([(CLIENT, method(commands.Confirm.Select())), (SERVER, method(commands.Confirm.SelectOk()))])
    data, seq = b"".join(publish(b"x" * 20_000, largest=100_000)), tape.next[CLIENT]
    for begin in (0.001, 0.2):
        for k in range(0, len(data), 1400):
            tape.segment(CLIENT, data[k : k + 1400], seq=seq + k)
            at(tape, 0.00001 if k else begin)
    tape.next[CLIENT] = seq + len(data)
    tape.send(SERVER, method(commands.Basic.Ack(delivery_tag=1)))
    at(tape, 4.5)
    assert not [row for row in analyzed(tape.packets, tmp_path) if "late" in row["text"]]


def test_a_fin_of_the_broker_is_no_fault_of_the_network() -> None:
    """It is the client's where the last that the client sent is what its protocol forbids."""
    rows = {row["client"]: row for row in found("stream_errors") if row["code"] == "cnx-aborted"}
    assert {client: row["party"] for client, row in rows.items()} == {"too-short": "broker", "cut-entries": "client"}
    text = "the server ended the connection without closing it (server-gone), "
    assert text + "or a device in between did" in rows["too-short"]["text"]
    broken = "after packet 210, which the protocol does not allow: records malformed (16 bytes outside of any entry)"
    assert text + broken in rows["cut-entries"]["text"]


def test_numbers_in_texts_are_the_same_on_spark() -> None:
    """A cast rounds in DuckDB, and truncates in Spark."""
    assert not [rule.code for rule in rules.load() if re.search(r"cast\([^()]*/[^()]* as bigint\)", rule.sql)]


def test_many_connections_that_one_device_cuts_are_compared_in_groups() -> None:
    """Pairs of them would be billions."""
    count, server = 40_000, "b:5672"
    columns: dict[str, list[Any]] = {
        "connection_id": list(range(count)), "server": [server] * count, "client": ["c"] * count,
        "closed_by": ["server-fin"] * count, "ending": ["server-gone"] * count, "severity": ["error"] * count,
        "quiet_ns": [60 * 10**9 + 997 * each for each in range(count)],
        "closed_ts_ns": [10**18 + 10**8 * each for each in range(count)],
        "last_packet": list(range(count)), "first_ts_ns": [10**18] * count, "last_ts_ns": [10**18 + 10**13] * count,
    }  # fmt: skip
    made = conform("endpoints", {name: pa.array(values) for name, values in columns.items()}, count)
    assert [(row["code"], row["count"]) for row in findings({"endpoints": made})] == [("cnx-middlebox", count)]


def made_of(rule: rules.Rule, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings of a rule that selects rows of a table t."""
    blind = dict.fromkeys(("connections", "encrypted", "one_way", "empty", "lost"), 0)

    def select(text: str) -> list[dict[str, Any]]:
        return [] if "from queues" in text else [dict(row) for row in rows] if "from t\n" in text else [blind]

    found: list[dict[str, Any]] = evaluate(select, [rule])["findings"].to_pylist()
    return found


def test_findings_of_one_client_that_differ_in_figures_are_one_thing() -> None:
    """Versions, codes and names are no figures; a client that is not known is none."""
    rule = rules.Rule("my-rule", "note", "client", "t", "true", "{client} {code} {old:count} of [queue {queue}]", "")
    rows = [
        {"client": client, "server": "s", "code": code, "old": old, "queue": queue, "count": 1}
        for client, code, old, queue in (
            ("web", 404, 1, "a"), ("web", 404, 2, "a"), ("web", 406, 1, "a"), ("web", 404, 1, "b"),
            ("web", 404, 1, None), ("shop", 404, 1, "a"), (None, 404, 1, "a"), (None, 404, 2, "a"),
        )
    ]  # fmt: skip
    made = made_of(rule, rows)
    things = Counter(row["thing"] for row in made)
    assert sorted(things.values()) == [1, 1, 1, 1, 1, 1, 2]
    assert {row["such"] for row in made if things[row["thing"]] == 2} == {1}


def test_findings_that_are_left_out_are_counted_in_their_thing() -> None:
    rule = rules.Rule("my-rule", "note", "client", "t", "true", "{client} {count:count}", "")
    rows = [{"client": "web", "server": "s", "count": number + 1} for number in range(150)]
    made = made_of(rule, rows)
    assert (len(made), {row["thing"] for row in made}, {row["such"] for row in made}) == (100, {0}, {149})
