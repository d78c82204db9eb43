"""The page as a whole: complete, self-contained, safe, the same every time."""

import argparse
import hashlib
import html.parser
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import amqpscope
from amqpscope import spec
from amqpscope.dashboards import page, relations, theme
from amqpscope.dashboards.command import Report
from amqpscope.dashboards.tables import NOTE, Tables
from amqpscope.dissector.tables.formats import FORMAT
from amqpscope.pipelines.relations import compute
from tests.dashboards import synthetic

HOSTILE = [
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "'; alert(1)//", "</style></svg><b>", "{{ 7*7 }}",
    "\u202etxt.exe\u2066", "a\x00b\x1b[31m", "&lt;b&gt;", "<!--", "]]>", "`code`", "$\\frac{1}{0}$", "x" * 100_000,
    "\U0001f600" * 300, "javascript:alert(1)", "\n\n", "",
]  # fmt: skip
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Reader(html.parser.HTMLParser):
    """Elements and attributes, and whether every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


@pytest.fixture(scope="module")
def shop_page(shop: Tables) -> str:
    return page.render(shop)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Every text of every table is hostile, one after the other."""
    folder = tmp_path_factory.mktemp("hostile")
    kept = {"metric", "grouping", "cause", "evidence", "outcome"}
    for name, table in spec.tables().items():
        made = []
        for i, text in enumerate(HOSTILE * 2):
            row = {c.name: text for c in table.columns if c.type == "string"}
            row |= {c.name: 10**18 + 1000 * i for c in table.columns if c.type == "int64"}
            row |= {c.name: i for c in table.columns if c.type == "int32"}
            row |= {
                k: {"metric": "confirm", "cause": "prefetch", "evidence": "proven", "outcome": "ack"}.get(k)
                for k in kept
                if k in row
            }
            if name == "connections" and i % 2:
                step = {"step": text, "from_client": True, "ts_ns": 10**18, "packet": i, "detail": text}
                row |= {name: json.dumps([step]) for name in ("handshake_steps", "handshake_evidence")}
                row["handshake_notes"] = json.dumps([{"code": "channel-closed", "detail": text, "packet": i}])
                row |= {"handshake_facts": json.dumps({"user": text}), "handshake_outcome": "auth-failed"}
                row |= {"ending": None, "severity": "error", "client_properties": None, "server_properties": None}
            if "grouping" in row:
                row["grouping"] = ["all", "connection", "channel", "exchange", "routing_key", "queue", "consumer_tag"][
                    i % 7
                ]
            made.append(row)
        synthetic.write(folder, name, made)
    return Tables(folder, folder)


def test_the_page_is_whole(shop_page: str) -> None:
    reader = read(shop_page)
    headings = [s.title for s in page.sections(Tables())]
    assert headings == ["Verdicts on connections", "Connections", "Message sizes", "What was captured"]
    ids = [a["id"] for _, a in reader.tags if "id" in a]
    assert len(ids) == len(set(ids))
    shown, empty = ids[: ids.index("empty")], ids[ids.index("empty") :]
    order = [name for name in page._ORDER if name != "streams"]
    assert [i for i in shown if i in order] == [name for name in order if name not in empty]
    assert [i for i in empty if i in order] == [name for name in order if name in empty]
    charts = [a for _, a in reader.tags if a.get("class") == "chart"]
    assert len(charts) == sum(tag == "figure" or a.get("class") == "lane" for tag, a in reader.tags) >= 6
    assert all(a.get("role") == "img" and a.get("aria-label") for a in charts)
    assert all(a.get("aria-hidden") == "true" for tag, a in reader.tags if tag == "svg")
    assert all(a.get("scope") == "col" for tag, a in reader.tags if tag == "th")
    assert "frame.number in {" in "".join(reader.text)
    assert len(shop_page.encode()) < 2_000_000


def test_references_within_the_page_resolve(shop_page: str) -> None:
    reader = read(shop_page)
    ids = {a["id"] for _, a in reader.tags if "id" in a}
    used = set(re.findall(r"url\(#([^)]+)\)", shop_page)) | {
        (a["href"] or "")[1:] for _, a in reader.tags if a.get("href")
    }
    assert used <= ids


def test_the_page_needs_nothing_from_elsewhere(shop_page: str) -> None:
    readable = re.sub(r'(<script type="text/plain"[^>]*>)[A-Za-z0-9+/=]*', r"\1", shop_page)  # without packed data
    assert not re.search(
        r"https?:|(?<!amqp:)//[a-z]|@import|<link|<iframe|<object|url\((?!#)",
        re.sub(r"^\s*// .*", "", readable, flags=re.M),
    )
    for tag, attributes in read(shop_page).tags:
        assert tag not in {"link", "iframe", "object", "embed", "img", "image", "base"}
        assert "src" not in attributes
        assert all(v is None or v.startswith("#") for k, v in attributes.items() if k.endswith("href"))


def test_every_colour_of_the_theme_has_a_dark_one(shop_page: str) -> None:
    assert theme.INK.keys() == theme.DARK.keys()
    drawings = "".join(re.findall(r"<svg.*?</svg>", shop_page, re.S))
    left = set(re.findall(r"(?:fill|stroke): ?(#[0-9a-f]{3,6})", drawings))
    assert not left  # a colour that is no variable would not follow the page
    assert set(re.findall(r"(?:fill|stroke|color)[:=]\"?var\(--([\w-]+)\)", shop_page)) <= theme.INK.keys()


