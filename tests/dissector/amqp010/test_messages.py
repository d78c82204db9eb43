"""Operations of AMQP 0-10 through packets to rows: all that the encoder writes from the specification comes back."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.dissector.dissector import Options
from amqpscope.dissector.fields.decoding import REDACTED
from tests.dissector.amqp010 import wire as w
from tests.dissector.amqp010.given import HEADS, OPERATIONS, SEGMENTS, Row, expected, parsed
from tests.dissector.runs import dissect_packets, rows
from tests.dissector.wire import CLIENT, SERVER, Tape
from tests.thorough import examples

FULL = Options(bodies="full")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RENAMED = {"ttl", "expiration_datetime", "timestamp"}
"""Properties whose columns of messages are their own: see `test_properties_have_the_columns_of_other_protocols`."""
ARGUMENTS = {"exchange", "routing_key", "redelivered"}
"""Properties that are arguments of other commands with content, which come first."""
CONTENTS = st.tuples(st.none() | SEGMENTS, st.none() | st.binary(max_size=300))


def sent(operation: Any, content: Any, channel: int, largest: int) -> tuple[int, bytes, Row]:
    """Who says an operation, the bytes of its frames, and the columns of the row that completes it."""
    method, values, sync = operation
    structs, body = content if method.content else (None, None)
    heads = None if structs is None else w.header(*((s.name, held) for s, held in structs))
    frames = w.operation(
        method.full_name, 0 if method.class_name == "connection" else channel, heads, body, largest, sync, **values
    )
    head = {"sync": sync} if method.kind == "command" else {}
    side = CLIENT if method.from_client else SERVER
    return side, b"".join(frames), {"method": method.full_name} | head | expected(method.fields, values)


@settings(max_examples=examples(60))
@given(
    operations=st.lists(st.tuples(OPERATIONS, CONTENTS, st.integers(1, 3)), min_size=1, max_size=8),
    largest=st.integers(13, 400),
    cuts=st.lists(st.integers(1, 2_000), max_size=6),
)
def test_operations_and_messages_round_trip(operations: list[Any], largest: int, cuts: list[int]) -> None:
    tape = Tape().play(w.opening())
    wanted, messages = [], []
    for operation, content, channel in operations:
        method = operation[0]
        side, data, columns = sent(operation, content, channel, largest)
        tape.send(side, data, cuts)
        wanted.append((method, columns))
        if method.content:
            messages.append((method, side, *content))
    found = dissect_packets(tape.end().packets, options=FULL)
    shown = [row for row in rows(found["amqp010_frames"]) if row["method"]][6:]
    names = list(w.PROTOCOL.method_columns())
    assert {row["code"] for row in rows(found["anomalies"])} <= {"integer-too-large"}
    for row, (method, columns) in zip(shown, wanted, strict=True):
        assert row["method"] == columns.pop("method")
        held = {n: row[n] for n in names if row[n] is not None}
        # a malformed login, or one whose mechanism or locale is no name, shows no text
        if REDACTED not in [held.get(name) for name in ("client_properties", "mechanism", "locale")]:
            assert parsed(method.fields, held) == columns
    for row, (method, side, structs, body) in zip(rows(found["messages"]), messages, strict=True):
        assert row["kind"] == ("return" if method.name == "return" else "publish" if side == CLIENT else "deliver")
        assert (row["body"], row["body_size"]) == (body or b"", len(body or b""))
        fields = tuple(f for s, _ in structs or () for f in s.fields)
        properties = {c: v for s, held in structs or () for c, v in expected(s.fields, held).items() if c in row}
        own = properties.keys() - RENAMED - ARGUMENTS
        assert parsed(fields, {c: row[c] for c in own}) == {c: properties[c] for c in own}


def message(**given: Any) -> Row:
    """The row of a message with these properties."""
    held = {"message.delivery-properties": {}, "message.message-properties": {}}
    for name, value in given.items():
        struct = next(s for s in w.PROTOCOL.structs if s.name in HEADS and name in {f.name for f in s.fields})
        held[struct.name][name] = value
    tape = Tape().play([*w.opening(), *w.attaching()])
    tape.send(CLIENT, b"".join(w.operation("message.transfer", 1, w.header(*held.items()), b"x", destination="e")))
    [row] = rows(dissect_packets(tape.end().packets)["messages"])
    return row


def test_properties_have_the_columns_of_other_protocols() -> None:
    """Qpid's Java client states milliseconds where seconds are meant."""
    row = message(ttl=5_000, timestamp=1_700_000_000, expiration=1_700_000_005, priority=7, content_length=1)
    assert (row["expiration"], row["timestamp"], row["expiry_ts_ms"]) == ("5000", 1_700_000_000, 1_700_000_005_000)
    row = message(timestamp=1_700_000_000_123, expiration=1_700_000_005_123)
    assert (row["expiration"], row["timestamp"], row["expiry_ts_ms"]) == (None, 1_700_000_000, 1_700_000_005_123)
    row = message(application_headers=[("traceparent", "str16", TRACE)])
    assert (row["trace_id"], row["span_id"], row["trace_flags"]) == (TRACE[3:35], TRACE[36:52], 1)
