"""Values as people read them: counts, times, and text that cannot steer a terminal."""

from datetime import UTC, datetime


def instant(ns: int) -> str:
    """A time as ISO 8601 has it, UTC."""
    return moment(*divmod(ns, 1_000_000_000), 9)


def moment(seconds: int, rest: int, digits: int) -> str:
    """Seconds since the epoch and so many digits of their fraction, as ISO 8601 has them, UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:0{digits}d}Z"


def counted(number: int, what: str, several: str = "") -> str:
    """A number of things; `several` is their plural where it has no mere `s`."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def clean(text: str) -> str:
    """Text from a capture that cannot steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
