"""Findings that name what lies behind them, and what they leave out where it does not."""

from __future__ import annotations

from pathlib import Path

from pamqp import commands

from tests.dissector.wire import ACK, CLIENT, RST, SERVER, T0, Tape, Turn, handshake, method
from tests.pipelines.analyzed import findings, related
from tests.pipelines.conversations import (
    BEAT,
    at,
    begun_before,
    bind,
    closed,
    connected,
    consume,
    declare,
    exchange,
    given,
    later,
    of_tapes,
    sent,
)

QOS = [(CLIENT, method(commands.Basic.Qos(prefetch_count=20))), (SERVER, method(commands.Basic.QosOk()))]


def text_of(code: str, folder: Path, *tapes: Tape) -> str:
    (row,) = findings(of_tapes(folder, *tapes), code)
    return str(row["text"])


def failed(text: str, reply_code: int = 406) -> list[Turn]:
    """The broker closes channel 1."""
    close = commands.Channel.Close(reply_code=reply_code, reply_text=text, class_id=60, method_id=80)
    return [(SERVER, method(close)), (CLIENT, method(commands.Channel.CloseOk()))]


def acknowledging(no_ack: bool) -> Tape:
    tape = connected(40000, name="sync").play([*declare("q"), *consume("q", no_ack=no_ack), given("", "q", 5)])
    tape.play([(CLIENT, method(commands.Basic.Ack(1))), *([] if no_ack else [(CLIENT, method(commands.Basic.Ack(1)))])])
    return closed(tape.play(failed("PRECONDITION_FAILED - unknown delivery tag 1")))


def test_who_acknowledges_what_needs_none(tmp_path: Path) -> None:
    said = text_of("con-unknown-tag", tmp_path, acknowledging(no_ack=True))
    assert "sync acknowledges deliveries of its consumer, which has automatic acknowledgement (no_ack)" in said
    assert "5 deliveries were settled when they were sent" in said and "unknown delivery tag" not in said
    said = text_of("con-unknown-tag", tmp_path, acknowledging(no_ack=False))
    assert "unknown delivery tag 1 (settled before" in said and "automatic" not in said


def timed_out(*then: Tape, again: bool = False) -> list[Tape]:
    tape = connected(40000, name="hd").play([*declare("q"), *consume("q", no_ack=False)])
    feed = connected(40001, 0.05, name="feed").play([sent("", "q", 30)])
    at(tape, 0.1).play([given("", "q", 1)])
    text = "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 8000 ms"
    at(tape, 9).play(failed(text))
    if again:
        tape.play([(CLIENT, method(commands.Channel.Open())), (SERVER, method(commands.Channel.OpenOk()))])
        tape.play(consume("q", no_ack=False))
    return [later(tape, 1).play([(CLIENT, BEAT)]), at(feed, 10).play([(CLIENT, BEAT)]), *then]


def test_a_consumer_that_timed_out_and_never_came_back(tmp_path: Path) -> None:
    said = text_of("con-406-timeout", tmp_path, *timed_out())
    assert "nobody consumes from q any more, and 30 messages are left in it" in said
    assert "any more" not in text_of("con-406-timeout", tmp_path, *timed_out(again=True))
    other = connected(40002, 0.2, name="other").play(consume("q", tag="other", no_ack=False))
    assert "any more" not in text_of("con-406-timeout", tmp_path, *timed_out(at(other, 10).play([(CLIENT, BEAT)])))


def test_what_a_client_had_in_hand_when_its_heartbeats_were_missed(tmp_path: Path) -> None:
    def missed(turn: Turn) -> Tape:
        tape = connected(40000, name="builder").play([*declare("q"), *consume("q", no_ack=False), turn])
        for beat in (30, 60, 90, 120, 150, 180):
            at(tape, beat).play([(SERVER, BEAT)])
            tape.segment(CLIENT)
        at(tape, 181).segment(SERVER, flags=RST | ACK)
        return tape

    assert "it had a message of queue q in hand for" in text_of("cnx-heartbeat", tmp_path, missed(given("", "q", 1)))
    assert "in hand" not in text_of("cnx-heartbeat", tmp_path, missed((SERVER, BEAT)))


