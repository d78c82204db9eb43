"""Conditions of rules: what they say of statistics that differ from recorded ones in one thing."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from amqpscope.pipelines.model.walk import conform
from tests.pipelines.analyzed import findings, related, walked
from tests.tickets import FOLDER as TICKETS

SECOND = 10**9


def ticket(name: str) -> dict[str, pa.Table]:
    return walked(TICKETS / f"{name}.pcap")


def changed(table: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        at = table.column_names.index(name)
        table = table.set_column(at, table.schema.field(name), pa.array(values, table.schema.field(name).type))
    return table


def codes(tables: dict[str, pa.Table]) -> list[str]:
    return [row["code"] for row in findings(tables)]


# ---------------------------------------------------------------------- a consumer that began before, and is too slow


@pytest.fixture(scope="module")
def begun() -> dict[str, pa.Table]:
    """It has all the time what its prefetch lets it; how long messages waited is not known."""
    tables = ticket("begun_and_slow")
    return tables | {"transits": tables["transits"].slice(0, 0)}


def test_what_was_published_meanwhile_shows_a_slow_consumer(begun: dict[str, pa.Table]) -> None:
    assert codes(begun) == ["con-slow", "cap-begun"]


def test_what_was_published_before_it_took_any_does_not(begun: dict[str, pa.Table]) -> None:
    times = {
        name: [each - 3600 * SECOND for each in begun["published"][name].to_pylist()]
        for name in ("ts_ns", "first_ts_ns", "last_ts_ns")
    }
    assert "con-slow" not in codes(begun | {"published": changed(begun["published"], **times)})


def test_what_was_published_in_another_virtual_host_does_not(begun: dict[str, pa.Table]) -> None:
    (publisher,) = set(begun["published"]["connection_id"].to_pylist())
    whose = begun["endpoints"]["connection_id"].to_pylist()
    elsewhere = changed(begun["endpoints"], vhost=["other" if each == publisher else "one" for each in whose])
    assert "con-slow" not in codes(begun | {"endpoints": elsewhere})
    one = changed(begun["endpoints"], vhost=["other" if each == publisher else None for each in whose])
    assert "con-slow" in codes(begun | {"endpoints": one}), "the consumer's may be that"


# ------------------------------------------------------------------------- confirms that cannot be told from refusals


def test_where_nobody_knows_what_was_refused_nothing_is_fine(begun: dict[str, pa.Table]) -> None:
    """The channel's numbers are not known, for it began before."""
    states = {row["code"]: (row["state"], row["reason"]) for row in related(begun, "rules")}
    unknown = ("not-measurable", "which publishes were confirmed, and which refused, is not known")
    assert {states[code] for code in ("pub-nacked", "pub-late", "pub-unconfirmed")} == {unknown}
    (row,) = [row for row in findings(begun) if row["code"] == "cap-begun"]
    assert "; nor which of 244 publishes the broker confirmed, and which it refused" in row["text"]


# ------------------------------------------------------------------------------------------- streams that are missing


@pytest.mark.parametrize(
    ("request_", "stream", "found"),
    [("create", "events", True), ("create", "ordrs", False), ("create-super-stream", "ordrs", True)],
)
def test_a_stream_is_missing_although_another_one_is_made(request_: str, stream: str, found: bool) -> None:
    tables = ticket("stream_absent")
    last = tables["stream_metadata"]["ts_ns"].to_pylist()[-1]
    made = {"connection_id": tables["endpoints"]["connection_id"][0].as_py(), "from_client": True, "outcome": "ok"}
    made |= {"request": request_, "stream": stream, "request_ts_ns": last + 1, "response_ts_ns": last + 2}
    row = conform("rpcs", {name: pa.array([value]) for name, value in made.items()}, 1)
    both = pa.concat_tables([tables["rpcs"], row])
    assert ("str-missing" in codes(tables | {"rpcs": both})) is found


def test_parts_of_a_super_stream_that_is_made_are_not_missing() -> None:
    tables = ticket("stream_made")
    names = pc.replace_substring_regex(tables["stream_metadata"]["stream"], r"^stream_made$", "stream_made-0")
    first = tables["stream_metadata"]["response_code"].to_pylist()[0]
    asked = changed(
        tables["stream_metadata"], stream=names.to_pylist(), response_code=[first] * len(tables["stream_metadata"])
    )
    asked = asked.slice(0, 1)
    assert "str-missing" in codes(tables | {"stream_metadata": asked})
    requests = ["create-super-stream" if each == "create" else each for each in tables["rpcs"]["request"].to_pylist()]
    whole = tables | {"stream_metadata": asked, "rpcs": changed(tables["rpcs"], request=requests)}
    assert "str-missing" not in codes(whole)


