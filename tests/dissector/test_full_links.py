"""Full links: made ones, seen from both ends, and what only looks like them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.dissector.builders import Packet
from tests.dissector.paths import MS, SEGMENT, NetworkPath
from tests.dissector.runs import dissect_packets, rows
from tests.dissector.wire import CLIENT, SERVER

SECOND = 1000 * MS


def full(packets: list[Packet], check: bool = False) -> list[dict[str, Any]]:
    made = rows(dissect_packets(packets, check=check)["tcp_events"])
    return [row for row in made if row["kind"] == "full-link"]


BULK = [(0.0, 300_000)]


@pytest.mark.parametrize("side", [CLIENT, SERVER])
@pytest.mark.parametrize("at_sender", [True, False])
def test_a_full_link_shows_at_both_of_its_ends(side: int, at_sender: bool) -> None:
    (event,) = full(NetworkPath([(0.0, 3_000), *BULK], side=side, at_sender=at_sender).packets(), check=True)
    assert event["from_client"] == (side == CLIENT)
    assert 15_000_000 < event["usual_round_trip_ns"] < 40_000_000 < event["round_trip_ns"]
    assert event["late_ns"] == event["ts_ns"] - event["of_ts_ns"] > SECOND
    rate = event["bytes"] * SECOND / event["late_ns"]
    assert 0.9 * 100_000 < rate < 1.1 * 100_000


def test_offloaded_segments_of_64_kb_show_it_as_well() -> None:
    assert full(NetworkPath(BULK, segment=44 * SEGMENT, window=130_000).packets())


def test_near_the_receiver_nothing_is_said_where_it_sends_nothing() -> None:
    assert not full(NetworkPath(BULK, at_sender=False, answers=0).packets())


@pytest.mark.parametrize("at_sender", [True, False])
def test_a_far_path_that_lets_everything_through_is_not_full(at_sender: bool) -> None:
    assert not full(NetworkPath([(0.0, 900_000)], rate=1e9, delay=lambda _: 40.0, at_sender=at_sender).packets())
    assert not full(NetworkPath([(0.0, 90_000)], rate=1e9, window=4 * SEGMENT, at_sender=at_sender).packets())


STEADY = [(10.0 * n, 1_000) for n in range(400)]


@pytest.mark.parametrize("at_sender", [True, False])
@pytest.mark.parametrize("later", [15.0, 40.0, 200.0])
def test_a_path_that_becomes_longer_is_not_full(later: float, at_sender: bool) -> None:
    changed = NetworkPath(STEADY, rate=1e9, delay=lambda ms: 10.0 if ms < 1_500 else later, at_sender=at_sender)
    assert not full(changed.packets())
    bulk = NetworkPath(
        [(0.0, 1_900_000)], rate=1e9, window=30_000, delay=lambda ms: 10.0 if ms < 500 else later, at_sender=at_sender
    )
    assert not full(bulk.packets())
    idle = NetworkPath([(0.0, 2_000), *((3_000 + ms, size) for ms, size in STEADY)], rate=1e9, at_sender=at_sender,
                delay=lambda ms: 10.0 if ms < 1_000 else later)  # fmt: skip
    assert not full(idle.packets())


def test_a_burst_that_fills_it_for_a_moment_is_none() -> None:
    assert not full(NetworkPath([(1_000.0 * n, 50_000) for n in range(5)]).packets())


def test_a_host_that_stumbles_is_no_full_link() -> None:
    rnd = random.Random(7)
    stalls = {n: rnd.choice([0, 0, 0, 30, 80]) for n in range(1_000)}
    held = NetworkPath(STEADY, rate=1e9, delay=lambda ms: 5.0 + max(stalls[int(ms // 50) % 1_000] - ms % 50, 0))
    assert not full(held.packets())


def test_a_device_that_answers_the_syn_makes_the_path_no_longer() -> None:
    assert not full(NetworkPath(STEADY, rate=1e9, delay=lambda _: 20.0).packets(syn_ms=1.0))
    assert full(NetworkPath(BULK, delay=lambda _: 20.0).packets(syn_ms=1.0))


def test_nothing_is_said_of_a_connection_that_was_slow_when_the_capture_began() -> None:
    whole = NetworkPath(BULK).packets()
    assert not full(whole[len(whole) // 3 :])


@pytest.mark.parametrize("keeps", [CLIENT, SERVER])
def test_one_direction_shows_nothing(keeps: int) -> None:
    """The server's address ends with 2."""
    source = b"\x0a\x00\x00\x01" if keeps == CLIENT else b"\x0a\x00\x00\x02"
    assert not full([each for each in NetworkPath(BULK).packets() if each.data[26:30] == source])


@pytest.mark.parametrize("at_sender", [True, False])
def test_packets_that_the_capture_lacks_make_none(at_sender: bool) -> None:
    """What is seen is at most what is seen of the whole, wherever packets are missing."""
    whole = NetworkPath([(0.0, 3_000), *BULK], at_sender=at_sender).packets()
    far = NetworkPath([(0.0, 600_000)], rate=1e9, delay=lambda _: 40.0, window=30_000, at_sender=at_sender).packets()
    for seed in range(3):
        rnd = random.Random(seed)
        for event in full([each for each in whole if rnd.random() > 0.02]):
            assert event["bytes"] * SECOND / event["late_ns"] < 1.1 * 100_000
        assert not full([each for each in far if rnd.random() > 0.02])


@pytest.mark.parametrize("step", [-2_000, -30, 30, 2_000])
def test_a_clock_that_steps_makes_none(step: int) -> None:
    far = NetworkPath(STEADY, rate=1e9).packets()
    half = len(far) // 2
    moved = [replace(each, ts_ns=each.ts_ns + step * MS) for each in far[half:]]
    assert not full([*far[:half], *moved])


def test_segments_that_were_cut_by_the_snap_length_count_whole() -> None:
    cut = [replace(each, data=each.data[:90]) for each in NetworkPath(BULK).packets()]
    assert [row["bytes"] for row in full(cut)] == [row["bytes"] for row in full(NetworkPath(BULK).packets())]


def test_it_ends_where_the_bytes_pause() -> None:
    twice = [(0.0, 300_000), (6_000.0, 300_000)]
    first, second = full(NetworkPath(twice).packets())
    assert first["ts_ns"] < second["of_ts_ns"] and second["of_ts_ns"] - first["ts_ns"] > SECOND
    assert all(a["ts_ns"] <= b["of_ts_ns"] for a, b in pairwise((first, second)))


def test_small_writes_that_wait_for_late_acknowledgements_are_none() -> None:
    """Nagle's algorithm: the next write goes when the last one is acknowledged, 40 ms later."""
    assert not full(NetworkPath([(41.0 * n, 300) for n in range(150)], rate=1e9, window=300, answers=0,
                         delay=lambda _: 0.1).packets())  # fmt: skip


@pytest.mark.compiled
@pytest.mark.parametrize("at_sender", [True, False])
def test_compiled_they_are_the_same(at_sender: bool) -> None:
    packets = NetworkPath([(0.0, 3_000), *BULK, (9_000.0, 200_000)], at_sender=at_sender).packets()
    made = rows(dissect_packets(packets, compiled=True)["tcp_events"])
    assert [row for row in made if row["kind"] == "full-link"] == full(packets) != []
