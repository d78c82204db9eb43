"""Frames of AMQP 0-10 put together: operations, sessions, command ids, and what is wrong with frames."""

import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.kernels import limits
from tests.dissector.amqp010 import wire as w
from tests.dissector.builders import Packet, pcap
from tests.dissector.runs import BOTH, Row, dissect_packets, rows
from tests.dissector.wire import CLIENT, SERVER, Tape, Turn
from tests.thorough import examples

BEGIN = w.opening() + w.attaching()


def play(*turns: Turn) -> list[Packet]:
    return Tape().play([*BEGIN, *turns]).packets


def frames(tables: dict[str, pa.Table], begin: int = 0) -> list[Row]:
    """Rows of frames behind the first so many."""
    return rows(tables["amqp010_frames"])[begin:]


def operations(tables: dict[str, pa.Table]) -> list[tuple[Any, ...]]:
    """Channel, name and command id of the operations behind those that attach the first session."""
    behind = frames(tables, 12)
    return [(row["channel"], row["method"], row["command_id"]) for row in behind if row["method"]]


def anomalies(tables: dict[str, pa.Table]) -> list[tuple[str, str]]:
    return [(row["code"], row["detail"]) for row in rows(tables["anomalies"])]


def test_the_row_that_completes_an_operation_says_what_it_is() -> None:
    sent = w.transfer(b"b" * 100, largest=60, destination="somewhere far away, beyond the first frame")
    found = frames(dissect_packets(play((CLIENT, b"".join(sent)))), 12)
    kinds = ["command"] * 2 + ["header"] + ["body"] * 3
    assert [row["segment_type"] for row in found] == kinds
    assert [row["method"] for row in found] == [None] * 5 + ["message.transfer"]
    assert [row["size"] for row in found] == [len(each) for each in sent]
    assert {(row["track"], row["session"], row["channel"]) for row in found} == {(1, "s", 1)}
    assert found[-1]["destination"] == "somewhere far away, beyond the first frame"
    assert [row["command_id"] for row in found] == [None] * 5 + [0]


SIZES = st.integers(13, 200)
CUTS = st.lists(st.integers(1, 4_000), max_size=20)


@given(largest=SIZES, cuts=CUTS, batch=st.integers(200, 5_000))
@settings(max_examples=examples(60))
def test_segments_and_packets_cut_anywhere_change_nothing(largest: int, cuts: list[int], batch: int) -> None:
    sent = [
        *w.operation("queue.declare", largest=largest, queue="q" * 40, exclusive=True, sync=True),
        *w.transfer(bytes(range(256)), largest=largest),
        *w.operation("session.flush", largest=largest, completed=True),
        *w.transfer(None, largest=largest),
        *w.operation("message.accept", largest=largest, transfers=[(0, 4), (7, 9)]),
    ]
    tape = Tape().play(BEGIN)
    tape.send(CLIENT, b"".join(sent), cuts)
    tables = dissect_packets(tape.end().packets, batch_bytes=batch, check=True)
    assert operations(tables) == [
        (1, "queue.declare", 0), (1, "message.transfer", 1), (1, "session.flush", None), (1, "message.transfer", 2),
        (1, "message.accept", 3),
    ]  # fmt: skip
    first, second = rows(tables["messages"])
    assert (first["body_size"], second["body_size"]) == (256, 0)
    (whole,) = rows(dissect_packets(play((CLIENT, b"".join(w.transfer(bytes(range(256)))))))["messages"])
    assert first["body_hash"] == whole["body_hash"]
    assert anomalies(tables) == []


def test_channels_tracks_and_directions_are_put_together_apart() -> None:
    """A control between the frames of a body, another channel between those of a header, the other side anywhere."""
    one, two = w.transfer(b"o" * 90, largest=50), w.transfer(b"t" * 90, 2, largest=50)
    theirs = w.transfer(b"s" * 90, largest=50)
    control = b"".join(w.operation("session.completed", commands=[(0, 0)]))
    turns: list[Turn] = list(w.attaching(b"other", 2))
    for mine, other, back in zip(one, two, theirs, strict=True):
        turns += [(CLIENT, mine), (SERVER, back), (CLIENT, control), (CLIENT, other)]
    tables = dissect_packets(play(*turns))
    found = [each for each in operations(tables) if each[1] == "message.transfer"]
    assert found == [(1, "message.transfer", 0), (1, "message.transfer", 0), (2, "message.transfer", 0)]
    reported = [(row["kind"], row["session"], row["body_size"]) for row in rows(tables["messages"])]
    assert reported == [("publish", "s", 90), ("deliver", "s", 90), ("publish", "other", 90)]
    assert anomalies(tables) == []


