"""Signs of life: `heartbeats()` over the rows of `frames()`."""

from __future__ import annotations

from tests.reference.amqp import Row, by_connection

SECOND = 10**9


def heartbeats(rows: list[Row]) -> list[Row]:
    """One row per connection and direction: `negotiated_s`, `longest_silence_ns` and `missed`."""
    return [_signs_of(group, from_client) for group in by_connection(rows) for from_client in (True, False)]


def _first(group: list[Row], *methods: str) -> Row | None:
    return next((frame for frame in group if frame["method"] in methods), None)


def _signs_of(group: list[Row], from_client: bool) -> Row:
    agreed, closed = _first(group, "connection.tune-ok"), _first(group, "connection.close")
    begin = agreed["ts_ns"] if agreed else group[0]["begun_ts_ns"]
    end = closed["ts_ns"] if closed else group[0]["last_ts_ns"]
    negotiated = agreed["args"].get("heartbeat") if agreed else None
    signs = [(frame["first_ts_ns"], frame["ts_ns"]) for frame in group if frame["from_client"] == from_client]
    silences, latest = [0], begin
    for first, last in [*signs, (end, end)]:
        silences.append(min(first, end) - latest)
        latest = max(latest, last)
    missed = None if negotiated is None else sum(max(s, 0) // (negotiated * SECOND) for s in silences if negotiated)
    row = {name: group[0][name] for name in ("connection", "client", "server", "nth")} | {"from_client": from_client}
    return row | {"negotiated_s": negotiated, "longest_silence_ns": max(silences), "missed": missed}
