from pathlib import Path
from typing import Any

import amqpscope
from amqpscope.dashboards import first_screen
from amqpscope.dashboards.tables import Tables
from amqpscope.dashboards.time_spent import sentence, telling
from tests.pipelines.analyzed import related, statistics
from tests.tickets import path_of

SECOND = 10**9


def spent(number: int = 1, **columns: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("unknown_ns", "network_ns", "broker_ns", "client_ns", "idle_ns", "blocked_ns"), 0)
    row = {
        "connection_id": number,
        "client": None,
        "server": "s",
        "retransmitted_bytes": 0,
        "captured_near": None,
        **empty,
        **columns,
    }
    return row | {"wall_ns": sum(row[name] for name in empty if name != "blocked_ns")}


def test_the_largest_share_comes_first_and_small_ones_not_at_all() -> None:
    row = spent(client_ns=60 * SECOND, broker_ns=30 * SECOND, idle_ns=9_990_000_000, network_ns=10_000_000)
    assert (
        sentence(row)
        == "100 s: 60% the broker waits for the client, 30% the client waits for the broker, 10% no wait seen"
    )


def test_blocks_and_the_capture_point_are_named() -> None:
    row = spent(broker_ns=3 * SECOND, blocked_ns=2 * SECOND, idle_ns=SECOND, captured_near="server")
    assert sentence(row) == (
        "4 s: 75% the client waits for the broker (blocked for 2 s), 25% no wait seen; captured near the broker"
    )


def test_time_lost_to_retransmissions_is_the_networks() -> None:
    (lossy,) = related(statistics("lossy_link"), "time_spent")
    assert lossy["network_ns"] > 206_000_000, "one packet came 206 ms late"
    assert "on the way or held by TCP (3.7 kB were sent again)" in sentence(lossy)


def test_what_is_not_sure_is_said() -> None:
    assert sentence(spent(unknown_ns=SECOND)).startswith("1 s: 100% cannot be told")
    assert sentence(spent()) == "no time passed"
    assert sentence(spent(idle_ns=SECOND, captured_near="<somewhere>")) == "1 s: 100% no wait seen"


def numbers(rows: list[dict[str, Any]], findings: list[int], most: int = 9) -> list[int]:
    return [row["connection_id"] for row in telling(rows, [{"connection_id": each} for each in findings], most)]


def test_connections_of_findings_come_first_then_those_that_waited_longest() -> None:
    waits = [spent(1, broker_ns=5 * SECOND), spent(2, broker_ns=SECOND), spent(4, client_ns=2 * SECOND)]
    rows = [*waits, spent(3, idle_ns=SECOND), spent(5, client_ns=9)]
    assert numbers(rows, [2, 4], 3) == [2, 4, 1]
    assert numbers(rows, []) == [1, 4, 2], "not who did not wait, nor for an instant"
    assert numbers([row | {"client": "web"} for row in rows], []) == [1, 4], "one that says the same is enough"
    of_one = [row | {"client": "web" if row["connection_id"] in (2, 5) else "shop"} for row in rows]
    assert numbers(of_one, [5]) == [2, 1, 4], "a finding names a client by one of its connections"
    assert numbers([], [1]) == []


def test_the_first_screen_has_it_within_its_width() -> None:
    rows = [row | {"client": "a" * 50, "client_port": 5} for row in (spent(1, broker_ns=SECOND, blocked_ns=SECOND),)]
    lines = first_screen._times({"time_spent": rows, "findings": []}, 60).splitlines()
    assert lines[0] == "WHERE TIME WENT"
    assert max(map(len, lines)) <= 60
    assert first_screen._times({"time_spent": [], "findings": []}, 60) == ""


def test_a_path_that_took_most_of_the_time_gives_a_sign(tmp_path: Path) -> None:
    """It became longer: nothing was lost, and no rule has a name for it."""
    data = first_screen.collect(Tables(None, amqpscope.analyze(path_of("longer_path_bunny"), tmp_path / "stats")))
    assert "- network: nothing was lost (round trip" in first_screen.text(data, 80)