def test_one_of_few_who_takes_all(tmp_path: Path) -> None:
    """The second comes while the first has most of them; without names they are called by their ports."""
    first = begun_before(40000, 0).play(
        [*QOS, *consume("q", tag="None1", no_ack=False), given("", "q", 9, tag="None1")]
    )
    for number in range(1, 10):
        at(first, 3 * number).play([(CLIENT, method(commands.Basic.Ack(number)))])
    second = begun_before(40001, 2).play([*consume("q", tag="None2", no_ack=False)])
    statistics = of_tapes(tmp_path, first, at(second, 28).play([(CLIENT, BEAT)]))
    (row,) = findings(statistics, "con-hoard")
    assert "consumer 10.0.0.1:40000 hoards: it got all 9" in row["text"] and "10.0.0.1:40001, which" in row["text"]
    assert {each["called"] for each in related(statistics, "consumers")} == {"10.0.0.1"}


def test_what_left_a_queue_is_not_known_where_a_reader_has_no_virtual_host(tmp_path: Path) -> None:
    feed = connected(40000, name="web").play([*declare("q"), sent("", "q", 30)])
    (row,) = related(of_tapes(tmp_path, closed(feed)), "queues")
    assert row["left_over"] == 30
    reader = begun_before(40001, 0.1).play([given("", "q", 30, number) for number in range(1, 2)])
    rows = related(of_tapes(tmp_path, closed(feed), reader), "queues")
    assert {(row["vhost"], row["left_over"]) for row in rows} == {("/", None), ("", None)}


def test_a_queue_whose_last_consumer_was_thrown_out(tmp_path: Path) -> None:
    def said(comes_back: bool) -> str:
        feed = connected(40000, name="erp").play(declare("labels"))
        maker = connected(40001, 0.05, name="maker").play(consume("labels", no_ack=False))
        close = commands.Connection.Close(320, "CONNECTION_FORCED - maintenance", 0, 0)
        at(maker, 1).play([(SERVER, method(close, 0)), (CLIENT, method(commands.Connection.CloseOk(), 0))]).end()
        tapes = [closed(at(feed, 2).play([sent("", "labels", 20)])), maker]
        if comes_back:
            tapes.append(at(connected(40002, 1.5, name="maker").play(consume("labels")), 3).play([(CLIENT, BEAT)]))
        return text_of("cnx-forced", tmp_path, *tapes)

    assert "nobody consumes from labels since, and 20 messages are left in it" in said(comes_back=False)
    assert "nobody" not in said(comes_back=True)


def working(port: int, name: str, seconds: float, prefetch: int = 20) -> Tape:
    """A consumer of queue q that settles sixty messages one after the other, each after some seconds."""
    limit = [(CLIENT, method(commands.Basic.Qos(prefetch_count=prefetch))), (SERVER, method(commands.Basic.QosOk()))]
    tape = connected(port, 0.1, name=name).play([*limit, *consume("q", tag=name, no_ack=False)])
    last = 60
    tape.play([given("", "q", 1, number, tag=name) for number in range(1, prefetch + 1)])
    for number in range(1, last + 1):
        later(tape, seconds).play([(CLIENT, method(commands.Basic.Ack(number)))])
        if number + prefetch <= last:
            tape.play([given("", "q", 1, number + prefetch, tag=name)])
    return closed(tape)


def test_one_of_several_consumers_that_is_slow(tmp_path: Path) -> None:
    feed = connected(40000, name="web").play([*declare("q"), sent("", "q", 180)])
    quick = [working(40001, "thumb-0", 0.02), working(40002, "thumb-1", 0.02)]
    said = text_of("con-slow", tmp_path, closed(feed), *quick, working(40003, "thumb-2", 1.5))
    assert "consumer thumb-2 is much slower than 2 others of queue q" in said
    assert not findings(of_tapes(tmp_path, closed(feed), *quick, working(40003, "thumb-2", 0.1)), "con-slow")
    alone = of_tapes(tmp_path, closed(feed), working(40003, "thumb-2", 1.5))
    assert not [row for row in findings(alone, "con-slow") if "much slower" in row["text"]]


