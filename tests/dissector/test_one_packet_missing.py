"""Verdicts on recordings that lack one packet, or the ends of packets: none wrong, and none withheld that is proven."""

import random

import pytest

from tests.captures.damage.recordings import Recording
from tests.captures.damage.verdicts import UNKNOWN, judged
from tests.captures.damage.ways import snapped
from tests.dissector.runs import FOLDER, rows

RECORDED = (
    "failed_handshakes", "refused_opens", "refused_tunings", "stream_refusals", "thrown_out", "orders_pika",
    "tls_failures",
)  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", RECORDED)
def test_no_verdict_is_wrong_without_one_packet(name: str) -> None:
    found = judged(FOLDER / f"{name}.pcap", compiled=False)
    assert found["wrong"] == found["proven"] == 0
    assert found["same"] > 2 * found["gap"]


@pytest.mark.parametrize("name", ["thrown_out", "refused_logins", "other_port", "never_confirmed", "begun_before"])
@pytest.mark.parametrize("snap", [64, 96, 128])
def test_no_verdict_is_wrong_where_packets_are_cut(name: str, snap: int) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    cut = recording.dissect(snapped(recording.capture, random.Random(), snap))
    said, right = (
        {row["connection_id"]: (row["handshake_outcome"], row["ending"]) for row in rows(tables["connections"])}
        for tables in (cut, recording.tables)
    )
    for connection, (outcome, ending) in said.items():
        assert outcome in (*UNKNOWN, right[connection][0])
        assert ending in (*UNKNOWN, right[connection][1], None)
