"""Print one connection's handshake as a ladder: both sides, every step with its time and packet."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

from amqpscope.dissector.formatting import clean, counted, instant, zone_name
from amqpscope.dissector.handshakes.facts import duration
from amqpscope.dissector.handshakes.listing import cause_of, ends_of, explain, sentence
from amqpscope.dissector.handshakes.record import product
from amqpscope.spec.handshakes import Handshakes
from amqpscope.spec.layout import paint, paragraph, width

SPAN = 34
"""Characters between the two sides."""
DETAIL = 24
"""Characters before a detail that has lines of its own."""


@dataclass(frozen=True)
class Step:
    """A step of a handshake.

    Attributes:
        name: Name of the message, as the protocol calls it.
        from_client: Whether the client sent it.
        packet: Its packet.
        capture: Capture file of the packet; None where it is the file of the connection's first packet.
        since_ns: Time since the connection's first packet.
        took_ns: Time since the step before, None for the first.
        is_proof: Whether it proves the verdict.
        detail: Its content in short; text from the capture.
    """

    name: str
    from_client: bool
    packet: int
    capture: str | None
    since_ns: int
    took_ns: int | None
    is_proof: bool
    detail: str


def lines(row: dict[str, Any], handshakes: Handshakes, zone: tzinfo = UTC) -> Iterator[str]:
    """Return the lines of the verdict, of the two sides, and of the steps between them."""
    cause = cause_of(row, handshakes)
    client, server = ends_of(row)
    yield f"{client} > {server}, {row['protocol']}: {paint(cause.code, cause.severity)}"
    yield from paragraph(clean(sentence(row)))
    yield ""
    for side, address in (("client", client), ("server", server)):
        known = row[f"{side}_properties"]
        yield from paragraph(f"{side}  {address}" + (f"  {clean(product(known))}" if known else ""))
    yield ""
    begin = instant(row["first_ts_ns"], zone)
    yield f"  {'packet':>8}  {begin[:10]} {begin[11:26]} {zone_name(row['first_ts_ns'], zone)}"
    yield f"  {'':8}  {'client':<{10 + SPAN}}  server"
    for step in steps(row):
        yield from _lines(step)
    yield ""
    yield from _times(row)
    notes = json.loads(row["handshake_notes"] or "[]")
    for note in notes:
        yield from paragraph(f"{note['code']}: {clean(note.get('detail') or handshakes.notes[note['code']])}")
    if notes:
        yield ""
    yield from explain(row, cause)


def steps(row: dict[str, Any]) -> list[Step]:
    """Return the steps of a connection's handshake, in order."""
    proofs = {(place.get("capture"), place.get("packet")) for place in json.loads(row["handshake_evidence"] or "[]")}
    return [
        Step(
            name=step["step"].removeprefix("tcp.").upper() if step["step"].startswith("tcp.") else step["step"],
            from_client=bool(step["from_client"]),
            packet=step["packet"],
            capture=step.get("capture"),
            since_ns=step["ts_ns"] - row["first_ts_ns"],
            took_ns=step.get("took_ns"),
            is_proof=(step.get("capture"), step["packet"]) in proofs,
            detail=step.get("detail", ""),
        )
        for step in json.loads(row["handshake_steps"] or "[]")
    ]


def _lines(step: Step) -> Iterator[str]:
    """Yield a rung: packet, time since the first, arrow with the step's name, time since the step before, detail.

    The detail takes further lines where it does not fit.
    """
    rung = f" {step.name} ".center(SPAN - 2, "-")
    arrow = f"|{rung}>|" if step.from_client else f"|<{rung}|"
    since = duration(step.since_ns)
    took = f"+{duration(step.took_ns)}" if step.took_ns is not None else ""
    begin = f"{'>' if step.is_proof else ' '} {step.packet:>8}  {since:>8}  {arrow}  {took}".rstrip()
    detail = "  ".join(filter(None, (clean(step.detail), f"[{clean(step.capture)}]" if step.capture else "")))
    fits = len(begin) + 2 + len(detail) <= width()
    line = f"{begin}  {detail}".rstrip() if fits else begin
    yield paint(line, "name") if step.is_proof else line
    if not fits:
        yield from paragraph(detail, DETAIL)


def _times(row: dict[str, Any]) -> Iterator[str]:
    if row["handshake_ns"] is not None:
        rtt = f"; round trip {duration(row['rtt_ns'])}" if row["rtt_ns"] is not None else ""
        whole = duration(row["handshake_ns"])
        parts = [row[f"handshake_{side}_ns"] for side in ("client", "server")]
        took = "" if None in parts else ", of which the client took {}, the server {}".format(*map(duration, parts))
        yield from paragraph(f"Handshake: {whole}{took}{rtt}.")
    if row["lost_bytes"]:
        yield f"  Missing from the capture: {counted(row['lost_bytes'], 'byte')} of this connection."
    if row["retransmitted_bytes"]:
        yield f"  Retransmitted: {counted(row['retransmitted_bytes'], 'byte')}."
    yield "  > marks the packets that prove the verdict."
    yield ""