def test_who_stands_still_is_not_slow(tmp_path: Path) -> None:
    feed = connected(40000, name="web").play([*declare("q"), sent("", "q", 300)])
    tape = connected(40001, 0.1, name="invoicer").play(
        [(CLIENT, method(commands.Basic.Qos(prefetch_count=10))), (SERVER, method(commands.Basic.QosOk()))]
    )
    tape.play(consume("q", no_ack=False))
    for number in range(1, 71):
        later(tape, 0.05).play([given("", "q", 1, number), (CLIENT, method(commands.Basic.Ack(number)))])
    tape.play([given("", "q", 10, 71)])
    rows = findings(of_tapes(tmp_path, closed(feed), later(tape, 20).play([(CLIENT, BEAT)])))
    assert [row["code"] for row in rows if row["code"].startswith("con-")] == ["con-unsettled"]


def test_a_key_that_was_renamed(tmp_path: Path) -> None:
    def severity(former: int, again: bool) -> list[str]:
        tape = connected(40000, name="shop").play(
            [*exchange("shop"), *declare("q"), *bind("q", "shop", "order.created")]
        )
        tape.play([sent("shop", "order.created", former)] if former else [])
        later(tape, 1).play([sent("shop", "order.placed", 30)])
        if again:
            later(tape, 1).play([sent("shop", "order.created", 5)])
        reader = connected(40001, 0.5, name="billing").play(consume("q"))
        tapes = closed(tape), at(reader.play([given("shop", "order.created", former)] if former else []), 5)
        return [
            row["severity"]
            for row in findings(of_tapes(tmp_path, tapes[0], tapes[1].play([(CLIENT, BEAT)])), "pub-unbound")
        ]

    assert severity(20, again=False) == ["warning"]
    assert severity(20, again=True) == severity(0, again=False) == ["note"]


def put_back(port: int, times: int, **properties: str) -> Tape:
    """A consumer of q that gives one message back all the time, and acknowledges ten others."""
    tape = begun_before(port, 0).play([*consume("q", no_ack=False), given("", "q", 10, message_id="fine")])
    tape.play([(CLIENT, method(commands.Basic.Ack(10, multiple=True)))])
    for number in range(11, 11 + times):
        later(tape, 0.01).play([given("", "q", 1, number, redelivered=True, **properties)])
        tape.play([(CLIENT, method(commands.Basic.Nack(number, requeue=True)))])
    return tape


def test_one_message_that_several_put_back_and_that_was_published_before(tmp_path: Path) -> None:
    said = text_of("con-redelivery-loop", tmp_path, *(put_back(port, 4, message_id="m1") for port in (40000, 40001)))
    assert 'put back again and again, one of them (id "m1") 8 times; 20 others were settled' in said
    assert not findings(of_tapes(tmp_path, put_back(40000, 4, message_id="m1")), "con-redelivery-loop")
    said = text_of("con-redelivery-loop", tmp_path, put_back(40000, 120))
    assert "put messages back 120 times, and settled 10 otherwise: some come again and again" in said
    assert not findings(of_tapes(tmp_path, put_back(40000, 40)), "con-redelivery-loop")


def limited(deliveries: int, deaf: int) -> Tape:
    """A quorum queue that was declared before: messages are given back each time; of others, some come only once."""
    feed = [sent("", "q", 1, message_id=f"bad{number}") for number in range(4)]
    tape = connected(40000, name="kyc").play([*consume("q", no_ack=False), *feed])
    tag = 0
    for attempt in range(deliveries):
        for number in range(4):
            if attempt and number < deaf:
                continue
            tag += 1
            headers = {"x-delivery-count": attempt} if attempt else {}
            tape.play([given("", "q", 1, tag, redelivered=attempt > 0, message_id=f"bad{number}", headers=headers)])
            tape.play([(CLIENT, method(commands.Basic.Nack(tag, requeue=True)))])
    later(tape, 10).play([sent("", "q", 1, message_id="new"), given("", "q", 1, tag + 1, message_id="new")])
    return tape.play([(CLIENT, method(commands.Basic.Ack(tag + 1)))])


