"""Channels, sessions and connections closed with an error, and requests that were refused."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dashboards import filters, groups, units
from amqpscope.dashboards.connections import Endpoints, endpoints
from amqpscope.dashboards.groups import Group
from amqpscope.dashboards.refusals import code_name, exchange, name
from amqpscope.dashboards.section import Finding
from amqpscope.dashboards.tables import Tables

CLOSES = {"channel.close": "channel", "execution.exception": "session", "connection.close": "connection"}
"""Methods that close something because of an error, and what."""
_FINE = (0, 200)
"""Reply codes of closes that are no error; some clients send 0."""


def closed(tables: Tables, method: str) -> list[Finding]:
    """Return the errors that closed something, by request and the queue or exchange it was about.

    They are in a table of their own. Older statistics lack it; then the frames are asked, and without frames the
    requests that had no other answer.
    """
    for source in (_from_table, _from_frames, _from_requests):
        found = source(tables, method)
        if found is not None:
            return found
    return []


def known(tables: Tables) -> bool:
    """Return whether any table would hold such errors."""
    return any(tables.has(t) for t in ("channel_errors", "amqp091_frames", "rpcs"))


def refused_requests(tables: Tables) -> list[Finding]:
    """Return the requests that were answered with an error and closed nothing, as those of streams are."""
    found = groups.query(
        tables,
        "rpcs",
        ["request", "reply_code"],
        (pc.field("outcome") == "error") & ~pc.coalesce(pc.field("response").isin(list(CLOSES)), pc.scalar(False)),
        "response_ts_ns",
        ["response_capture", "response_packet"],
    )
    who = endpoints(tables, {c for g in found for c in g.connections})
    return [
        Finding(
            "warning",
            f"{units.counted(g.count, 'request')} refused: {g.key[0] or 'request'}"
            f"{f' ({why})' if (why := code_name(g.key[1], 'rabbitmq-stream')) else ''}",
            who.several(g.connections),
            g.first["response_packet"],
            g.first["response_capture"],
            g.first["response_ts_ns"],
            filters.of_packet(g.first["response_packet"], who.port(g.first["connection_id"])),
        )
        for g in found
    ]


def _from_table(tables: Tables, method: str) -> list[Finding] | None:
    if not tables.has("channel_errors"):
        return None
    keys = ["reply_code", "failed_method", "queue", "exchange", "from_client"]
    columns = ["reply_text", "capture", "packet"]
    where = (pc.field("method") == method) & _is_error()
    found = groups.query(tables, "channel_errors", keys, where, "ts_ns", columns)
    places = [tuple(g.first[c] for c in ("packet", "capture", "ts_ns")) for g in found]
    subjects = [_about(*g.key[1:4]) for g in found]
    return _findings(tables, method, found, subjects, places)


def _from_frames(tables: Tables, method: str) -> list[Finding] | None:
    if not tables.has("amqp091_frames"):
        return None
    keys = ["reply_code", "class_id", "method_id", "from_client"]
    columns = ["reply_text", "capture", "packet"]
    where = (pc.field("method") == method) & _is_error()
    found = groups.query(tables, "amqp091_frames", keys, where, "ts_ns", columns)
    places = [tuple(g.first[c] for c in ("packet", "capture", "ts_ns")) for g in found]
    return _findings(tables, method, found, [_about(_named(*g.key[1:3])) for g in found], places)


def _from_requests(tables: Tables, method: str) -> list[Finding] | None:
    if not tables.has("rpcs"):
        return None
    where = (pc.field("outcome") == "error") & (pc.field("response") == method)
    columns = ["reply_text", "response_capture", "response_packet"]
    found = groups.query(tables, "rpcs", ["reply_code", "request", "queue"], where, "response_ts_ns", columns)
    places = [tuple(g.first[f"response_{c}"] for c in ("packet", "capture", "ts_ns")) for g in found]
    return _findings(tables, method, found, [_about(*g.key[1:3]) for g in found], places)


def _is_error() -> pc.Expression:
    return pc.field("reply_code").is_valid() & ~pc.field("reply_code").isin(pa.array(_FINE, pa.int32()))


def _named(class_id: int | None, method_id: int | None) -> str | None:
    """Return the method that a close names by its ids; None when it names none, or one that is not known."""
    try:
        return spec.load().by_id(class_id or 0, method_id or 0).full_name
    except KeyError:
        return None


def _about(request: str | None, queue: str | None = None, to_exchange: str | None = None) -> str:
    """Return what a request was about, in words."""
    parts = [request] if request else []
    parts += [f"queue {name(queue)}"] if queue is not None else []
    parts += [exchange(to_exchange)] if to_exchange is not None else []
    return ", ".join(parts)


def _findings(
    tables: Tables, method: str, found: list[Group], subjects: list[str], places: Sequence[tuple[int, str, int]]
) -> list[Finding]:
    who = endpoints(tables, {c for g in found for c in g.connections})
    made = []
    for g, subject, (packet, capture, ts_ns) in zip(found, subjects, places, strict=True):
        by = " by the client" if g.key[-1] is True else ""
        why = g.first["reply_text"] or code_name(g.key[0]) or "no reason given"
        code = "" if g.key[0] is None else f"{g.key[0]} "
        made.append(
            Finding(
                "error",
                f"{units.counted(g.count, CLOSES[method])} closed{by} with an error: {code}{why}",
                ", ".join(part for part in (subject, who.several(g.connections)) if part),
                packet,
                capture,
                ts_ns,
                _filter(method, g, packet, who),
            )
        )
    return made


def _filter(method: str, found: Group, packet: int | None, who: Endpoints) -> str:
    """Return a display filter for errors: Wireshark knows methods of AMQP 0-9-1; of others it is the first packet."""
    first = found.first["connection_id"]
    if not who.speaks("amqp-0-9-1", first) or method == "execution.exception":
        return filters.of_packet(packet, who.port(first))
    code = "" if found.key[0] is None else f" && amqp.method.arguments.reply_code == {found.key[0]}"
    return filters.of_method(method, [who.port(c) for c in found.connections]) + code
