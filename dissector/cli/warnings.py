"""Make the warnings about captures: truncated or skipped parts, why there are no frames, frames held back."""

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, tzinfo
from itertools import islice

from amqpscope.dissector.formatting import counted, endpoint, instant
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.reading import LINK_NAMES, CaptureSummary, Reading
from amqpscope.dissector.tables.connections import Connections, address, sides
from amqpscope.dissector.tables.guesses import Endpoint, Guesses
from amqpscope.dissector.tcp.state import Conn

MOST = 10
"""Most lines; the table `anomalies` holds all."""

PATIENCE_S = 0.9
"""Seconds before frames that are held back are reported."""

_REPORTED = ("capture-truncated", "header-unknown", "limit-reached")
"""Problems of a file of which the first of each kind is reported."""


class HeldBack:
    """Connections whose frames are held back while a growing capture is read, each reported once.

    Args:
        reading: the pass over it.
    """

    def __init__(self, reading: Reading) -> None:
        self._dissector = reading.dissector
        self._since: dict[tuple[int, int], float] = {}
        self._reported: set[tuple[int, int]] = set()

    def lines(self) -> Iterator[str]:
        """Yield a line per connection whose frames have been held back for a second or longer."""
        flows, now = self._dissector.tcp.flows, time.monotonic()
        held = {
            (slot, int(flows.conn[slot, Conn.FIRST_TS])): (side, begun)
            for slot, side, begun, _ in self._dissector.held()
        }
        self._since = {key: self._since.get(key, now) for key in held}
        for key, since in self._since.items():
            if now - since < PATIENCE_S or key in self._reported or len(self._reported) > MOST:
                continue
            self._reported.add(key)
            if len(self._reported) > MOST:
                yield "frames of other connections are held back, too"
                continue
            side, begun = held[key]
            ends = sides(key[0], flows.facts)
            why = (
                "was under way when the capture began" if begun else "waits for bytes that the capture may have missed"
            )
            yield f"{ends[side]} -> {ends[1 - side]} {why}; its frames are shown when more bytes arrive"


class Contradictions:
    """What shows that ports, or guesses by ports, are wrong about connections; each is reported once."""

    def __init__(self) -> None:
        self._guesses = Guesses()
        self._reported: set[tuple[str | Endpoint, str]] = set()

    def lines(self, known: Connections) -> Iterator[str]:
        """Yield a line for each that these connections show, together with those before; of guesses, the first MOST."""
        self._guesses += known.guesses
        found: dict[tuple[str | Endpoint, str], str] = {}
        found.update((names, _contradicted(*names, count)) for names, count in known.contradicted.items())
        found.update((guess[:2], _refuted(*guess)) for guess in islice(self._guesses.refuted(), MOST))
        for what, line in found.items():
            if what not in self._reported:
                self._reported.add(what)
                yield line


def warning_lines(reading: Reading, zone: tzinfo = UTC, frames: int | None = None) -> list[str]:
    """Return the warnings about captures that were read, a line each.

    Args:
        reading: a pass over captures that has ended.
        zone: time zone of printed times.
        frames: number of frames found; None for commands that show none.
    """
    lines = capture_lines(reading.seen)
    gaps = reading.dissector.gaps
    if gaps.count:
        counts = (gaps.bytes, "byte"), (gaps.count, "gap"), (gaps.connections, "connection")
        size, several, connections = (counted(*count) for count in counts)
        lines.append(f"{size} missing in {several} of {connections}; frames there are missing or partial")
    known = reading.dissector.connections
    lines += Contradictions().lines(known)
    undecoded = [] if frames is None else list(_undecoded(known.spoken))
    lines += undecoded
    tls = reading.dissector.tls
    if tls.keylog.expecting and tls.sealed:
        lines.append(_sealed(reading))
    elif (frames == 0 and not undecoded) or not any(seen.segments for seen in reading.seen) or _is_outside(reading):
        lines.append(_nothing(reading, zone))
    return lines