def test_a_limit_of_deliveries_that_was_declared_before(tmp_path: Path) -> None:
    statistics = of_tapes(tmp_path, limited(4, 0))
    (row,) = findings(statistics, "con-redelivery-loop")
    assert "kyc put 4 messages of queue q back at each of 4 deliveries, and these did not come again" in row["text"]
    (queue,) = related(statistics, "queues")
    assert (queue["ins"], queue["left_over"]) == (5, 0)
    assert not findings(of_tapes(tmp_path, limited(4, 2)), "con-redelivery-loop")  # two of them are not three


def asked(port: int, *counts: int, consumers: int = 0) -> Tape:
    """A monitor that asks for the messages of a queue each five seconds."""
    tape = connected(port, name="monitor")
    for number, count in enumerate(counts):
        ok = commands.Queue.DeclareOk(queue="dlq", message_count=count, consumer_count=consumers)
        at(tape, 1 + 5 * number).play(
            [(CLIENT, method(commands.Queue.Declare(queue="dlq", passive=True))), (SERVER, method(ok))]
        )
    return tape


def test_a_queue_without_a_consumer_as_the_broker_says(tmp_path: Path) -> None:
    (row,) = findings(of_tapes(tmp_path, asked(40000, 6, 13, 20, 27)), "con-missing")
    assert "the broker said each of 4 times that somebody asked, and grew from 6 to 27 messages in 15 s" in row["text"]
    assert row["severity"] == "warning"
    assert not findings(of_tapes(tmp_path, asked(40000, 6, 13, 20, 27, consumers=1)), "con-missing")
    assert not findings(of_tapes(tmp_path, asked(40000, 6, 27, 13, 20)), "con-missing")
    (row,) = findings(of_tapes(tmp_path, asked(40000, 6, 13, 20)), "con-missing")
    assert row["severity"] == "note"


def standing_still(forgets: bool, *others: Tape) -> list[Tape]:
    """A consumer with a limit of five: it stops at once, or leaves out each tenth message; heartbeats are off."""
    qos = [(CLIENT, method(commands.Basic.Qos(prefetch_count=5))), (SERVER, method(commands.Basic.QosOk()))]
    tape = connected(40000, name="poster").play([*qos, *declare("q"), *consume("q", no_ack=False)])
    open_ = 0
    for number in range(1, 56):
        if open_ == 5:
            break
        later(tape, 0.05).play([given("", "q", 1, number)])
        if (number % 10 == 0) if forgets else (number > 30):
            open_ += 1
        else:
            tape.play([(CLIENT, method(commands.Basic.Ack(number)))])
    feed = connected(40001, 0.05, name="core").play([sent("", "q", 200)])
    return [tape, at(feed, 30).play([(CLIENT, BEAT)]), *others]


def test_a_consumer_that_hangs_or_forgets(tmp_path: Path) -> None:
    said = text_of("con-unsettled", tmp_path, *standing_still(forgets=False))
    assert "c of poster, queue q, stands still: it settled 30, and has 5 deliveries" in said and "nothing" not in said
    said = text_of("con-unsettled", tmp_path, *standing_still(forgets=True))
    assert "queue q, leaves out 5 of 50 deliveries, one after the other, while it settled 45 within" in said
    by = at(connected(40002, 0.1, name="standby").play(consume("q", tag="s", no_ack=False)), 30).play([(CLIENT, BEAT)])
    said = text_of("con-unsettled", tmp_path, *standing_still(False, by))
    assert "1 other consumer of the queue got nothing: if it has a single active consumer, they wait" in said


