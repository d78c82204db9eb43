"""State as bytes: a dissector that hands it on, at whatever border, gives the rows of one that does not."""

import random
from functools import cache
from pathlib import Path

import pytest

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.model import PacketBatch
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.kernels.state import StateError
from amqpscope.dissector.tables.rows import Row as Found
from amqpscope.dissector.tcp.reassembler import Reassembler
from amqpscope.dissector.tcp.state import Facts
from tests.captures.damage.ways import HARMFUL, HARMLESS, ODD, Capture, numbered
from tests.dissector.builders import pcap
from tests.dissector.moves import Relay, Split, by_connection
from tests.dissector.runs import FOLDER, SETS, Row, dissect, recorded, tables

RECORDINGS = sorted([*FOLDER.glob("*.pcap"), *FOLDER.glob("*.pcapng"), *SETS])
SEVERAL = ("stream_super.pcap", "tls_failures.pcap", "violations.pcap", "lossy_link.pcap", "qpid_multi_session.pcap")
DAMAGED = ("tls_sessions_13.pcap", "stream_rstream.pcap", "failed_calls.pcap", "qpid_props.pcap", "port_reused.pcap")
BORDERS = 5
"""Batches that a recording is read in, about, unless it has less than 1500 bytes for each."""
INTERPRETED = ("stream_super.pcap", "tls_sessions.pcap", "lossy_link.pcap", "qpid_props.pcap")
pytestmark = pytest.mark.compiled


def options_of(path: Path, bodies: str = "hash") -> Options:
    """With the key log that lies beside a recording."""
    keylog = path.with_suffix(".keylog")
    return Options(bodies=bodies, keylog=str(keylog) if keylog.exists() else None)


@cache
def whole(path: Path) -> dict[str, list[Row]]:
    """The rows of a recording that one dissector reads."""
    return by_connection(dissect(path, options=options_of(path), compiled=True))


def relayed(path: Path, batch_bytes: int, options: Options, compiled: bool = True) -> Relay:
    """A pass over a recording in small batches."""
    return Relay(find([str(path)]), options, compiled=compiled, batch_bytes=batch_bytes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_state_may_move_at_any_border(path: Path) -> None:
    options = options_of(path)
    relay = relayed(path, max(1500, path.stat().st_size // BORDERS), options)
    found = by_connection(tables(relay, options))
    assert relay.borders > 1
    assert found == whole(path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_rows_of_a_connection_depend_on_no_other(path: Path) -> None:
    options = options_of(path)
    split = Split([str(path)], options, count=3, batch_bytes=1 << 14)
    assert by_connection(tables(split, options)) == whole(path)


@pytest.mark.parametrize("name", ["body_sizes.pcap", "stream_chunks.pcap", "rotated", "qpid_props.pcap"])
def test_bodies_that_go_on_move_along(name: str) -> None:
    options = options_of(FOLDER / name, bodies="full")
    found = by_connection(tables(relayed(FOLDER / name, 1, options), options))
    assert found == by_connection(dissect(FOLDER / name, options=options, compiled=True))


@pytest.mark.parametrize("name", INTERPRETED)
def test_state_may_move_interpreted(name: str) -> None:
    path = FOLDER / name
    options = options_of(path)
    assert by_connection(tables(relayed(path, 1500, options, compiled=False), options)) == whole(path)


def test_state_of_other_options_is_refused() -> None:
    state = Dissector(compiled=False).take_out()
    with pytest.raises(StateError, match="options"):
        Dissector(Options(bodies="full"), compiled=False).put_back(state)


@pytest.mark.parametrize("damage", [lambda s: b"", lambda s: s[:-1], lambda s: s + b"x", lambda s: b"a" + s[2:]])
def test_damaged_state_is_refused(damage) -> None:  # type: ignore[no-untyped-def]
    dissector = Dissector(compiled=False)
    with pytest.raises(StateError) as caught:
        dissector.put_back(damage(dissector.take_out()))
    assert "\n" not in str(caught.value)


def halved(path: Path, options: Options) -> tuple[Dissector, list[PacketBatch], list[Found]]:
    """A dissector that has taken the first half of a recording's packets, the other half, and the rows so far."""
    dissector = Dissector(options, compiled=True)
    dissector.captures.append(path.name)
    with path.open("rb") as file:
        batches = list(CaptureFile(file, path.name, 0, batch_bytes=1500, compiled=True))
    half = len(batches) // 2
    return dissector, batches[half:], [row for batch in batches[:half] for row in dissector.feed(batch)]


def open_connections(dissector: Dissector) -> list[int]:
    """Their identities."""
    facts = dissector.tcp.flows.facts
    found: list[int] = facts[(facts[:, Facts.USED] == 1) & (facts[:, Facts.ID] != 0), Facts.ID].tolist()
    return found


@pytest.mark.parametrize("name", SEVERAL)
def test_connections_move_one_by_one_to_where_others_are(name: str) -> None:
    """They find captures of other names there, and other connections in their slots."""
    options = options_of(FOLDER / name)
    dissector, _, before = halved(FOLDER / name, options)
    (home, _, expected) = halved(FOLDER / name, options)
    expected += home.finish()
    other, _, _ = halved(FOLDER / "heartbeats.pcap", options)
    strangers = set(open_connections(other))
    mine = open_connections(dissector)
    assert mine
    for identity in mine:
        other.put_back(dissector.take_out([identity]))
    assert open_connections(dissector) == []
    after = [*other.finish(end_ns=dissector.end_ns), *dissector.finish()]
    found = by_connection(tables([*before, *after]))
    assert {row["capture"] for row in found["anomalies"]} <= {name, "heartbeats.pcap"}
    for table, rows in by_connection(tables(expected)).items():
        assert [row for row in found[table] if row["connection_id"] not in strangers] == rows, table


@pytest.mark.parametrize("count", [1, 129, 1000])
def test_there_is_room_for_any_number_of_connections(count: int) -> None:
    """The hash table is searched by a mask, and never ends where its length is no power of two."""
    tcp = Reassembler(compiled=False)
    tcp.reserve(count, 0)
    assert tcp.flows.free[0] >= count
    assert len(tcp.flows.table).bit_count() == 1 and len(tcp.flows.table) >= 4 * len(tcp.flows.facts)


@pytest.mark.parametrize("name", ["pika_confirms.pcap", "stream_rstream.pcap", "tls_pika.pcap"])
def test_an_idle_connection_is_a_few_kilobytes(name: str) -> None:
    dissector, rest, _ = halved(FOLDER / name, options_of(FOLDER / name))
    empty = len(Dissector(options_of(FOLDER / name), compiled=True).take_out())
    for batch in rest[:-1]:
        list(dissector.feed(batch))
    (identity, *_) = open_connections(dissector)
    assert 0 < len(dissector.take_out([identity])) - empty < 4096


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", ["lossy", "reordered", "late", "snapped anywhere", "overlapping", "two cards"])
@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_captures_move_and_split(name: str, way: str, tmp_path: Path) -> None:
    packets, link = recorded(name)
    damaged = (HARMLESS | HARMFUL | ODD)[way](Capture(numbered(packets), link), random.Random(f"{name} {way}"))
    path = tmp_path / "damaged.pcap"
    path.write_bytes(pcap(damaged, ns=True, link=link))
    options = options_of(FOLDER / name)
    expected = by_connection(dissect(path, options=options, compiled=True))
    assert by_connection(tables(relayed(path, 4000, options), options)) == expected
    assert by_connection(tables(Split([str(path)], options, 3, 4000), options)) == expected
