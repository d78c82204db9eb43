"""Publishes that the broker refused or returned or never confirmed, and deliveries that consumers refused."""

import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dashboards import filters, groups, units
from amqpscope.dashboards.connections import Endpoints, endpoints
from amqpscope.dashboards.groups import Group
from amqpscope.dashboards.section import Finding
from amqpscope.dashboards.tables import Tables

CENSORED = ("capture-end", "gap", "evicted")
"""Values of `ended_by` that leave open whether there was an answer."""
NACK = "basic.nack"
"""Refuses a publish without a reason, where a protocol has it."""


def refused(tables: Tables) -> list[Finding]:
    """Return the publishes that were refused: answered with a nack, a reject or an error."""
    found = groups.query(
        tables,
        "confirms",
        ["exchange", "stream"],
        pc.field("outcome") == "nack",
        "confirm_ts_ns",
        ["confirm_capture", "confirm_packet", "protocol", "reply_code"],
        among=pc.field("outcome").is_valid(),
    )
    who = _who(tables, found)
    made = []
    for g in found:
        protocol = g.first["protocol"] or spec.load().name
        has_nack = any(method.full_name == NACK for method in spec.load(protocol).methods)
        why = "nack" if has_nack else code_name(g.first["reply_code"], protocol)
        made.append(
            Finding(
                "error",
                f"{_share(g)} publishes refused{f' ({why})' if why else ''}",
                f"{_target(g)}, {who.several(g.connections)}",
                g.first["confirm_packet"],
                g.first["confirm_capture"],
                g.first["confirm_ts_ns"],
                filters.of_method(NACK, [who.port(c) for c in g.connections])
                if has_nack
                else filters.of_packet(g.first["confirm_packet"], who.port(g.first["connection_id"])),
            )
        )
    return made


def returned(tables: Tables) -> list[Finding]:
    """Return the publishes that came back, because they reached no queue.

    Returns are messages of their own, also where the channel has no confirms. Without the tables of `dissect` those
    of channels with confirms are known from their publishes.
    """
    is_return = pc.field("kind") == "return"
    if tables.rows("messages", is_return):
        found = groups.query(
            tables,
            "messages",
            ["exchange", "reply_code"],
            is_return,
            "ts_ns",
            ["capture", "packet", "reply_text", "routing_key"],
        )
        places = [(g.first["packet"], g.first["capture"], g.first["ts_ns"]) for g in found]
    else:
        found = groups.query(
            tables,
            "confirms",
            ["exchange", "reply_code"],
            pc.field("returned"),
            "publish_ts_ns",
            ["publish_capture", "publish_packet", "routing_key"],
        )
        places = [tuple(g.first[f"publish_{c}"] for c in ("packet", "capture", "ts_ns")) for g in found]
    published = _published(tables, [g.key[0] for g in found])
    who = _who(tables, found)
    made = []
    for g, (packet, capture, ts_ns) in zip(found, places, strict=True):
        why = " ".join(str(w) for w in (g.key[1], g.first.get("reply_text") or code_name(g.key[1])) if w)
        total = max(published.get(g.key[0], 0), g.count)
        key = g.first["routing_key"]
        subject = f"{exchange(g.key[0])}, {'routing key' if g.count == 1 else 'first routing key'} {name(key)}"
        made.append(
            Finding(
                "error",
                f"{units.count(g.count)} of {units.count(total)} publishes returned{f' ({why})' if why else ''}",
                f"{subject}, {who.several(g.connections)}",
                packet,
                capture,
                ts_ns,
                filters.of_method("basic.return", [who.port(c) for c in g.connections]),
            )
        )
    return made


def unconfirmed(tables: Tables) -> list[Finding]:
    """Return the publishes that can no longer be confirmed: a close came first, so nobody knows what became of them."""
    ended = pc.field("ended_by")
    found = groups.query(
        tables,
        "confirms",
        ["exchange", "stream", "ended_by"],
        (pc.field("outcome") == "none") & ended.is_valid() & ~ended.isin(list(CENSORED)),
        "publish_ts_ns",
        ["publish_capture", "publish_packet"],
    )
    who = _who(tables, found)
    return [
        Finding(
            "warning",
            f"{units.counted(g.count, 'publish', 'publishes')} never confirmed (ended by {g.key[2]})",
            f"{_target(g)}, {who.several(g.connections)}",
            g.first["publish_packet"],
            g.first["publish_capture"],
            g.first["publish_ts_ns"],
            filters.of_packet(g.first["publish_packet"], who.port(g.first["connection_id"])),
        )
        for g in found
    ]


def rejected(tables: Tables) -> list[Finding]:
    """Return the deliveries that consumers refused."""
    found = groups.query(
        tables,
        "settlements",
        ["queue", "requeue"],
        pc.field("outcome").isin(["nack", "reject"]),
        "settle_ts_ns",
        ["settle_capture", "settle_packet", "outcome"],
    )
    who = _who(tables, found)
    fate = {True: "put back to the queue", False: "dropped or dead-lettered"}
    return [
        Finding(
            "warning",
            f"{units.counted(g.count, 'delivery', 'deliveries')} refused by consumers"
            f"{f' ({fate[g.key[1]]})' if g.key[1] is not None else ''}",
            f"queue {name(g.key[0])}, {who.several(g.connections)}",
            g.first["settle_packet"],
            g.first["settle_capture"],
            g.first["settle_ts_ns"],
            filters.of_packet(g.first["settle_packet"], who.port(g.first["connection_id"])),
        )
        for g in found
    ]


def name(text: str | None) -> str:
    """Return a name from the wire in quotation marks, or that it is not known."""
    return "not known" if text is None else f'"{text}"'


def exchange(text: str | None) -> str:
    """Return what an exchange is called in a sentence."""
    return "the default exchange" if text == "" else f"exchange {name(text)}"


def code_name(code: int | None, protocol: str = "amqp-0-9-1") -> str:
    """Return the name of a reply code, or the code where the protocol does not know it."""
    named = {c.value: c.name for c in spec.load(protocol).constants if c.kind}
    return "" if code is None else named.get(code, str(code))


def _published(tables: Tables, exchanges: list[str | None]) -> dict[str | None, int]:
    """Return the number of publishes to each of some exchanges."""
    if not exchanges:
        return {}
    is_publish = pc.field("kind") == "publish"
    table, where = ("messages", is_publish) if tables.rows("messages", is_publish) else ("confirms", None)
    named = pc.field("exchange").isin([e for e in exchanges if e is not None])
    counted = tables.group(
        table, ["exchange"], {"count": ("exchange", "count")}, where=named if where is None else where & named
    )
    return {row["exchange"]: row["count"] for row in counted.to_pylist()}


def _who(tables: Tables, found: list[Group]) -> Endpoints:
    return endpoints(tables, {c for g in found for c in (*g.connections, g.first["connection_id"])})


def _share(group: Group) -> str:
    return f"{units.count(group.count)} of {units.count(group.rows)}"


def _target(group: Group) -> str:
    to_exchange, to_stream = group.key[:2]
    return f"stream {name(to_stream)}" if to_stream is not None else exchange(to_exchange)