@BOTH
@pytest.mark.parametrize("batch", [300, 1 << 20])
def test_batches_and_compiling_change_no_row(compiled: bool, batch: int) -> None:
    sent = b"".join(
        w.transfer(b"x" * n, largest=60)[0] + b"".join(w.transfer(b"x" * n, 2, largest=70)) for n in (9, 99)
    )
    packets = play((CLIENT, sent), (SERVER, sent))
    tables, expected = (dissect_packets(packets, compiled=how, batch_bytes=size) for how, size in
                        ((compiled, batch), (False, 1 << 20)))  # fmt: skip
    for name in ("amqp010_frames", "messages", "anomalies"):
        assert rows(tables[name]) == rows(expected[name])


@pytest.mark.parametrize("port", [5672, 25999])
@pytest.mark.parametrize("size", [90, 60_000])
def test_it_is_recognised_in_the_middle(port: int, size: int) -> None:
    """Also where frames are longer than segments; but for the first of these, which is passed over, all is there."""
    sent = b"".join(w.transfer(b"x" * size, largest=4096) + w.operation("message.flow", destination="x", value=9))
    tape = Tape(syn=False, server_port=port)
    for _ in range(4):
        tape.send(CLIENT, sent, range(1448, len(sent), 1448))
        tape.send(SERVER, b"".join(w.operation("session.completed", commands=[(0, 3)])))
    tables = dissect_packets(tape.packets)
    (connection,) = rows(tables["connections"])
    assert (connection["protocol"], connection["server_port"]) == ("amqp-0-10", port)
    assert [row["body_size"] for row in rows(tables["messages"])][-2:] == [size, size]


def test_a_port_says_what_it_is() -> None:
    tape = Tape(syn=False, server_port=25999)
    tape.send(SERVER, b"".join(w.operation("connection.heartbeat", 0)) * 2)
    tables = dissect_packets(tape.packets, options=Options({25999: "amqp-0-10"}))
    assert rows(tables["connections"])[0]["protocol"] == "amqp-0-10"


# ------------------------------------------------------------------------------------------------------- sessions


def point(number: int) -> bytes:
    return b"".join(w.operation("session.command-point", command_id=number, command_offset=0))


def detaching(name: bytes) -> list[Turn]:
    sides = ((CLIENT, "session.detach"), (SERVER, "session.detached"))
    return [(side, b"".join(w.operation(each, name=name))) for side, each in sides]


SYNC = b"".join(w.operation("execution.sync"))


def ids(*turns: Turn) -> list[tuple[str | None, int | None]]:
    found = frames(dissect_packets(play(*turns)), 12)
    return [(row["session"], row["command_id"]) for row in found if row["method"] == "execution.sync"]


def test_command_ids_wrap_and_go_on() -> None:
    wrapped = ids((CLIENT, point(2**32 - 1) + 2 * SYNC + point(1) + SYNC))
    assert wrapped == [("s", 2**32 - 1), ("s", 2**32), ("s", 2**32 + 1)]


def test_each_side_counts_its_own() -> None:
    assert ids((CLIENT, 2 * SYNC), (SERVER, SYNC), (CLIENT, SYNC)) == [("s", 0), ("s", 1), ("s", 0), ("s", 2)]


def test_a_session_that_is_detached_and_attached_to_another_channel() -> None:
    def control(name: str, channel: int, **given: Any) -> bytes:
        return b"".join(w.operation(name, channel, name=b"s", **given))

    turns = [
        (CLIENT, 3 * SYNC + control("session.detach", 1)),
        (SERVER, control("session.detached", 1)),
        (CLIENT, SYNC + control("session.attach", 7)),
        (SERVER, control("session.attached", 7)),
        (CLIENT, w.operation("session.command-point", 7, command_id=3, command_offset=0)[0]),
        (CLIENT, w.operation("execution.sync", 7)[0]),
    ]
    assert ids(*turns) == [("s", 0), ("s", 1), ("s", 2), (None, None), ("s", 3)]


