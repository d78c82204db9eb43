"""One rule says why nobody answered: all statistics agree on it, and with a plain reading."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.pipelines.amqp091.confirms.confirms import Confirms
from amqpscope.pipelines.amqp091.rpcs import Rpcs
from amqpscope.pipelines.amqp091.settlements.settlements import Settlements
from amqpscope.pipelines.run.engine import walked
from amqpscope.pipelines.stream.rpcs import Rpcs as StreamRpcs
from amqpscope.pipelines.stream.stream_confirms import StreamConfirms
from tests.pipelines.scenario import TICK, Connection, arrow
from tests.pipelines.walks import talks
from tests.reference.unanswered import ASKS, CLOSES, CLOSES_ALL, IS_OPEN, OPENS, SAYS_NOTHING, Frame, unanswered

Row = dict[str, Any]
SILENCES: dict[str, Row] = {
    "capture-end": {},
    "connection-close": {"closed_by": "server-fin"},
    "evicted": {"closed_by": "evicted"},
}
"""What ends a connection that nobody closes, and columns of its row."""
DOES = [ASKS, ASKS, SAYS_NOTHING, SAYS_NOTHING, CLOSES, CLOSES_ALL, OPENS, IS_OPEN]
Answer = tuple[str, int, str, int, int]
"""Table, frame that asks, why nobody answered, until when, in which epoch."""


def frame(from_client: bool, does: int, behind_gap: bool) -> Frame:
    """Only clients open channels, and servers say that they are open; a gap is behind a frame."""
    return Frame(does == OPENS or (from_client and does != IS_OPEN), does, behind_gap)


def opened_once(frames: list[Frame]) -> list[Frame]:
    """Channels are opened again only when they are open: what is outstanding on one is judged at the second time."""
    found, is_open = [], True
    for each in frames:
        found.append(each if is_open or each.does != OPENS else Frame(each.from_client, SAYS_NOTHING, each.behind_gap))
        is_open = each.does == IS_OPEN or (is_open and each.does != OPENS)
    return found


FRAMES = st.lists(st.builds(frame, st.booleans(), st.sampled_from(DOES), st.sampled_from([False, False, False, True])),
                  min_size=1, max_size=12).map(opened_once)  # fmt: skip


def expected(frames: list[Frame], silence: str, tables: dict[bool, str], scopes: bool = True) -> list[Answer]:
    """What the plain reading says of all that asks; `tables`: those of what clients and servers ask."""
    seen = frames
    if not scopes:
        silent = (CLOSES, OPENS, IS_OPEN)
        seen = [Frame(each.from_client, SAYS_NOTHING if each.does in silent else each.does, each.behind_gap)
                for each in frames]  # fmt: skip
    found = []
    for at, each in enumerate(seen):
        if each.does == ASKS and each.from_client in tables:
            why, until = unanswered(seen, at, silence)
            epoch = sum(earlier.does == OPENS for earlier in seen[:at])
            found.append((tables[each.from_client], at, why, TICK * (len(seen) if until is None else until), epoch))
    return found


def got(rows: list[Row], table: str, asks: str) -> list[Answer]:
    return [(table, row[f"{asks}_frame_no"], row["ended_by"], row["end_ts_ns"], row["channel_epoch"] or 0)
            for row in rows]  # fmt: skip


def method_of(each: Frame, asks: str) -> str | None:
    return {
        ASKS: asks, CLOSES: "channel.close", CLOSES_ALL: "connection.close", OPENS: "channel.open",
        IS_OPEN: "channel.open-ok",
    }.get(each.does)  # fmt: skip


def of_channels(frames: list[Frame], silence: str, asking: str) -> list[Answer]:
    """The same connection in AMQP 0-9-1, where clients publish or (`exchange.delete`) request, and servers deliver."""
    c = Connection(**SILENCES[silence])
    epoch, publishes, tags = 0, 0, 0
    for each in frames:
        if each.behind_gap:
            c.lose(each.from_client)
        if each.does == OPENS:
            epoch, publishes, tags = epoch + 1, 0, 0
        method = method_of(each, asking if each.from_client else "basic.deliver")
        columns = {"reply_code": 200} if each.does in (CLOSES, CLOSES_ALL) else {}
        channel = 0 if each.does == CLOSES_ALL else 1
        kind = {"method": method} if method else {"frame_type": "heartbeat"}
        c.frame(each.from_client, channel, epoch if channel else 0, **kind, **columns)
        if method in ("basic.publish", "basic.deliver"):
            publishes, tags = publishes + each.from_client, tags + (not each.from_client)
            row = {k: v for k, v in c.frames[-1].items() if k not in ("frame_type", "method")}
            row |= {"first_frame_no": row["frame_no"], "protocol": "amqp-0-9-1", "body_size": 5, "exchange": ""}
            row |= {"kind": "publish", "publish_seq": publishes, "mandatory": False} if each.from_client else {
                "kind": "deliver", "delivery_tag": tags, "consumer_tag": "c", "no_ack": False}  # fmt: skip
            c.messages.append(row)
    found = walked(arrow([c]), [Confirms(), Settlements(), Rpcs()])
    requests = [row for row in found["rpcs"].to_pylist() if row["request"] == asking]
    return sorted([
        *got(found["confirms"].to_pylist(), "confirms", "publish"), *got(requests, "rpcs", "request"),
        *got(found["settlements"].to_pylist(), "settlements", "deliver"),
    ], key=lambda row: row[1])  # fmt: skip


def of_streams(frames: list[Frame], silence: str, asking: str) -> list[Answer]:
    """The same connection in the stream protocol, which has no channels."""
    talk = talks.Talk(1, **SILENCES[silence])
    for each in frames:
        at = len(talk.frames)
        if each.does == ASKS and each.from_client and asking == "publish":
            talk.publish(at)
        elif each.does == ASKS and each.from_client:
            talk.frame(True, asking, correlation_id=at)
        elif each.does == CLOSES_ALL:
            talk.frame(each.from_client, "close", correlation_id=1000 + at, closing_code=1)
        else:
            talk.frame(each.from_client, "heartbeat")
        if each.behind_gap:
            talk.lose()
    found = walked(talks.tables_of(talk), [StreamConfirms(), StreamRpcs()])
    confirms = found["confirms"].to_pylist() if "confirms" in found else []
    requests = [row for row in found["rpcs"].to_pylist() if row["request"] == asking]
    return sorted([*got(confirms, "confirms", "publish"), *got(requests, "rpcs", "request")], key=lambda row: row[1])


@given(FRAMES, st.sampled_from(list(SILENCES)))
def test_confirms_and_settlements(frames: list[Frame], silence: str) -> None:
    assert of_channels(frames, silence, "basic.publish") == expected(
        frames, silence, {True: "confirms", False: "settlements"}
    )


def sure(frames: list[Frame]) -> list[Frame]:
    """Without gaps of the client, behind which it is unknown which of its requests an answer is of."""
    return [Frame(each.from_client, each.does, each.behind_gap and not each.from_client) for each in frames]


@given(FRAMES.map(sure), st.sampled_from(list(SILENCES)))
def test_requests(frames: list[Frame], silence: str) -> None:
    assert of_channels(frames, silence, "exchange.delete") == expected(
        frames, silence, {True: "rpcs", False: "settlements"}
    )


@pytest.mark.parametrize(("asking", "table"), [("publish", "confirms"), ("query-offset", "rpcs")])
@given(frames=FRAMES, silence=st.sampled_from(list(SILENCES)))
def test_streams(asking: str, table: str, frames: list[Frame], silence: str) -> None:
    assert of_streams(frames, silence, asking) == expected(frames, silence, {True: table}, scopes=False)
