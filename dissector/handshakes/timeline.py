"""The steps of a handshake in the order in which they were seen."""

from collections.abc import Iterator

from amqpscope.dissector.handshakes import tls_facts
from amqpscope.dissector.handshakes.inputs import Tcp
from amqpscope.dissector.handshakes.record import ConnectionRecord, FirstBytes, Step
from amqpscope.spec.handshakes import opening

AGAIN = "tcp.again"
"""The step of sending something again."""


def timeline(record: ConnectionRecord, tcp: Tcp) -> list[Step]:
    """Return both sides' steps merged by time, each side's in its own order; at equal times the client's is first.

    SYNs come first, in their order, though captures may have them later.
    """
    client = tcp.client
    merged = _merged(_queue(record, tcp, client, 0), _queue(record, tcp, 1 - client, 1))
    steps = [*_syns(tcp), *merged]
    if tcp.sides[0].again or tcp.sides[1].again:
        return _with_repeats(steps, tcp)
    return steps


def _syns(tcp: Tcp) -> Iterator[Step]:
    for event, side, shown in zip(("tcp.syn", "tcp.syn-ack"), (tcp.client, 1 - tcp.client), tcp.sides, strict=True):
        if shown.syn:
            yield Step(event, side, shown.syn, f"sent {shown.syns} times" if shown.syns > 1 else "")


def _queue(record: ConnectionRecord, tcp: Tcp, side: int, index: int) -> list[Step]:
    """Return the steps of one side, the client's (0) or the server's (1), without SYNs."""
    shown = tcp.sides[index]
    queue = []
    if tcp.ack and index == 0:
        queue.append(Step("tcp.ack", side, tcp.ack))
    if first := _first_step(record, tcp, side, (record.outer or record.firsts)[side]):
        queue.append(first)
    spoken = [step for step in record.steps if step.side == side]
    if record.outer and (inner := _first_step(record, tcp, side, record.firsts[side])):
        spoken.insert(0, inner)
    queue += _merged(tls_facts.steps(record.tls, side), spoken) if record.tls else spoken
    if shown.end and shown.end_at:
        queue.append(Step(f"tcp.{shown.end}", side, shown.end_at))
    return queue


def _with_repeats(steps: list[Step], tcp: Tcp) -> list[Step]:
    """Put what was sent again between the steps, up to the first use: what is later belongs to no handshake."""
    used = next((step.at.ts_ns for step in steps if step.event == "first use"), None)
    repeats = [
        Step(AGAIN, side, at, f"{length} byte{'s' * (length > 1)}" if length else "the SYN, or its answer")
        for side, shown in zip((tcp.client, 1 - tcp.client), tcp.sides, strict=True)
        for at, length in shown.again
        if used is None or at.ts_ns < used
    ]
    return _merged(steps, sorted(repeats, key=lambda step: step.at.ts_ns))


def _first_step(record: ConnectionRecord, tcp: Tcp, side: int, first: FirstBytes) -> Step | None:
    """Return the step that the first bytes of a side are, if they are one."""
    if not first.at or not first.data:
        return None
    event: str | None
    event, doc = _opening_event(first.data)
    if record.tls and event in ("tls.hello", "tls.alert"):
        event, doc = tls_facts.opening(event, record.tls, side)
    is_first = tcp.begun or event == "header" or (event == "tls.hello" and tls_facts.is_begun(record.tls))
    return Step(event, side, first.at, doc) if event and is_first else None


def _merged(ours: list[Step], theirs: list[Step]) -> list[Step]:
    """Merge both queues by time, though time may go back within one."""
    merged: list[Step] = []
    theirs = theirs[::-1]
    for step in ours:
        now = step.at.ts_ns
        while theirs and theirs[-1].at.ts_ns < now:
            merged.append(theirs.pop())
        merged.append(step)
    return merged + theirs[::-1]


def _opening_event(data: bytes) -> tuple[str, str]:
    """Return the step that the first bytes of a side are, empty where it is none, and what to say of them."""
    first = opening(data)
    return first.step, f"{first.doc}: {data[:8].hex(' ')}" if first.kind == "other" else first.doc