def test_a_session_that_is_busy_leaves_its_channel_free() -> None:
    busy = b"".join(w.operation("session.detached", 2, name=b"s", code=1))
    attach = b"".join(w.operation("session.attach", 2, name=b"s"))
    again = b"".join(w.operation("execution.sync", 2))
    tables = dissect_packets(play((CLIENT, attach), (SERVER, busy), (CLIENT, again + SYNC)))
    assert [row["session"] for row in frames(tables, 12)] == ["s", "s", None, "s"]
    assert "channel 2: session-busy" in rows(tables["connections"])[0]["handshake_notes"]


def test_an_attach_after_a_detach_is_of_another_session() -> None:
    """Also where the broker's session.detached is not in the capture."""
    leave, attach = detaching(b"s")[0], w.attaching(b"t")[0]
    assert ids((CLIENT, SYNC), leave, attach, (CLIENT, SYNC)) == [("s", 0), ("t", 0)]


def test_a_detach_names_the_session_that_a_gap_attached() -> None:
    """What lies between is taken for the session before the gap, as nothing says that it is another one."""
    leave, attach = detaching(b"s"), w.attaching(b"t")
    before, missing, behind = [*BEGIN, (CLIENT, SYNC)], [*leave, *attach], [(CLIENT, SYNC), *detaching(b"t")]
    tape = Tape()
    lengths = [len(tape.play(turns).packets) for turns in (before, missing, behind)]
    tables = dissect_packets(tape.packets[: lengths[0]] + tape.packets[lengths[1] :])
    found = [(row["method"], row["session"]) for row in frames(tables, 12)][-4:]
    assert [name for name, _ in found] == ["execution.sync", "execution.sync", "session.detach", "session.detached"]
    assert [session for _, session in found[2:]] == ["t", "t"]


def test_sessions_that_are_detached_are_forgotten() -> None:
    """One connection may attach any number of them; what is remembered is the one that is attached."""
    dissector = Dissector(Options(), compiled=False)
    dissector.captures.append("memory.pcap")
    turns = [turn for n in range(200) for turn in (*w.attaching(b"%d" % n), *detaching(b"%d" % n))]
    packets = pcap(Tape().play([*BEGIN, *detaching(b"s"), *turns]).packets, ns=True)
    most = 0
    for batch in CaptureFile(io.BytesIO(packets), "memory.pcap", 0, batch_bytes=500, compiled=False):
        assert list(dissector.feed(batch))
        most = max(most, dissector.accounting.total)
    assert dissector.accounting.total < 2 * 4_096
    assert most < 2 * 4_096


def test_ids_go_on_where_a_session_is_attached_anew_behind_a_wrap() -> None:
    turns = [(CLIENT, point(2**32 - 1) + 2 * SYNC), *detaching(b"s"), *w.attaching()[:1], (CLIENT, point(1) + SYNC)]
    assert ids(*turns)[-1] == ("s", 2**32 + 1)


def test_behind_a_gap_ids_are_not_known_until_the_next_command_point() -> None:
    tape = Tape().play([*BEGIN, (CLIENT, SYNC)])
    tape.next[CLIENT] += 2 * len(SYNC)
    tape.play([(SERVER, SYNC), *[(CLIENT, SYNC)] * 20, (CLIENT, point(23) + SYNC)])
    found = [row for row in frames(dissect_packets(tape.end().packets), 12) if row["method"] == "execution.sync"]
    assert [row["command_id"] for row in found if not row["from_client"]] == [0]
    assert [row["command_id"] for row in found if row["from_client"]] == [0, *[None] * 20, 23]
    assert {row["session"] for row in found} == {"s"}