def capture_lines(summaries: Iterable[CaptureSummary]) -> list[str]:
    """Return the warnings about the files of captures, a line each."""
    lines = [f"{seen.name}: {line}" for seen in summaries for line in _of(seen)]
    if len(lines) > MOST:
        lines[MOST - 1 :] = [
            f"{len(lines) - MOST + 1:,} more of that kind; the table `anomalies` of `dissect` lists them"
        ]
    return lines


def _contradicted(named: str, found: str, count: int) -> str:
    begin = "begins" if count == 1 else "begin"
    return f"--port names {named}, but {counted(count, 'connection')} with that port {begin} as {found} does"


def _refuted(client: Endpoint, protocol: str, count: int) -> str:
    subject, its = (f"{count:,} connections have", "their") if count > 1 else ("a connection has", "its")
    *halves, port = client
    who = f"{its} client {endpoint(address(*halves), port)} is the server of others"
    return f"{subject} client and server the wrong way round: {who}; --port {port}={protocol} corrects that"


def _undecoded(spoken: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each protocol whose frames have no rows, so that nothing of them is shown or written."""
    for plugin in registry.protocols():
        if not plugin.has_rows and spoken.get(plugin.name):
            subject = f"{counted(spoken[plugin.name], 'connection')} of {plugin.name}"
            yield f"{subject}: the frames are counted in `connections`, not decoded; see `amqpscope handshakes`"


def _sealed(reading: Reading) -> str:
    tls, path = reading.dissector.tls, reading.options.keylog
    what = f"{tls.sealed:,} TLS connections stay" if tls.sealed > 1 else "a TLS connection stays"
    if path is not None and not len(tls.keylog):
        return f"{path}: not a TLS key log, so {what} encrypted"
    return f"{what} encrypted: {path or 'the capture'} has no secrets for {'them' if tls.sealed > 1 else 'it'}"


def _of(seen: CaptureSummary) -> Iterator[str]:
    info = seen.info
    for code in _REPORTED:
        for problem in [p for p in info.problems if p.code == code][:1]:
            is_torn = code == "capture-truncated"  # its detail names the packet
            places = [f"packet {problem.packet:,}"] if problem.packet and not is_torn else []
            places += [f"byte {problem.offset:,}"] if problem.offset is not None else []
            where = f" ({', '.join(places)})" if places else ""
            kept = "; everything before it was read" if is_torn and info.packets else ""
            yield f"{problem.detail}{where}{kept}"
    unknown = seen.counts["link-type-unknown"]
    if unknown:
        links = ", ".join(str(link) for link in info.link_types if link not in LINK_NAMES)
        yield f"{counted(unknown, 'packet')} skipped: unsupported link layer (link type {links})"
    if info.dropped:
        yield f"the file reports {counted(info.dropped, 'packet')} dropped while capturing"


def _span(reading: Reading) -> tuple[int, int] | None:
    """Return the times of the first and the last packet; None where there is none."""
    firsts = [seen.info.first_ts_ns for seen in reading.seen if seen.info.first_ts_ns is not None]
    lasts = [seen.info.last_ts_ns for seen in reading.seen if seen.info.last_ts_ns is not None]
    return (min(firsts), max(lasts)) if firsts and lasts else None


def _is_outside(reading: Reading) -> bool:
    """Return whether all packets lie outside of the wanted time range, as they do with times of another zone."""
    start, end, span = reading.options.from_ns, reading.options.to_ns, _span(reading)
    if any(seen.counts["clock-step"] for seen in reading.seen):
        return False
    return span is not None and ((start is not None and span[1] < start) or (end is not None and end <= span[0]))


def _nothing(reading: Reading, zone: tzinfo) -> str:
    options, span = reading.options, _span(reading)
    packets = sum(seen.info.packets for seen in reading.seen)
    if span is None:
        return "no packets in these captures" if len(reading.seen) > 1 else "no packets in this capture"
    if options.from_ns is not None or options.to_ns is not None:
        first, last = (instant(ns, zone) for ns in span)
        return f"nothing in this time range; the capture has packets from {first} to {last}"
    segments = sum(seen.segments for seen in reading.seen)
    if not segments:
        return f"no TCP in {counted(packets, 'packet')}"
    carriers = counted(segments, "TCP segment")
    return f"no frames of a known protocol in {carriers}; `amqpscope handshakes` shows what was there"