# ------------------------------------------------------------------------------------------------------- what is cut


def ended(*connections: tuple[float, float | None], up: bool = True) -> dict[str, pa.Table]:
    """Connections of one server that it ended without a close: when, after which silence (s); `up` is the last one."""
    count = len(connections)
    columns: dict[str, list[Any]] = {
        "connection_id": list(range(count)), "server": ["b:5672"] * count, "client": ["c"] * count,
        "closed_by": ["server-fin"] * count, "severity": ["error"] * count,
        "ending": ["server-gone"] * (count - 1) + ["server-gone" if up else None],
        "quiet_ns": [None if each is None else int(each * SECOND) for _, each in connections],
        "closed_ts_ns": [10**18 + int(at * SECOND) for at, _ in connections],
        "last_packet": list(range(count)), "first_ts_ns": [10**18] * count, "last_ts_ns": [10**18 + 10**13] * count,
    }  # fmt: skip
    return {"endpoints": conform("endpoints", {name: pa.array(values) for name, values in columns.items()}, count)}


def cut(*connections: tuple[float, float | None], up: bool = True) -> list[int]:
    return sorted(row["connection_id"] for row in related(ended(*connections, up=up), "cuts"))


def test_silences_are_the_same_within_a_twentieth() -> None:
    assert cut((0, 60), (10, 61), (20, 120), (30, 124), (40, 300)) == [0, 1, 2, 3]
    assert cut((0, 60), (10, 64)) == []
    assert cut((0, 60), (0.5, 60)) == [], "at one time"


def test_connections_that_end_at_once_are_not_cut_for_their_silence() -> None:
    """The broker ends, and one of its connections was silent for as long as another one that was cut before."""
    ends = ((500, 61), (500.2, 30), (501.9, None))
    assert cut((0, 60), *ends) == []
    assert cut((0, 60), (200, 60), *ends) == [0, 1]
    found = findings(ended((0, 60), (200, 60), *ends))
    assert sorted((row["code"], row["count"]) for row in found) == [("cnx-aborted", 3), ("cnx-middlebox", 2)]


@pytest.mark.parametrize("other", [(500.2, 30), (499.5, None), (501, 0)])
def test_one_other_connection_that_ends_then_hides_no_cut(other: tuple[float, float | None]) -> None:
    assert cut((0, 60), (500, 61), other) == [0, 1]


def test_connections_that_did_not_come_up_hide_no_cut() -> None:
    """Somebody looks whether the port is open."""
    assert cut((0, 60), (500, 61), (500.2, 30), (500.3, None), up=False) == [0, 1]


def test_any_silence_is_compared() -> None:
    """Of none there is no logarithm, and of one of years twenty times as much is no int64."""
    years = 40 * 365 * 86_400
    assert cut((0, 0), (10, 0), (0, years), (1000, years + 1)) == [2, 3]


# --------------------------------------------------------------------------------------------------------- exchanges


def test_an_exchange_is_as_its_first_declaration_that_succeeded() -> None:
    """One was refused before it, and another one follows."""
    count, kinds, outcomes = 4, ["topic", "direct", "fanout", "direct"], ["error", None, "error", "ok"]
    columns: dict[str, Any] = {
        "connection_id": [1] * count, "frame_no": list(range(count)), "ts_ns": list(range(count)),
        "exchange": ["e"] * count, "method": ["exchange.declare"] * count,
        "capture": [f"{each}.pcap" for each in range(count)],
        "packet": list(range(count)), "exchange_type": kinds,
    }  # fmt: skip
    asked = {"connection_id": [1, 1, 1], "request_frame_no": [0, 2, 3], "outcome": [outcomes[at] for at in (0, 2, 3)]}
    tables = {"operations": conform("operations", {name: pa.array(each) for name, each in columns.items()}, count)}
    tables["rpcs"] = conform("rpcs", {name: pa.array(each) for name, each in asked.items()}, 3)
    tables["endpoints"] = conform("endpoints", {"connection_id": pa.array([1]), "server": pa.array(["b:5672"])}, 1)
    (row,) = related(tables, "exchanges")
    assert (row["type"], row["declared_packet"], row["declared_capture"]) == ("direct", 1, "1.pcap")
