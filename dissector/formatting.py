"""Format values, the same for people and programs: times, truth, numbers, endpoints, text that controls no terminal."""

import functools
from datetime import UTC, datetime, tzinfo
from typing import Any

MOST_EXACT = 1 << 53
"""Whole numbers up to this one are exact in programs that hold numbers as floating point (jq, JavaScript)."""


def instant(ns: int, zone: tzinfo = UTC) -> str:
    """Return a time (ns since the epoch) in ISO 8601."""
    return moment(*divmod(ns, 1_000_000_000), 9, zone)


def moment(seconds: int, rest: int, digits: int, zone: tzinfo = UTC) -> str:
    """Return a time in ISO 8601: seconds since the epoch, and `rest`, `digits` digits of their fraction."""
    second, offset = _second(seconds, zone)
    return f"{second}.{rest:0{digits}d}{offset}"


@functools.lru_cache(256)
def _second(seconds: int, zone: tzinfo) -> tuple[str, str]:
    time = datetime.fromtimestamp(seconds, zone)
    return f"{time:%Y-%m-%dT%H:%M:%S}", "Z" if zone is UTC else time.isoformat()[19:]


def endpoint(ip: str, port: int) -> str:
    """Return an address and a port as `ip:port`."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def zone_name(ns: int, zone: tzinfo) -> str:
    """Return the name of a zone at a time: UTC, CET."""
    return datetime.fromtimestamp(ns // 1_000_000_000, zone).tzname() or ""


def plain(value: Any) -> Any:
    """Return a value as text and CSV have it: truth as `true` and `false`, as in JSON; else the value itself."""
    return str(value).lower() if isinstance(value, bool) else value


def exact(value: Any, name: str = "") -> Any:
    """Return a value for JSON, with text for ids, times in ns and all numbers that its readers might round."""
    if isinstance(value, dict):
        return {key: exact(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number and (is_text(name) or abs(value) > MOST_EXACT) else value


def is_text(name: str) -> bool:
    """Return whether numbers of this name are always text in JSON: ids of connections, and times in ns."""
    return name.endswith(("connection_id", "ts_ns"))


def counted(number: int, what: str, several: str = "") -> str:
    """Return a number and a noun; `several` is the plural if it is not formed with `s`."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def clean(text: str) -> str:
    """Return text from a capture with control characters escaped, so that it cannot control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def duration(ns: float) -> str:
    """Return a duration in nanoseconds as text of three figures: `412 µs`, `1.23 ms`, `3 min 20 s`."""
    if ns < 0:
        return "\N{MINUS SIGN}" + duration(-ns)
    for unit, size in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)):
        value = ns / size
        if value < 999.5:
            if unit == "s" and value >= 119.5:
                break
            return f"{three_figures(value)} {unit}"
    minutes, seconds = divmod(round(ns / 1_000_000_000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours / 24:.1f} d"


def three_figures(value: float) -> str:
    """Return a number below 1000 with three figures, without zeros at its end."""
    text = f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
