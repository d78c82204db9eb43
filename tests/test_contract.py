"""Names and types that notebooks and acceptance checks rely on: commands, options, tables, columns, words in columns.

More of anything may be added; what stands here is neither renamed, dropped nor retyped.
"""

from __future__ import annotations

import argparse
import re

import pytest

from amqpscope import spec
from amqpscope.dissector.cli import program
from amqpscope.dissector.protocols import registry
from amqpscope.spec.model import Table
from tests.contract import ANALYZED, DISSECTED, LEADING, LED, WORDS

CAPTURES = ("--port", "--spec", "--keylog", "--from", "--to", "--bodies")
COMMANDS = {
    "dissect": (*CAPTURES, "-o", "--format"),
    "frames": (*CAPTURES, "--format"),
    "handshakes": (*CAPTURES, "--format"),
    "spec": ("--spec",),
    "analyze": ("-o", "--master"),
    "report": ("-o",),
    "messages": (
        *CAPTURES,
        "--message-id",
        "--routing-key",
        "--queue",
        "--exchange",
        "--slower-than",
        "--unanswered",
        "--format",
    ),
}
CHOICES = {
    ("dissect", "--format"): ["parquet", "arrow"],
    ("frames", "--format"): ["text", "json", "csv"],
    ("handshakes", "--format"): ["text", "json", "csv"],
    ("summary", "--format"): ["text", "json"],
    ("messages", "--format"): ["text", "json", "csv"],
    ("dissect", "--bodies"): ["none", "hash", "full"],
}
DEFAULTS = {("dissect", "--bodies"): "hash", ("dissect", "--format"): "parquet", ("analyze", "--master"): None}


def columns(text: str) -> dict[str, str]:
    return dict(entry.split() for entry in text.split(","))


def declared(table: str) -> Table:
    found = spec.tables()[table]
    return found.with_methods(spec.load(found.methods_of)) if found.methods_of else found


@pytest.fixture(scope="module")
def parsers() -> dict[str, dict[str, argparse.Action]]:
    """Options of each command."""
    known = program.commands()
    assert {*COMMANDS} <= {*known}
    found = {}
    for name, command in known.items():
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        found[name] = {option: action for action in parser._actions for option in action.option_strings or [""]}
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(parsers: dict[str, dict[str, argparse.Action]], command: str) -> None:
    assert {*COMMANDS[command]} <= parsers[command].keys()


def test_options(parsers: dict[str, dict[str, argparse.Action]]) -> None:
    for (command, option), words in CHOICES.items():
        assert [*(parsers[command][option].choices or ())] == words
    for (command, option), default in DEFAULTS.items():
        assert command not in parsers or parsers[command][option].default == default
    assert {*WORDS["connections", "protocol"].split()} <= {*registry.shown_names()}


@pytest.mark.parametrize("table", [*DISSECTED, *ANALYZED])
def test_tables(table: str) -> None:
    found = {column.name: column.type for column in declared(table).columns}
    wanted = columns((DISSECTED | ANALYZED)[table])
    assert {name: found.get(name) for name in wanted} == wanted
    assert declared(table).written_by == ("dissect" if table in DISSECTED else "analyze")
    if table in LED:
        assert list(found.items())[: len(columns(LEADING))] == list(columns(LEADING).items())
    assert len({name.lower() for name in found}) == len(found)  # names of columns in SQL have no case


@pytest.mark.parametrize(("table", "column"), WORDS)
def test_words_are_documented(table: str, column: str) -> None:
    doc = next(each.doc for each in declared(table).columns if each.name == column)
    assert {*WORDS[table, column].split()} <= {*re.findall(r"[\w.-]*\w", doc)}


def test_latencies() -> None:
    from amqpscope.pipelines.latencies.latency import BITS, GROUPINGS, PERCENTILES  # noqa: PLC0415

    assert {*PERCENTILES} == {"p50_ns", "p90_ns", "p99_ns", "p999_ns", "p9999_ns"}
    assert PERCENTILES["p9999_ns"] == 9999
    assert BITS == 7
    doc = next(each.doc for each in declared("latency_summary").columns if each.name == "grouping")
    assert {*GROUPINGS} <= {*re.findall(r"\w+", doc)}


def test_no_type_that_some_reader_lacks() -> None:
    types = {column.type for table in spec.tables() for column in declared(table).columns}
    assert types <= {"bool", "int32", "int64", "string", "binary", "timestamp", "double"}