def completed(last: int) -> bytes:
    return b"".join(w.operation("session.completed", commands=[(0, last)]))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("quiet_s", "answers", "known"),
    [
        (11, [6, 7, 8], [9, 10]),
        (9, [6, 7, 8], [None, None]),
        (11, [6, 6, 6], [None, None]),
        (11, [6, 7, 7], [None, None]),
    ],
)
def test_behind_a_gap_answers_prove_ids(quiet_s: int, answers: list[int], known: list[int | None], late: bool) -> None:
    """If those to several commands show the same, before silence; also where the capture begins in the middle."""
    tape = Tape(syn=not late).play([] if late else [*BEGIN, (CLIENT, SYNC)])
    if not late:
        tape.next[CLIENT] += 2 * len(SYNC)
    for answer in answers:
        tape.play([(CLIENT, SYNC), (SERVER, completed(answer))])
    tape.start_ns += quiet_s * 10**9
    tape.play([(CLIENT, SYNC), (CLIENT, SYNC)])
    found = [row for row in frames(dissect_packets(tape.end().packets)) if row["method"] == "execution.sync"]
    assert [row["command_id"] for row in found[-5:]] == [None] * 3 + known
    assert {row["session"] for row in found} == {None if late else "s"}


@pytest.mark.parametrize("batch", [100, 1 << 20])
def test_an_attach_ends_the_session_from_before_the_capture(batch: int) -> None:
    """Its commands come before the broker has answered."""
    (_, attach), attached = w.attaching()
    tape = Tape(syn=False).play([(CLIENT, SYNC), (SERVER, completed(3)), (CLIENT, attach + 2 * SYNC), attached])
    tables = dissect_packets(tape.play([(CLIENT, SYNC)]).end().packets, batch_bytes=batch)
    found = [row for row in frames(tables) if row["method"] == "execution.sync"]
    assert [(row["session"], row["command_id"]) for row in found] == [(None, None), ("s", 0), ("s", 1), ("s", 2)]


# ------------------------------------------------------------------------------------------------------- messages


def test_a_publish_and_a_delivery() -> None:
    heads = w.header(
        ("message.message-properties", {"content_type": "text/plain", "application_headers": [("a", "int32", 1)]}),
        ("message.delivery-properties", {"exchange": "e", "routing_key": "k", "priority": 7, "redelivered": True}),
    )
    sent = b"".join(w.operation("message.transfer", 1, heads, b"hello", destination="e"))
    back = b"".join(w.operation("message.transfer", 1, heads, b"hello", destination="c", accept_mode=1))
    publish, delivery = rows(dissect_packets(play((CLIENT, sent), (SERVER, back)), check=True)["messages"])
    both = {"content_type": "text/plain", "headers": '{"a":1}', "routing_key": "k", "priority": 7, "exchange": "e",
            "protocol": "amqp-0-10", "session": "s", "channel": 1, "channel_epoch": 1, "body_size": 5,
            "is_partial": False, "unfinished": False}  # fmt: skip
    assert publish | both | {"kind": "publish", "publish_seq": 0, "delivery_tag": None, "no_ack": None} == publish
    assert delivery | both | {"kind": "deliver", "delivery_tag": 0, "publish_seq": None, "no_ack": True} == delivery
    assert (publish["consumer_tag"], delivery["consumer_tag"]) == (None, "c")
    assert publish["body_hash"] == delivery["body_hash"] is not None


def test_of_a_content_that_is_interrupted_there_is_a_partial_message() -> None:
    sent = w.transfer(b"x" * 100, largest=80)
    tables = dissect_packets(play((CLIENT, b"".join(sent[:-1]) + SYNC)))
    (message,) = rows(tables["messages"])
    assert (message["is_partial"], message["unfinished"], message["body_size"]) == (True, True, None)
    assert message["routing_key"] == "k"
    assert [code for code, _ in anomalies(tables)] == ["content-interrupted"]
    assert frames(tables)[-1]["method"] == "execution.sync"


@pytest.mark.parametrize("batch", [300, 1 << 20])
def test_of_a_content_that_is_interrupted_by_another_session(batch: int) -> None:
    """It is of the epoch of its own frames, not of that in which it is dropped; its session is over by then."""
    turns = [(CLIENT, b"".join(w.transfer(b"x" * 100, largest=80)[:-1])), *detaching(b"s"), *w.attaching(b"t")]
    tables = dissect_packets(play(*turns, (CLIENT, SYNC)), batch_bytes=batch)
    assert [(row["session"], row["channel_epoch"]) for row in rows(tables["messages"])] == [(None, 1)]


def test_a_connection_that_ends_inside_a_body() -> None:
    sent = w.transfer(b"x" * 100, largest=80)
    tables = dissect_packets(play((CLIENT, b"".join(sent[:-1]))))
    assert [row["unfinished"] for row in rows(tables["messages"])] == [True]
    assert [code for code, _ in anomalies(tables)] == ["content-abandoned"]


