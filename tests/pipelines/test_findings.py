"""Findings: what the rules say of recordings, and of what they cannot judge."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import amqpscope
from amqpscope.dashboards import first_screen
from amqpscope.dissector.cli.program import main
from amqpscope.pipelines.findings import duration, filled
from amqpscope.pipelines.relations import compute
from amqpscope.spec import findings as rules
from amqpscope.spec import tables as declared

CAPTURES = Path(__file__).parents[1] / "captures"
DEMO = {
    "pub-blocked": (3, None), "con-slow": (284, 643), "pub-nacked": (56, 96), "pub-unroutable": (7, 7),
    "chn-error": (5, None), "con-poll": (46, 46), "chn-churn": (41, None), "pub-noconfirm": (172, None),
    "con-rejected": (18, 903), "cnx-hb-off": (7, 7),
}  # fmt: skip
"""What the script that recorded the demo does wrong, in the order of the first screen; counts as its log has them."""
HEALTHY = (
    "any_sll", "orders_aio_pika", "pika_confirms", "prefetch", "many_confirms", "topology", "transactions",
    "qpid_plain",
    "qpid_messaging", "stream_rstream", "stream_js", "interleaved_channels", "begun_before",
)  # fmt: skip


@cache
def statistics(stem: str) -> dict[str, pa.Table]:
    return amqpscope.analyze(CAPTURES / f"{stem}.pcap")


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


@pytest.mark.parametrize("stem", HEALTHY)
def test_healthy_recordings_have_no_findings_but_notes(stem: str) -> None:
    assert [row for row in found(stem) if row["severity"] != "note"] == []


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


def test_findings_on_spark_are_the_same(spark: Any) -> None:
    from amqpscope.pipelines.relations import on_spark  # noqa: PLC0415

    tables = {name: spark.createDataFrame(statistics("demo")[name]) for name in compute.SOURCES}
    made = dict(on_spark.relations(spark, tables, ["findings", "rules"]))
    for name in ("findings", "rules"):
        assert made[name].toArrow().to_pylist() == statistics("demo")[name].to_pylist()


# ---- texts


def test_durations_are_what_people_read() -> None:
    assert [duration(ns) for ns in (0, 999, 1_500, 139_400_000, 1_937_000_000, 125_000_000_000, 7_380_000_000_000)] == [
        "0 ns", "999 ns", "1.5 us", "139 ms", "1.94 s", "2 min 5 s", "2 h 3 min"
    ]  # fmt: skip


def test_numbers_and_words_agree() -> None:
    assert (
        filled("{n:count} connection(s) of {m:count} client(s)", {"n": 1, "m": 1200}) == "1 connection of 1,200 clients"
    )


def test_values_from_the_wire_are_no_templates() -> None:
    assert filled("{name}: {reason}", {"name": "{reason}(s)", "reason": "{name}"}) == "{reason}(s): {name}"


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
    assert main(["summary", str(CAPTURES / "demo.pcap"), "--rules", str(tmp_path / "mine.toml")]) == 0
    assert "exchange orders has 1,075 messages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("x.publishes > 1000", "x.nothing > 1"), "rule my-exchange: .*nothing"),
        (("exchanges x", "read_csv('/etc/passwd') x"), "rule my-exchange: "),
        (("{exchange}", "{queue}"), "names {queue}, which is not among its values"),
        (('"warning"', '"bad"'), "severity is not one of"),
        (("[[rule]]", "[[rules]]"), "no .*rule.* in it"),
    ],
)
def test_a_wrong_rule_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], message: str
) -> None:
    (tmp_path / "mine.toml").write_text(RULE.replace(*change))
    assert main(["summary", str(CAPTURES / "any_sll.pcap"), "--rules", str(tmp_path / "mine.toml")]) == 2
    out = capsys.readouterr()
    assert re.search(message, out.err) and len(out.err.splitlines()) == 1
    assert out.out == ""


# ---- the first screen


def test_the_first_screen_fits_a_terminal(tmp_path: Path) -> None:
    amqpscope.analyze(CAPTURES / "demo.pcap", tmp_path / "stats")
    data = first_screen.collect(tmp_path / "stats")
    for width in (60, 80, 120):
        text = first_screen.text(data, width)
        assert max(len(line) for line in text.splitlines() if not line.startswith("more:")) <= width
    assert "1 BROKER" in text and "warehouse" in text and "+359" in text
    assert first_screen.failing(data, ["error"]) and not first_screen.failing(data, ["cap-gaps"])


def test_what_cannot_be_read_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(CAPTURES / "tls_pika.pcap")]) == 0
    out = capsys.readouterr().out
    assert out.index("NOT READABLE") < 250 and "--keylog" in out
    assert "None of" not in out


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
    queues = amqpscope.analyze(tickets / "far_consumer.pcap")["queues"].to_pylist()
    assert [(row["ins"], row["outs"], row["left_over"]) for row in queues] == [(None, 74, None)]
