"""What rules say of consumers that began before the capture: neither their queue nor their prefetch was seen."""

from typing import Any

import pyarrow as pa
import pytest

from tests.pipelines.analyzed import findings
from tests.pipelines.scenario import arrow_table

SECOND, MS = 10**9, 1_000_000
BROKER = {"connection_id": 1, "server": "b:5672", "client": "c", "protocol": "amqp-0-9-1", "last_ts_ns": 100 * SECOND}


def given(since_ns: int, until_ns: int | None) -> dict[str, Any]:
    """A delivery and its acknowledgement, in frames that are numbered by their times."""
    row = {
        "connection_id": 1, "channel": 1, "channel_epoch": 0, "consumer_tag": "t", "kind": "deliver",
        "deliver_frame_no": since_ns, "deliver_ts_ns": since_ns,
    }  # fmt: skip
    if until_ns is None:
        return row | {"outcome": "unknown", "ended_by": "capture-end"}
    settled = {"settle_frame_no": until_ns, "settle_ts_ns": until_ns, "latency_ns": until_ns - since_ns}
    return row | settled | {"outcome": "ack"}


def said(code: str, settlements: list[dict[str, Any]], **endpoint: Any) -> list[str]:
    tables: dict[str, pa.Table] = {
        "endpoints": arrow_table("endpoints", [BROKER | endpoint]),
        "settlements": arrow_table("settlements", settlements),
    }  # fmt: skip
    return [row["text"] for row in findings(tables) if row["code"] == code]


@pytest.mark.parametrize(
    ("pause_ms", "rtt_ms", "found"),
    [(1, 70, True), (40, 70, False), (1, 0, False), (1, 5, False)],  # its own pace; near; its work takes most
)
def test_who_gets_the_next_message_when_it_acknowledges(pause_ms: int, rtt_ms: int, found: bool) -> None:
    step = (80 + pause_ms) * MS
    rows = [given(number * step, number * step + 80 * MS) for number in range(100)]
    texts = said("con-prefetch1", rows, rtt_ns=rtt_ms * MS)
    assert bool(texts) is found
    if found:
        assert "takes one message at a time (as with prefetch 1: the next one comes when it has" in texts[0]
        assert "over a round trip of 70 ms: 86 % of its time goes into the way, 12/s" in texts[0]


@pytest.mark.parametrize(("held", "found"), [(1500, True), (900, False)])
def test_who_holds_more_than_a_thousand(held: int, found: bool) -> None:
    first = [given(SECOND + number, 60 * SECOND if number > 99 else 9 * SECOND) for number in range(held + 100)]
    texts = said("con-noprefetch", first)
    wanted = f"consumer t of c has no prefetch limit, or one of more than a thousand: up to {held + 100:,} deliveries"
    assert [text.startswith(wanted) for text in texts] == found * [True]


@pytest.mark.parametrize(("settles", "found"), [(True, True), (False, False)])
def test_who_forgets_acknowledgements(settles: bool, found: bool) -> None:
    """Where none is settled, none may have to be."""
    rows = [
        given(number * SECOND // 10, number * SECOND // 10 + 20 * MS if settles and number % 10 else None)
        for number in range(400)
    ]
    texts = said("con-unacked-grows", rows)
    assert bool(texts) is found
    if found:
        assert "forgets acknowledgements: 40 of 400 deliveries are never settled" in texts[0]
        assert "For 60.1 s it has got no more: these may fill its prefetch" in texts[0]