@pytest.mark.parametrize("batch", [100, 1 << 20])
def test_a_gap_excuses_nothing_before_it(batch: int) -> None:
    tape = Tape().play([*BEGIN, (CLIENT, w.frame(w.BODY, b"x", 9, flags=5))])
    tape.next[CLIENT] += 20
    tape.play([(CLIENT, SYNC)] * 20)
    found = anomalies(dissect_packets(tape.end().packets, batch_bytes=batch))
    assert [code for code, _ in found][:2] == ["content-unexpected", "tcp-gap"]


# ----------------------------------------------------------------------------------------------- what is wrong

STRAY = "frame type {}, but no content is expected"
HEARTBEAT = w.operation("connection.heartbeat", 0)[0]


@pytest.mark.parametrize(
    ("data", "code", "detail"),
    [
        (b"\x4f" + HEARTBEAT[1:], "frame-version-unknown", "version 1 of the frame format"),
        (b"\x1f" + HEARTBEAT[1:], "frame-flags-unknown", "flags 0x1f"),
        (b"\7" + HEARTBEAT[1:], "frame-head-wrong", "flags 0x07 of a frame of type 0"),
        (HEARTBEAT[:4] + b"\1" + HEARTBEAT[5:], "frame-track-wrong", "track 256"),
        (HEARTBEAT[:5] + b"\2" + HEARTBEAT[6:], "frame-track-wrong", "track 2"),
        (HEARTBEAT[:8] + b"\xde" + HEARTBEAT[9:], "frame-reserved-set", "0xde000000 instead of zeros"),
        (HEARTBEAT[:2] + b"\0\6" + HEARTBEAT[4:], "frame-too-short", "a frame of 6 bytes is announced"),
        (HEARTBEAT[:1] + b"\x09" + HEARTBEAT[2:], "frame-type-unknown", "frame type 9"),
        (w.frame(w.CONTROL, b"cc", 0), "control-unknown", "class id 99, control id 99"),
        (w.frame(w.CONTROL, b"", 0), "control-unknown", "class id 0, control id 0"),
        (w.frame(w.COMMAND, b"\x01\x0a\1\0\0\0"), "method-unknown", "class id 1, method id 10"),
        (w.frame(w.CONTROL, b"\x01\x0a", 0), "field-overrun", "in connection.heartbeat"),
        (w.frame(w.HEADERS, b"", flags=7), "content-unexpected", STRAY.format(2)),
        (w.frame(w.COMMAND, b"\3\1\1\0\0\0", flags=13), "content-unexpected", STRAY.format(1)),
    ],
)  # fmt: skip
def test_what_is_no_frame_or_in_no_place_is_an_anomaly(data: bytes, code: str, detail: str) -> None:
    assert (code, detail) in anomalies(dissect_packets(play((CLIENT, data))))


def test_frames_of_the_draft_with_the_same_header_are_none() -> None:
    draft = b"\1\0\0" + (8).to_bytes(4, "big") + b"\0\x0a\0\x0a\0\0\0\0\xce"
    tables = dissect_packets(Tape().play([(CLIENT, w.HEADER), (SERVER, w.HEADER + draft)]).packets)
    assert anomalies(tables)[0] == ("frame-too-short", "a frame of 0 bytes is announced")
    assert len(frames(tables)) == 2


def test_a_segment_that_is_too_long_is_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAYLOAD", 100)
    long = b"".join(w.operation("queue.declare", largest=60, queue="q" * 40, alternate_exchange="e" * 200))
    found = dissect_packets(play((CLIENT, long + SYNC)))
    reported = frames(found, 12)[-2]
    assert (reported["method"], reported["queue"], reported["alternate_exchange"]) == ("queue.declare", "q" * 40, None)
    assert {code for code, _ in anomalies(found)} == {"limit-reached"}
    assert frames(found)[-1]["method"] == "execution.sync"


