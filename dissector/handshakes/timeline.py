"""The steps of a handshake in the order in which they were seen."""

from collections.abc import Callable, Iterator

from amqpscope.dissector.handshakes import tls_facts
from amqpscope.dissector.handshakes.inputs import Tcp
from amqpscope.dissector.handshakes.record import ConnectionRecord, FirstBytes, PacketRef, Step
from amqpscope.spec.handshakes import opening

AGAIN = "tcp.again"
"""The step of sending something again."""
TCP_ENDS = ("tcp.fin", "tcp.rst")
"""Steps that end a side."""


def timeline(record: ConnectionRecord, tcp: Tcp) -> list[Step]:
    """Return the steps of both sides in their order: SYNs, what was said, and where TCP was acknowledged and ended.

    The order is that of the capture, not of its times, which a coarse clock leaves equal and which two cards measure
    apart. What was said is in the order in which TCP emits it: nothing comes before the bytes that it acknowledges.
    """
    steps = _said(record, tcp)
    if tcp.ack:
        ack = Step("tcp.ack", tcp.client, tcp.ack)
        steps.insert(_first_after(steps, ack), ack)
    for side, shown in sorted(
        zip((tcp.client, 1 - tcp.client), tcp.sides, strict=True), key=lambda s: s[0] != tcp.closer
    ):
        if shown.end and shown.end_at:
            _end(steps, Step(f"tcp.{shown.end}", side, shown.end_at), shown.end_after or shown.end_at)
    steps = [*_syns(tcp), *steps]
    if tcp.sides[0].again or tcp.sides[1].again:
        return _with_repeats(steps, tcp)
    return steps


def is_before(one: PacketRef, other: PacketRef) -> bool:
    """Return whether a packet was captured before another one. Between captures, times decide."""
    if one.capture == other.capture:
        return one.packet < other.packet
    return (one.ts_ns, one.capture) < (other.ts_ns, other.capture)


def _syns(tcp: Tcp) -> Iterator[Step]:
    for event, side, shown in zip(("tcp.syn", "tcp.syn-ack"), (tcp.client, 1 - tcp.client), tcp.sides, strict=True):
        if shown.syn:
            yield Step(event, side, shown.syn, f"sent {shown.syns} times" if shown.syns > 1 else "")


def _said(record: ConnectionRecord, tcp: Tcp) -> list[Step]:
    """Return the steps that bytes make: those with which each side begins come before all others of that side."""
    inner = list(record.steps)
    if record.outer:
        _begin(inner, record, tcp, record.firsts)
    said = _merged(tls_facts.steps(record.tls), inner) if record.tls else inner
    _begin(said, record, tcp, record.outer or record.firsts)
    return said


def _begin(steps: list[Step], record: ConnectionRecord, tcp: Tcp, firsts: tuple[FirstBytes, FirstBytes]) -> None:
    """Insert the first step of each side; that of the side that spoke first comes before all."""
    found = [step for side in (tcp.client, 1 - tcp.client) if (step := _first_step(record, tcp, side, firsts[side]))]
    if len(found) == 2 and firsts[found[1].side].is_earlier:
        found.reverse()
    for step in reversed(found):
        steps.insert(0 if firsts[step.side].is_earlier else _first_after(steps, step), step)


def _first_after(steps: list[Step], first: Step) -> int:
    """Return the place of the first step of a side: before its others, and those captured later."""
    return _place(steps, 0, lambda step: step.side == first.side or is_before(first.at, step.at))


def _end(steps: list[Step], end: Step, after: PacketRef) -> None:
    """Insert the end of a side: after all its other steps, and those that it acknowledges."""
    last = max((n for n, step in enumerate(steps) if step.side == end.side or step.event in TCP_ENDS), default=-1)
    steps.insert(_place(steps, last + 1, lambda step: is_before(after, step.at)), end)


def _place(steps: list[Step], begin: int, is_later: Callable[[Step], bool]) -> int:
    """Return the index of the first step from `begin` on that is later."""
    return next((n for n in range(begin, len(steps)) if is_later(steps[n])), len(steps))


def _with_repeats(steps: list[Step], tcp: Tcp) -> list[Step]:
    """Put what was sent again between the steps, up to the first use: what is later belongs to no handshake."""
    used = next((step.at for step in steps if step.event == "first use"), None)
    repeats: list[Step] = []
    for side, shown in zip((tcp.client, 1 - tcp.client), tcp.sides, strict=True):
        again = [
            Step(AGAIN, side, at, f"{length} byte{'s' * (length > 1)}" if length else "the SYN, or its answer")
            for at, length in shown.again
            if used is None or is_before(at, used)
        ]
        repeats = _merged(repeats, again)
    return _merged(steps, repeats)


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
    """Merge two lists, each in its own order."""
    merged: list[Step] = []
    theirs = theirs[::-1]
    for step in ours:
        while theirs and is_before(theirs[-1].at, step.at):
            merged.append(theirs.pop())
        merged.append(step)
    return merged + theirs[::-1]


def _opening_event(data: bytes) -> tuple[str, str]:
    """Return the step that the first bytes of a side are, empty where it is none, and what to say of them."""
    first = opening(data)
    return first.step, f"{first.doc}: {data[:8].hex(' ')}" if first.kind == "other" else first.doc