def test_hostile_names_stay_text(hostile: Tables) -> None:
    text = page.render(hostile)
    reader = read(text)
    scripts = [a.get("type") for tag, a in reader.tags if tag == "script"]
    assert scripts.count(None) == 1 and set(scripts) <= {None, "text/plain"}
    assert not [t for t, a in reader.tags if t == "img" or any(k.startswith("on") for k in a)]
    assert all(a.get("class") for t, a in reader.tags if t == "b")  # marks of ours; theirs would have none
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", text)
    shown = "".join(reader.text)
    assert "<script>alert(1)</script>" in shown
    assert "{{ 7*7 }}" in shown
    assert "\\u{202e}" in shown
    assert len(text.encode()) < 4_000_000


def test_tables_without_rows_are_normal(tmp_path: Path) -> None:
    for name in spec.tables():
        synthetic.write(tmp_path, name)
    text = page.render(Tables(tmp_path, tmp_path))
    assert "No channel with several publishes in confirm mode." in text
    assert "No flow control seen." in text
    assert "<svg" not in text
    read(text)


def test_missing_tables_are_reported(tmp_path: Path) -> None:
    synthetic.write(tmp_path, "rpcs")
    text = page.render(Tables(None, tmp_path))
    assert "There is no table <code>confirms</code>." in text
    assert "No synchronous requests." in text
    assert "was not found" in text


def test_without_statistics_the_page_says_what_brings_them(shop: Tables) -> None:
    text = page.render(Tables(shop.dissected))
    assert f"amqpscope analyze {shop.dissected} -o STATS" in text
    assert 'id="heat"' not in text
    assert "Connections" in text


def test_tables_that_are_not_complete_are_reported(tmp_path: Path) -> None:
    dissected, analyzed = synthetic.shop(tmp_path, 50)
    (dissected / NOTE).write_text('{"complete": false}')
    assert f"<code>{dissected}</code> is incomplete: dissect was interrupted." in page.render(Tables(dissected))
    assert Tables(None, analyzed).unfinished() == []


def test_statistics_of_other_tables_are_reported(tmp_path: Path) -> None:
    dissected, analyzed = synthetic.shop(tmp_path, 50)
    note = {"complete": True, "format": FORMAT}
    (dissected / NOTE).write_text(json.dumps({**note, "rows": {}}))
    digest = hashlib.sha256((dissected / NOTE).read_bytes()).hexdigest()[:16]
    (analyzed / NOTE).write_text(json.dumps({**note, "made_of": digest}))
    assert "changed after" not in page.render(Tables(dissected, analyzed))
    (dissected / NOTE).write_text(json.dumps({**note, "rows": {"messages": 1}}))
    assert "changed after the statistics" in page.render(Tables(dissected, analyzed))


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command = Report()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_the_command_writes_the_same_page_again_and_nothing_else(shop: Tables, shop_page: str, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    assert run(str(shop.analyzed), str(shop.dissected), "-o", str(out)) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]
    assert out.read_text(encoding="utf-8") == shop_page


@pytest.mark.parametrize("stem", ["demo", "stream_chunks"])
def test_the_page_of_a_capture_is_that_of_its_tables(stem: str, tmp_path: Path) -> None:
    """Of a capture nothing is written that no page shows."""
    capture = Path(__file__).parents[1] / "captures" / f"{stem}.pcap"
    tables = amqpscope.dissect(capture, tmp_path / "tables")
    amqpscope.analyze(tables, tmp_path / "tables" / "statistics")
    made = [amqpscope.report(source, tmp_path / name) for source, name in ((capture, "a.html"), (tables, "b.html"))]
    assert len({"".join(re.findall("<body.*", each.read_text(), re.DOTALL)) for each in made}) == 1


def test_pipes_and_links_are_written_through(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "tables", "rpcs")
    tables, pipe, link, linked = Tables(None, tmp_path / "tables"), *(tmp_path / n for n in ("pipe", "link", "linked"))
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:  # noqa: PTH123 - which waits for no writer
        page.write(tables, pipe)
        piped = reader.read()
    link.symlink_to(linked)
    page.write(tables, link)
    assert link.is_symlink() and linked.read_text() == piped and piped.endswith("</html>")


def test_the_command_says_what_is_wrong_in_one_line(shop: Tables, tmp_path: Path) -> None:
    for arguments in (
        [str(tmp_path / "none"), "-o", str(tmp_path / "x.html")],
        [str(shop.analyzed), "-o", str(tmp_path)],
        [str(shop.analyzed), "-o", str(tmp_path / "none" / "x.html")],
        [str(tmp_path), "-o", str(tmp_path / "x.html")],
    ):
        with pytest.raises((OSError, ValueError)) as caught:
            run(*arguments)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_command_loads_nothing_heavy() -> None:
    program = (
        "import sys; from amqpscope.dashboards import command; command.Report();"
        "print([m for m in ('matplotlib', 'jinja2', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("is_written", [True, False])
def test_the_order_of_rows_that_follow_from_statistics_changes_nothing(
    is_written: bool, demo_statistics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database has several threads, for `analyze` and for the page; findings have an order of their own."""
    names = {*relations.SHOWN} & {*compute.NAMES} - {*compute.FINDINGS}
    other, of_folder = tmp_path / "stats", compute.of_folder
    shutil.copytree(demo_statistics, other)
    for name in names:
        rows = pq.read_table(other / name)
        shutil.rmtree(other / name)
        if is_written:
            (other / name).mkdir()
            pq.write_table(shuffled(name, rows), other / name / "part-00000.parquet")
    monkeypatch.setattr(compute, "of_folder", lambda *a: ((name, shuffled(name, r)) for name, r in of_folder(*a)))
    assert page.render(Tables(None, demo_statistics)) == page.render(Tables(None, other))


def shuffled(name: str, rows: pa.Table) -> pa.Table:
    return rows.take(random.Random(name).sample(range(len(rows)), len(rows)))