@pytest.mark.parametrize(
    ("mechanism", "found"), [("ANONYMOUS", True), ("PLAIN", True), ("CRAM-MD5", True), ("GSSAPI", False)]
)
def test_zeros_after_an_open_are_no_sasl_layer_if_the_mechanism_has_none(mechanism: str, found: bool) -> None:
    """Two zeros before the next frame are like the length of a sealed block."""
    turns = w.opening(mechanism)
    side, data = turns[6]
    turns[6] = side, data + bytes(2)
    tables = dissect_packets(Tape().play([*turns, *w.attaching(), *[(CLIENT, SYNC)] * 3]).end().packets)
    assert [row["method"] for row in frames(tables)].count("execution.sync") == (3 if found else 0)
    assert ("sasl-encrypted" in {code for code, _ in anomalies(tables)}) != found


def test_what_a_sasl_layer_encrypts_is_not_decoded() -> None:
    layer = b"".join(n.to_bytes(4, "big") + HEARTBEAT * (n // 16) for n in (48, 320))
    tape = Tape().play([*w.opening("DIGEST-MD5"), (CLIENT, layer), (SERVER, layer)])
    tables = dissect_packets(tape.end().packets)
    assert len(frames(tables)) == len(w.opening())
    skipped = ("bytes-skipped", f"{len(layer)} bytes skipped")
    assert anomalies(tables) == [("sasl-encrypted", "the first block has 48 bytes")] * 2 + [skipped] * 2
    (connection,) = rows(tables["connections"])
    assert (connection["handshake_outcome"], connection["skipped_bytes"]) == ("sasl-encrypted", 2 * len(layer))


@pytest.mark.parametrize(("port", "is_together"), [(5672, True), (5672, False), (25_999, True)])
def test_a_header_is_the_brokers_by_its_port_or_by_a_frame_after_it(port: int, is_together: bool) -> None:
    """Where the capture begins with it; the client's was sent before."""
    tape = Tape(port=30_000, server_port=port)
    (_, client), (_, server), (_, start), *turns = w.opening()
    tape.send(CLIENT, client)
    begin = len(tape.packets)
    for data in [server + start] if is_together else [server, start]:
        tape.send(SERVER, data)
    found = frames(dissect_packets(tape.play(turns).end().packets[begin:]))
    names = ["start", "start-ok", "tune", "tune-ok", "open", "open-ok"]
    assert [row["method"] for row in found] == [None] + [f"connection.{name}" for name in names]
    assert [row["from_client"] for row in found] == [False, False, True, False, True, True, False]


NESTED = b"".join(w.transfer(b"inner")) * 40
STATED = len(NESTED)


def in_segments(length: int | None, lost: list[int]) -> tuple[list[Row], list[Row]]:
    """Frames and messages of a message in frames of 500 bytes and segments of 300, of which some were not captured.

    Its body is made of frames; `length` is what it says of its size. Two commands follow.
    """
    stated = {} if length is None else {"content_length": length}
    sent = b"".join(w.operation("message.transfer", 1, w.header(("message.message-properties", stated)), NESTED, 500))
    tape = Tape().play(BEGIN)
    begin = len(tape.packets)
    tape.send(CLIENT, sent, range(300, len(sent), 300))
    tape.send(CLIENT, SYNC + b"".join(w.transfer(b"after")))
    found = dissect_packets([p for n, p in enumerate(tape.end().packets) if n - begin not in lost])
    return [row for row in frames(found) if row["method"]][-2:], rows(found["messages"])


@pytest.mark.parametrize(
    ("length", "lost", "missing", "is_known"),
    [
        (STATED, [3], 634, True),
        (STATED, [3, 4], 634, True),
        (STATED, [3, 4, 5, 6], 1610, True),
        (STATED, [8, 9], None, False),  # with the last frame's head
        (None, [3], None, False),
        (5, [3], None, False),
        (STATED + 77, [3], 634, True),
        (STATED + 77, [8, 9], None, False),
    ],
)
def test_a_body_whose_size_is_stated_goes_on_after_a_gap(
    length: int | None, lost: list[int], missing: int | None, is_known: bool
) -> None:
    """So no frame in it is taken for one, and commands after it keep their ids; what is stated need not be true."""
    after, (message, last) = in_segments(length, lost)
    assert [row["method"] for row in after] == ["execution.sync", "message.transfer"]
    assert [row["command_id"] for row in after] == ([1, 2] if is_known else [None, None])
    assert (message["is_partial"], message["unfinished"]) == (True, not is_known)
    if is_known:
        assert (message["body_size"], message["missing"]) == (STATED, missing)
    assert (last["is_partial"], last["body_size"]) == (False, 5)
