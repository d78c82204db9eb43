"""What to tell of captures, on standard error: what was cut or left out, why nothing came of it, what is held back."""

import time
from collections.abc import Iterator

from amqpscope.dissector.formatting import counted, instant
from amqpscope.dissector.reading import LINK_NAMES, CaptureSummary, Reading
from amqpscope.dissector.tables.connections import sides
from amqpscope.dissector.tcp.state import Conn

MOST = 10
"""Lines told at most; the table `anomalies` holds all."""

PATIENCE_S = 0.9
"""For so long nothing is said of bytes that wait."""

_TOLD = ("capture-truncated", "header-unknown", "limit-reached")
"""Problems of a file of which the first of a kind is told."""


class HeldBack:
    """What is held back while a capture is read that is still being made, each connection once.

    Args:
        reading: the pass over it.
    """

    def __init__(self, reading: Reading) -> None:
        self._dissector = reading.dissector
        self._since: dict[tuple[int, int], float] = {}
        self._told: set[tuple[int, int]] = set()

    def lines(self) -> Iterator[str]:
        """Lines for people, of connections of which something waits for a second or longer."""
        flows, now = self._dissector.tcp.flows, time.monotonic()
        held = {
            (slot, int(flows.conn[slot, Conn.FIRST_TS])): (side, begun) for slot, side, begun in self._dissector.held()
        }
        self._since = {key: self._since.get(key, now) for key in held}
        for key, since in self._since.items():
            if now - since < PATIENCE_S or key in self._told or len(self._told) > MOST:
                continue
            self._told.add(key)
            if len(self._told) > MOST:
                yield "other connections wait, too"
                continue
            side, begun = held[key]
            ends = sides(key[0], flows.facts)
            why = (
                "was under way when the capture began" if begun else "waits for octets that the capture may have missed"
            )
            yield f"{ends[side]} -> {ends[1 - side]} {why}: its frames show when more has come"


def warning_lines(reading: Reading, frames: int | None = None) -> list[str]:
    """Lines for people.

    Args:
        reading: a pass over captures that has ended.
        frames: frames that were shown; None where something else was asked for.
    """
    lines = [f"{seen.name}: {line}" for seen in reading.seen for line in _of(seen)]
    if len(lines) > MOST:
        lines[MOST - 1 :] = [
            f"{len(lines) - MOST + 1:,} more of that kind; the table `anomalies` of `dissect` lists them"
        ]
    holes = reading.dissector.holes
    if holes.count:
        counts = (holes.octets, "octet"), (holes.count, "hole"), (holes.connections, "connection")
        octets, several, connections = (counted(*count) for count in counts)
        lines.append(f"{octets} missing in {several} of {connections}; frames there are missing or partial")
    tls = reading.dissector.tls
    if tls.keylog.expecting and tls.sealed:
        lines.append(_sealed(reading))
    elif frames == 0 or not any(seen.segments for seen in reading.seen):
        lines.append(_nothing(reading))
    return lines


def _sealed(reading: Reading) -> str:
    tls, path = reading.dissector.tls, reading.options.keylog
    what = f"{tls.sealed:,} TLS connections stay" if tls.sealed > 1 else "a TLS connection stays"
    if not len(tls.keylog):
        return f"{path}: no line of a TLS key log in it, so {what} encrypted"
    whose = path or "the secrets in the capture"
    return f"{what} encrypted: {whose} {'has' if path else 'have'} no secrets for {'them' if tls.sealed > 1 else 'it'}"


def _of(seen: CaptureSummary) -> Iterator[str]:
    info = seen.info
    for code in _TOLD:
        for problem in [p for p in info.problems if p.code == code][:1]:
            places = [f"packet {problem.packet:,}"] if problem.packet else []
            places += [f"octet {problem.offset:,}"] if problem.offset is not None else []
            where = f" ({', '.join(places)})" if places else ""
            kept = "; what came before was read" if code == "capture-truncated" and info.packets else ""
            yield f"{problem.detail}{where}{kept}"
    unknown = seen.counts["link-type-unknown"]
    if unknown:
        links = ", ".join(str(link) for link in info.link_types if link not in LINK_NAMES)
        yield f"packets of a link layer that is not decoded were left out: {unknown:,} (link type {links})"
    if info.dropped:
        yield f"packets dropped while capturing, as the file says: {info.dropped:,}"


def _nothing(reading: Reading) -> str:
    options = reading.options
    packets = sum(seen.info.packets for seen in reading.seen)
    firsts = [seen.info.first_ts_ns for seen in reading.seen if seen.info.first_ts_ns is not None]
    lasts = [seen.info.last_ts_ns for seen in reading.seen if seen.info.last_ts_ns is not None]
    if not firsts or not lasts:
        return "no packets in these captures" if len(reading.seen) > 1 else "no packets in this capture"
    if options.from_ns is not None or options.to_ns is not None:
        return f"no frames in the time asked for; the packets are from {_time(min(firsts))} to {_time(max(lasts))}"
    segments = sum(seen.segments for seen in reading.seen)
    if not segments:
        return f"no TCP in {packets:,} packets"
    return f"no frames of a known protocol in {segments:,} TCP segments; `amqpscope handshakes` tells what was there"


def _time(ns: int) -> str:
    return f"{instant(ns)[:26]}Z"
