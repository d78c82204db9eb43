"""Exports of the demo, read by independent readers: Perfetto's own schema, HdrHistogram, Prometheus' parser."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from amqpscope.dashboards import relations
from amqpscope.dashboards.exports import KINDS, hgrm, openmetrics, otlp
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.cli.program import main
from amqpscope.pipelines.latencies import log_linear
from tests.dashboards.synthetic import rows
from tests.oracles import needs

DEMO = Path(__file__).parents[1] / "captures" / "demo.pcap"


@pytest.fixture(scope="module")
def demo(demo_folder: Path) -> Tables:
    return Tables(demo_folder / "tables", demo_folder / "stats")


@pytest.fixture(scope="module")
def written(demo: Tables, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exports")
    for kind in KINDS:
        words = ["export", str(demo.dissected), str(demo.analyzed), "--as", kind, "-o", str(folder / kind)]
        assert main(words) == 0
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture(scope="module")
def trace(written: dict[str, Path]) -> Any:
    found = Trace()
    found.ParseFromString(written["perfetto"].read_bytes())
    return found


def test_slices_are_the_publishes_and_deliveries(demo: Tables, trace: Any) -> None:
    begun: dict[int, tuple[int, int, int]] = {}
    found: Counter[tuple[int, int, int]] = Counter()
    for packet in trace.packet:
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in begun, "slices of a track overlap"
            facts = {each.name: each.int_value for each in event.debug_annotations}
            begun[event.track_uuid] = (packet.timestamp, facts["packet"], facts.get("answer", 0))
        elif event.type == event.TYPE_SLICE_END:
            begin, first, last = begun.pop(event.track_uuid)
            found[begin, packet.timestamp, (first, last)] += 1
    expected = Counter(
        (
            r[f"{a}_ts_ns"],
            max(r[f"{b}_ts_ns"] or r["end_ts_ns"] or 0, r[f"{a}_ts_ns"] + 1),
            (r[f"{a}_packet"], r[f"{b}_packet"] or 0),
        )
        for table, a, b in (("confirms", "publish", "confirm"), ("settlements", "deliver", "settle"))
        for r in rows(demo, table)
    )
    assert not begun and found == expected


def test_flows_lead_from_publishes_to_their_deliveries(demo: Tables, trace: Any) -> None:
    of: dict[int, list[int]] = {}
    for packet in trace.packet:
        for flow in packet.track_event.flow_ids:
            of.setdefault(flow, []).append(packet.timestamp)
    joined = {
        (r["publish_ts_ns"], r["deliver_ts_ns"]) for r in rows(demo, "transits") if r["publish_frame_no"] is not None
    }
    confirmed = {r["publish_ts_ns"] for r in rows(demo, "confirms")}
    shown = {(min(times), each) for times in of.values() if len(times) > 1 for each in times if each != min(times)}
    assert {pair for pair in joined if pair[0] in confirmed} <= shown


def test_tracks_have_names_and_parents(trace: Any) -> None:
    known = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    assert {p.track_event.track_uuid for p in trace.packet if p.HasField("track_event")} <= known.keys()
    assert all(each.parent_uuid in known for each in known.values() if each.HasField("parent_uuid"))
    assert any(each.name.startswith("checkout 127.0.0.1:") for each in known.values())
    findings = [p for p in trace.packet if p.track_event.type == p.track_event.TYPE_INSTANT]
    assert any(p.track_event.name.startswith("[pub-blocked]") for p in findings)
    counts = [p.track_event.counter_value for p in trace.packet if p.track_event.type == p.track_event.TYPE_COUNTER]
    assert max(counts) == 100


def read(path: Path) -> list[list[float]]:
    lines = path.read_text().splitlines()
    assert lines[0].split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"] and lines[1] == ""
    return [[float(word) for word in line.split()] for line in lines[2:] if not line.startswith("#")]


@pytest.mark.parametrize(("metric", "table"), [("confirm", "confirms"), ("settlement", "settlements"), ("rpc", "rpcs")])
def test_percentiles_are_those_of_sorting(demo: Tables, written: dict[str, Path], metric: str, table: str) -> None:
    latencies = np.sort([r["latency_ns"] for r in rows(demo, table) if r["latency_ns"] is not None]) / 1e6
    shown = read(written["hgrm"] / f"{metric}.hgrm")
    assert shown[-1][1:] == [1.0, len(latencies)] and shown[-1][0] == pytest.approx(latencies[-1], abs=0.001)
    for value, share, count, inverse in shown[:-1]:
        exact = latencies[max(int(np.ceil(share * len(latencies) - 1e-9)), 1) - 1]
        assert exact - 0.001 <= value <= exact * 1.009 + 0.001
        assert inverse == pytest.approx(1 / (1 - share), abs=0.006)
        assert abs(count - np.searchsorted(latencies, value, side="right")) <= np.sum(
            np.abs(latencies - value) <= 0.001
        )


def test_shares_are_those_that_hdrhistogram_iterates_over(tmp_path: Path) -> None:
    values = np.unique(np.geomspace(1000, 10**9, 5000).astype(np.int64))
    oracle = HdrHistogram(1, 10**10, 3)
    for value in values.tolist():
        oracle.record_value(value)
    with (tmp_path / "oracle").open("wb") as file:
        oracle.output_percentile_distribution(file, 1e6)
    buckets, counts = np.unique(log_linear.bucket_of(values), return_counts=True)
    edges = zip(
        log_linear.low_of(buckets).tolist(), (log_linear.high_of(buckets) - 1).tolist(), counts.tolist(), strict=True
    )
    (tmp_path / "ours").write_text(hgrm.text(list(edges)))
    ours, theirs = read(tmp_path / "ours"), read(tmp_path / "oracle")
    shares = {round(row[1], 9) for row in theirs}
    assert {round(row[1], 9) for row in ours if row[1] < 0.999} <= shares
    assert len(ours) > 40


def test_spans_are_the_publishes_and_deliveries(demo: Tables, written: dict[str, Path]) -> None:
    spans, services = [], set()
    for line in written["otlp"].read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            services |= {
                a["value"]["stringValue"] for a in resource["resource"]["attributes"] if a["key"] == "service.name"
            }
            spans += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
    assert len(spans) == len(rows(demo, "confirms")) + len(rows(demo, "settlements"))
    assert {"checkout", "till", "billing"} <= services
    ids = {span["spanId"] for span in spans}
    assert len(ids) == len(spans) and all(len(s["spanId"]) == 16 and len(s["traceId"]) == 32 for s in spans)
    assert all(int(s["startTimeUnixNano"]) <= int(s["endTimeUnixNano"]) for s in spans)
    assert sum(s.get("status", {}).get("code") == otlp.FAILED for s in spans) == sum(
        r["outcome"] in ("nack", "reject", "none") for name in ("confirms", "settlements") for r in rows(demo, name)
    )
    headers = {
        (r["trace_id"], json.loads(r["headers"])["traceparent"].split("-")[2])
        for r in rows(demo, "messages")
        if r["trace_id"]
    }
    given = [s for s in spans if not any(a["key"] == "amqpscope.synthetic" for a in s["attributes"])]
    assert given and {(s["traceId"], s.get("parentSpanId")) for s in given} <= headers
    made = [s for s in spans if s not in given and s["kind"] == otlp.CONSUMER and "parentSpanId" in s]
    assert made


def test_a_time_series_database_reads_the_metrics(demo: Tables, written: dict[str, Path]) -> None:
    text = written["openmetrics"].read_text()
    head, *histograms = text.partition("# TYPE messaging_client_operation_duration_seconds")
    assert text.endswith("# EOF\n")
    families = {f.name: f for f in text_string_to_metric_families(f"{head}# EOF\n")}
    sent = families["messaging_client_sent_messages"].samples
    last = {tuple(sorted(s.labels.items())): s.value for s in sent if "client" in s.labels}
    assert sum(last.values()) == sum(r["publishes"] for r in relations.rows(demo, "clients"))
    *described, _ = "".join(histograms).split("\n", 3)
    lines = [line for line in "".join(histograms).splitlines() if line.startswith("messaging")]
    per_moment = len(openmetrics.BOUNDS) + 3
    counts = []
    for at in range(0, len(lines), per_moment):  # the reader takes one moment of a histogram at a time
        part = "\n".join([*described, *lines[at : at + per_moment], "# EOF\n"])
        (family,) = text_string_to_metric_families(part)
        counts += [s for s in family.samples if s.name.endswith("_count")]
    final = {tuple(sorted(s.labels.items())): s.value for s in counts}
    assert sum(v for k, v in final.items() if ("messaging_operation_name", "send") in k) == sum(
        r["latency_ns"] is not None for r in rows(demo, "confirms")
    )
    moments = [float(s.timestamp) for s in sent]
    assert min(moments) * 1e9 >= min(r["publish_ts_ns"] for r in rows(demo, "confirms")) - 1e9


@needs("promtool")
def test_a_time_series_database_has_all_samples(written: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()  # which it reads before its blocks
    load = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(written["openmetrics"]), str(tmp_path)]
    subprocess.run(load, check=True, capture_output=True)
    dumped = subprocess.run(["promtool", "tsdb", "dump", str(tmp_path)], check=True, capture_output=True, text=True)
    samples = [line for line in written["openmetrics"].read_text().splitlines() if not line.startswith("#")]
    ends = Counter((float(value), round(float(at) * 1000)) for _, value, at in (x.rsplit(" ", 2) for x in samples))
    assert len(samples) > 1000
    found = Counter((float(value), int(at)) for _, value, at in (x.rsplit(" ", 2) for x in dumped.stdout.splitlines()))
    assert found == ends


@pytest.mark.parametrize(
    ("one", "other"), [("q" * 250 + "1", "q" * 250 + "2"), ("a\n", r"a\u{a}"), ("a\n", "a\r"), ("a", "a\0")]
)
def test_names_that_look_alike_are_series_of_their_own(one: str, other: str) -> None:
    """Else what comes of the second is dropped, for the times of the first are later."""
    made = openmetrics._labels(client=one), openmetrics._labels(client=other)
    assert made[0] != made[1] and all(text.isprintable() and len(text) < 250 for text in made)


@pytest.mark.parametrize("traceparent", ["00-aa-bb-01", "x", None, 7, [], "00-" + "a" * 32 + "-" + "Z" * 16 + "-01"])
def test_what_is_no_traceparent_is_no_parent(traceparent: Any) -> None:
    assert otlp._parent(json.dumps({"traceparent": traceparent})) is None
    assert otlp._parent("[1") is None and otlp._parent(None) is None


def test_what_cannot_be_is_one_line(demo: Tables, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    for words, said in (
        ([str(DEMO), "--as", "hgrm"], "is no folder of tables; run `amqpscope analyze"),
        ([str(tmp_path / "none"), "--as", "hgrm"], "no such folder"),
    ):
        assert main(["export", *words, "-o", str(out)]) == 2
        assert said in capsys.readouterr().err
    out.touch()
    assert main(["export", str(demo.analyzed), "--as", "otlp", "-o", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
