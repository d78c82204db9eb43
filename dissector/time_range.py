"""Times between which rows are wanted, as callers in Python give them."""

from datetime import UTC, datetime, timedelta

from amqpscope.errors import Error

When = datetime | int | None
"""A time: a datetime with its zone, ns since the epoch (UTC), or no bound."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimeError(Error, ValueError):
    """Times between which nothing can lie, or that lack a zone; one line."""


def time_range(from_: When, to: When) -> tuple[int | None, int | None]:
    """Return two bounds in ns since the epoch.

    Raises:
        TimeError: a datetime has no zone, or the second bound is not after the first.
    """
    begin, end = _ns("from_", from_), _ns("to", to)
    if begin is not None and end is not None and end <= begin:
        raise TimeError("to is not after from_: the time range is empty")
    return begin, end


def _ns(name: str, when: When) -> int | None:
    if not isinstance(when, datetime):
        return when
    if when.tzinfo is None:
        raise TimeError(f"{name} has no time zone: give datetime(..., tzinfo=UTC), or one with another zone")
    # of pandas, a time has nanoseconds as well
    return (when - EPOCH) // timedelta(microseconds=1) * 1000 + int(getattr(when, "nanosecond", 0))