def renamed(used: bool, back: bool = False) -> list[Tape]:
    """A deploy binds another key; the former binding is older than the capture."""
    feed = begun_before(40000, 0).play([sent("sales", "placed", 15)])
    old = begun_before(40001, 0.01).play([given("sales", "placed", 15)])
    new = connected(40002, 2, name="billing")
    unbind = commands.Queue.Unbind(queue="q", exchange="sales", routing_key="placed")
    new.play([*bind("q", "sales", "placed.v2"), (CLIENT, method(unbind)), (SERVER, method(commands.Queue.UnbindOk()))])
    new.play(consume("q", tag="n"))
    if back:
        at(new, 7).play([given("sales", "placed", 5, tag="n")])
    at(feed, 5).play([sent("sales", "placed", 15), *([sent("sales", "placed.v2", 1)] if used else [])])
    at(feed, 6).play([sent("sales", "placed", 15)])
    return [feed, old, new]


def test_a_key_that_a_consumer_renames_alone(tmp_path: Path) -> None:
    said = text_of("con-unbound", tmp_path, *renamed(used=False))
    assert 'billing bound queue q to exchange sales with key "placed.v2" instead of "placed"' in said
    assert "30 messages since then were delivered to nobody, 15 before" in said
    assert not findings(of_tapes(tmp_path, *renamed(used=True)), "con-unbound")
    assert not findings(of_tapes(tmp_path, *renamed(used=False, back=True)), "con-unbound")


def test_answers_by_direct_reply_to_are_one_edge(tmp_path: Path) -> None:
    keys = [f"amq.rabbitmq.reply-to.g1h2AA{number}" for number in range(3)]
    tape = connected(40000, name="server").play([sent("", key, 2) for key in keys])
    (edge,) = related(of_tapes(tmp_path, closed(tape)), "topology")
    assert (edge["routing_key"], edge["messages"]) == ("amq.rabbitmq.reply-to", 6)


