"""Verdicts on recorded connections that lack one packet: none wrong, and none withheld that a message proves."""

import pytest

from tests.captures.damage.verdicts import judged
from tests.dissector.runs import FOLDER

RECORDED = (
    "failed_handshakes", "refused_opens", "refused_tunings", "stream_refusals", "thrown_out", "orders_pika",
    "tls_failures",
)  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_no_verdict_is_wrong_without_one_packet(name: str) -> None:
    found = judged(FOLDER / f"{name}.pcap", compiled=False)
    assert found["wrong"] == found["proven"] == 0
    assert found["same"] > 2 * found["gap"]
