"""What is said of several things at once is true of all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

import amqpscope
from amqpscope.dashboards import waits
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.handshakes.listing import NAMES_OF_FIRST, Group, said_of
from amqpscope.spec import tables as declared
from amqpscope.spec.codes import load as codes
from tests.captures.damage.recordings import FOLDER, Recording
from tests.dissector.builders import Packet, pcap
from tests.dissector.wire import CLIENT, SERVER, Tape, handshake, method, opening
from tests.pipelines.analyzed import findings as findings_of
from tests.pipelines.analyzed import walked

TICKETS = Path(__file__).parents[1] / "tickets"


def findings(packets: list[Packet], folder: Path) -> dict[str, dict[str, Any]]:
    (folder / "made.pcap").write_bytes(pcap(sorted(packets, key=lambda each: each.ts_ns), ns=True))
    return {row["code"]: row for row in amqpscope.analyze(folder / "made.pcap")["findings"].to_pylist()}


def unknown_tags(*tags: int) -> list[Packet]:
    """A connection whose channels each settle a delivery that they do not have."""
    tape = Tape().play(handshake())
    for channel, tag in enumerate(tags, 1):
        text = f"PRECONDITION_FAILED - unknown delivery tag {tag}"
        tape.play([
            *opening(channel),
            (CLIENT, method(commands.Basic.Ack(tag), channel)),
            (SERVER, method(commands.Channel.Close(406, text, 60, 80), channel)),
            (CLIENT, method(commands.Channel.CloseOk(), channel)),
        ])  # fmt: skip
    return tape.packets


@pytest.mark.parametrize(
    ("tags", "text"),
    [
        ((11,), "unknown delivery tag 11; 1 channel closed"),
        ((7, 7), "unknown delivery tag 7; 2 channels closed"),
        ((11, 22, 33), "unknown delivery tag 11 at first, then 2 others; 3 channels closed"),
    ],
)
def test_tags_of_several_channels(tmp_path: Path, tags: tuple[int, ...], text: str) -> None:
    assert text in findings(unknown_tags(*tags), tmp_path)["con-unknown-tag"]["text"]


def closed_by_hand(ports: tuple[int, ...], reasons: tuple[str, ...]) -> list[Packet]:
    packets: list[Packet] = []
    for port, reason in zip(ports, reasons, strict=True):
        tape = Tape(port=port).play([
            *handshake(), *opening(1), (SERVER, method(commands.Connection.Close(320, reason, 0, 0), 0)),
            (CLIENT, method(commands.Connection.CloseOk(), 0)),
        ])  # fmt: skip
        packets += tape.packets
    return packets


def test_a_reason_is_that_of_its_connections(tmp_path: Path) -> None:
    """Three connections that ended with the same code, one of them for a reason of its own."""
    reasons = ("CONNECTION_FORCED - Closed via management plugin", *["CONNECTION_FORCED - user's connections"] * 2)
    path = tmp_path / "made.pcap"
    packets = closed_by_hand((40001, 40002, 40003), reasons)
    path.write_bytes(pcap(sorted(packets, key=lambda each: each.ts_ns), ns=True))
    statistics = amqpscope.analyze(path)
    texts = [row["text"] for row in statistics["findings"].to_pylist() if row["code"] == "cnx-forced"]
    assert sorted(text.partition(" closed ")[2].partition(" connection")[0] for text in texts) == ["1", "2"]
    (failure,) = statistics["failures"].to_pylist()
    assert (failure["connections"], failure["same_cause"]) == (3, False)


@pytest.mark.parametrize("count", [1, 3])
def test_a_name_in_a_text_is_said_to_be_of_the_first(count: int) -> None:
    groups = [Group({"handshake_facts": f'{{"vhost": "/{number}"}}'}) for number in range(count)]
    text = said_of("Create it: rabbitmqctl add_vhost {vhost}.", groups)
    assert text == "Create it: rabbitmqctl add_vhost /0." + (f" ({NAMES_OF_FIRST})" if count > 1 else "")
    assert said_of("Look into the log.", groups) == "Look into the log."


def at_the_broker(recording: Recording, way_ns: int) -> list[Packet]:
    """A capture at the client as one at the broker, where the way takes this long."""
    segments = recording.capture.segments
    moved = [
        replace(packet, ts_ns=packet.ts_ns + (-way_ns if segment and segment.flow[1] == 5672 else way_ns))
        for packet, segment in zip(recording.capture.packets, segments, strict=True)
    ]
    return sorted(moved, key=lambda packet: packet.ts_ns)


def of_folder(packets: list[Packet], folder: Path, link: int) -> Tables:
    (folder / "made.pcap").write_bytes(pcap(packets, ns=True, link=link))
    amqpscope.dissect(folder / "made.pcap", folder / "tables")
    amqpscope.analyze(folder / "tables", folder / "statistics")
    return Tables(folder / "tables", folder / "statistics")


def test_a_full_prefetch_is_not_the_consumers_where_the_way_takes_the_time(tmp_path: Path) -> None:
    """The same recording at the client, and as the broker sees it: each wait has the round trip of 40 ms in it."""
    recording = Recording.of(TICKETS / "far_consumer.pcap")
    for name, way_ns in (("client", 0), ("broker", 20_000_000)):
        (tmp_path / name).mkdir()
        tables = of_folder(at_the_broker(recording, way_ns), tmp_path / name, recording.link)
        total, way = waits.on_the_way(tables)
        grid = waits.longest_grid(tables)
        assert grid is not None
        sides = {row[6].text for row in grid.rows if row[0].text == "prefetch window full"}
        if way_ns:
            assert 0.9 * total < way <= total
            assert all(side.startswith("mostly the way to the client (40") for side in sides)
            assert "the way takes that time" in (waits.totals_grid([], 0, (total, way)).note or "")
        else:
            assert way < 0.1 * total
            assert sides == {"client"}


def test_what_a_refusal_and_a_requeue_mean_is_no_more_than_is_known() -> None:
    (nack,) = {v.doc for each in codes() for v in each.values if v.name == "nack" and "broker" in v.doc}
    assert "lost" not in nack and "dead-lettered" in nack
    (requeue,) = [column for column in declared()["settlements"].columns if column.name == "requeue"]
    assert "asked" in requeue.doc and "not on this connection" in requeue.doc


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        (FOLDER / "reject_publish.pcap", "pub-nacked", "it went to the dead-letter exchange"),
        (TICKETS / "full_queue.pcap", "pub-nacked", "it went to the dead-letter exchange"),
        (TICKETS / "full_in_bytes.pcap", "pub-nacked", "it went to the dead-letter exchange"),
        (TICKETS / "delivery_limit.pcap", "con-redelivery-loop", "Unless the queue has x-delivery-limit"),
        (TICKETS / "requeue_loop.pcap", "con-redelivery-loop", "limit deliveries (x-delivery-limit"),
    ],
)
def test_nothing_is_called_lost_or_put_back_that_may_not_be(path: Path, code: str, said: str) -> None:
    (row,) = (row for row in findings_of(walked(path)) if row["code"] == code)
    text = f"{row['text']} {row['advice']}"
    assert said in text
    assert "lost" not in text and "put back" not in text