def expiring(last_left: bool) -> list[Tape]:
    """Every second message of a queue with a time to live is never delivered, while later ones are."""
    feed = connected(40000, name="otp").play(declare("q", x_message_ttl=4000))
    gate = connected(40001, 0.01, name="gate").play(consume("q"))
    for number in range(40):
        at(feed, 1 + 0.1 * number).play([sent("", "q", 1, message_id=f"m{number}")])
        if number % 2 == 0:
            at(gate, 5 + 0.1 * number).play([given("", "q", 1, 1 + number // 2, message_id=f"m{number}")])
    if last_left:
        at(feed, 9).play([sent("", "q", 3, message_id="new")])
    return [at(feed, 10).play([(CLIENT, BEAT)]), at(gate, 10.1).play([(CLIENT, BEAT)])]


def test_what_expired_while_later_messages_were_delivered(tmp_path: Path) -> None:
    said = text_of("con-expired", tmp_path, *expiring(last_left=False))
    assert "of 40 that came, 20 were delivered and 20 expired" in said and "gate did not take them in time" in said
    said = text_of("con-expired", tmp_path, *expiring(last_left=True))
    assert "of 43 that came, 20 were delivered and at least 10 expired" in said


def stale(other: str) -> list[Tape]:
    """A server that goes on to answer to the queue of a caller that has gone."""

    def asked(port: int, seconds: float, name: str, replies: str) -> Tape:
        tape = connected(port, seconds, name=name).play(declare(replies, exclusive=True))
        return tape.play(consume(replies))

    server = connected(40000, name="server").play([*declare("rpc"), *consume("rpc")])
    first = asked(40001, 0.2, "web-1", "amq.gen-1")
    first.play([sent("", "rpc", 1, reply_to="amq.gen-1", correlation_id="a")])
    at(server, 1).play([given("", "rpc", 1), sent("", "amq.gen-1", 1, correlation_id="a")])
    at(first, 1.1).play([given("", "amq.gen-1", 1)])
    second = asked(40002, 3, "web-2", "amq.gen-2")
    for number in range(3):
        at(second, 4 + 2 * number).play([sent("", "rpc", 1, reply_to="amq.gen-2", correlation_id=f"b{number}")])
        at(server, 4.1 + 2 * number).play(
            [given("", "rpc", 1, 2 + number), sent("", other, 1, correlation_id=f"b{number}")]
        )
    return [closed(at(first, 2)), closed(at(second, 12)), at(server, 13).play([(CLIENT, BEAT)])]


def test_answers_to_the_queue_of_an_earlier_connection(tmp_path: Path) -> None:
    statistics = of_tapes(tmp_path, *stale("amq.gen-1"))
    (row,) = findings(statistics, "con-late-reply")
    assert "server sends 3 messages to queue amq.gen-1, which was exclusive to web-1" in row["text"]
    assert "answers none of 3 requests of web-2, which name another queue" in row["text"]
    assert {each["queue"]: each["left_over"] for each in related(statistics, "queues")}["amq.gen-1"] is None
    assert not findings(of_tapes(tmp_path, *stale("amq.gen-2")), "con-late-reply")


def test_who_has_the_connections_that_a_limit_counts(tmp_path: Path) -> None:
    leaking = [connected(40000 + number, number, name="api").play([(CLIENT, BEAT)]) for number in range(6)]
    shop = at(connected(40010, 0.5, name="shop"), 20).play([(CLIENT, BEAT)])
    refused = []
    for number in range(4):
        tape = Tape(port=41000 + number, start_ns=T0 + (10 + 2 * number) * 10**9)
        text = "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit (7) is reached"
        close = commands.Connection.Close(530, text, 10, 40)
        turns = handshake("api" if number % 2 else "worker")[:-1]
        ok = (CLIENT, method(commands.Connection.CloseOk(), 0))
        refused.append(tape.play([*turns, (SERVER, method(close, 0)), ok]).end())
    (row,) = findings(of_tapes(tmp_path, *leaking, shop, *refused), "cnx-reconnect-loop")
    assert row["text"].startswith("api and worker are refused again and again, 4 times")
    assert row["text"].endswith("api has 6 of the 7 connections that were open and captured and closes none")


def test_the_same_messages_on_each_new_connection(tmp_path: Path) -> None:
    def batches(times: int, *ids: str) -> list[Tape]:
        turns = [sent("", "q", 1, message_id=each) for each in ids]
        return [closed(connected(40000 + n, 4 * n, name="export").play(turns)) for n in range(times)]

    said = text_of("pub-dup", tmp_path, *batches(4, *"abcde"))
    assert "export publishes the same 5 messages (by their ids) to queue q again and again, up to 4 times" in said
    assert not findings(of_tapes(tmp_path, *batches(2, *"abcde")), "pub-dup")
    assert not findings(of_tapes(tmp_path, *batches(4, *"aaaaaa")), "pub-dup")  # no id of one message


def crashing(same: bool) -> list[Tape]:
    """A worker whose connections end with four messages in hand."""
    feed = connected(40000, name="upload").play([*declare("q"), sent("", "q", 1, message_id="good")])
    tapes = [closed(at(feed, 20).play([(CLIENT, BEAT)]))]
    for turn in range(4):
        tape = connected(41000 + turn, 3 * turn, name="thumbs").play([*QOS, *consume("q", no_ack=False)])
        ids = ["bad" if same else f"bad{turn}", *(f"other{number}" for number in range(3))]
        tape.play(given("", "q", 1, n, redelivered=turn > 0, message_id=each) for n, each in enumerate(ids, 1))
        at(tape, 3 * turn + 0.7).segment(CLIENT, flags=RST | ACK)
        tapes.append(tape)
    return tapes


def test_a_message_at_which_a_program_ends_each_time(tmp_path: Path) -> None:
    (row,) = findings(of_tapes(tmp_path, *crashing(same=True)), "con-redelivery-loop")
    assert 'thumbs breaks off again and again at one message of queue q (id "bad"): 4 connections' in row["text"]
    assert "12 deliveries of others came and went with it" in row["text"]
    assert not findings(of_tapes(tmp_path, *crashing(same=False)), "con-redelivery-loop")


def boards(binds: bool, named: bool = False) -> list[Tape]:
    """Three clients with queues of their own; the last one does not bind it."""
    tapes = []
    for number in range(3):
        queue = f"amq.gen-{number}"
        tape = connected(40000 + number, 0.1 * number, name=f"board-{number}").play(declare(queue, exclusive=True))
        if number < 2 or binds:
            tape.play(bind(queue, "departures", ""))
        tape.play(consume(queue, tag=queue))
        if number < 2:
            at(tape, 2).play([given("departures", "", 3, tag=queue)])
        tapes.append(closed(at(tape, 9)))
    feed = connected(40009, name="ops").play(exchange("departures", "fanout"))
    at(feed, 1.9).play([sent("departures", "", 3), *([sent("", "amq.gen-2", 1)] if named else [])])
    return [*tapes, closed(at(feed, 9.5))]


def test_a_queue_of_its_own_that_a_client_does_not_bind(tmp_path: Path) -> None:
    (row,) = findings(of_tapes(tmp_path, *boards(binds=False)), "con-unbound")
    assert "board-2 consumes from queue amq.gen-2, which it declared for itself" in row["text"]
    assert row["text"].endswith("2 queues of others like it are bound to exchange departures")
    for calm in (boards(binds=True), boards(binds=False, named=True)):
        assert not findings(of_tapes(tmp_path, *calm), "con-unbound")


def purged(removed: int, reads: bool) -> list[Tape]:
    """A script purges a queue."""
    ok = commands.Queue.PurgeOk(message_count=removed)
    script = connected(40000, 1, name="reset").play(
        [(CLIENT, method(commands.Queue.Purge(queue="push"))), (SERVER, method(ok))]
    )
    reader = connected(40001, name="sender").play(consume("push")) if reads else connected(40001, name="sender")
    return [closed(script), closed(at(reader, 3))]


def test_a_queue_that_a_script_purges(tmp_path: Path) -> None:
    (row,) = findings(of_tapes(tmp_path, *purged(9, reads=True)), "pub-dropped")
    assert row["text"].startswith(
        "reset purged queue push: 9 messages were removed by 1 request (queue.purge), though "
    )
    assert row["text"].endswith("sender consumes from it") and row["severity"] == "warning"
    for calm in (purged(9, reads=False), purged(0, reads=True)):
        assert not findings(of_tapes(tmp_path, *calm), "pub-dropped")


def printers(queue: str) -> list[Tape]:
    """Three programs of one name; the third one consumes from another queue."""
    tapes = []
    for number in range(1, 4):
        mine = queue if number == 3 else "invoices.print"
        tape = connected(40000 + number, 0.01 * number, name=f"printer-{number}")
        tape.play([*declare(mine), *consume(mine, tag=f"t{number}")])
        if number < 3:
            at(tape, 2 + number).play([given("", "invoices.print", 12, tag=f"t{number}")])
        tapes.append(closed(at(tape, 15)))
    feed = connected(40009, name="billing").play(declare("invoices.print"))
    return [*tapes, closed(at(feed, 1.5).play([sent("", "invoices.print", 24)]))]


def test_one_of_several_who_reads_another_queue(tmp_path: Path) -> None:
    (row,) = findings(of_tapes(tmp_path, *printers("invoices.pirnt")), "con-unbound")
    assert "printer-3 consumes from queue invoices.pirnt, into which nothing came" in row["text"]
    assert "2 others of its name consume from queue invoices.print" in row["text"]
    for queue in ("invoices.print", "invoices.print3", "audit"):
        assert not findings(of_tapes(tmp_path, *printers(queue)), "con-unbound")


def test_what_comes_again_without_having_come_before_is_not_left(tmp_path: Path) -> None:
    feed = connected(40000, name="hq").play([*declare("q"), sent("", "q", 10)])
    again = connected(40001, 0.5, name="till").play([*consume("q"), given("", "q", 4, redelivered=True)])
    (row,) = related(of_tapes(tmp_path, closed(feed), closed(again)), "queues")
    assert (row["ins"], row["left_over"]) == (10, None)
