"""Format values for people: counts, times, and text that cannot control a terminal."""

from datetime import UTC, datetime


def instant(ns: int) -> str:
    """Return a time (ns since the epoch) in ISO 8601, UTC."""
    return moment(*divmod(ns, 1_000_000_000), 9)


def moment(seconds: int, rest: int, digits: int) -> str:
    """Return a time in ISO 8601, UTC: seconds since the epoch, and `rest`, `digits` digits of their fraction."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:0{digits}d}Z"


def counted(number: int, what: str, several: str = "") -> str:
    """Return a number and a noun; `several` is the plural if it is not formed with `s`."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def clean(text: str) -> str:
    """Return text from a capture with control characters escaped, so that it cannot control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
