"""Read the times and time zones that users give."""

import argparse
import os
import re
from datetime import UTC, datetime, time, tzinfo
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
LOCAL = Path("/etc/localtime")


class Given(NamedTuple):
    """A time as a user gives it: a date with or without a zone, or a time of the day; and the ns after its second."""

    when: datetime | time
    rest: int

    def ns(self, zone: tzinfo, begin_ns: int) -> int:
        """Return it in ns since the epoch; what lacks a zone is of `zone`, a time alone of the day of `begin_ns`."""
        when = self.when
        if isinstance(when, time):
            when = datetime.combine(datetime.fromtimestamp(begin_ns // SECOND, zone), when)
        return int((when if when.tzinfo else when.replace(tzinfo=zone)).timestamp()) * SECOND + self.rest


class Range(NamedTuple):
    """The times between which rows are wanted; None where there is no bound."""

    start: Given | None
    end: Given | None

    @property
    def needs_day(self) -> bool:
        """Return whether one of them is a time of the day."""
        return any(given is not None and isinstance(given.when, time) for given in self)

    def ns(self, zone: tzinfo, begin_ns: int) -> tuple[int | None, int | None]:
        """Return both in ns since the epoch; a time of the day is of that of `begin_ns`, an end follows its start."""
        start = self.start and self.start.ns(zone, begin_ns)
        end = self.end and self.end.ns(zone, begin_ns if start is None else start)
        if self.end and isinstance(self.end.when, time) and start is not None and (end or 0) <= start:
            end = self.end.ns(zone, start + DAY)
        return start, end


def given(text: str) -> Given:
    """Return the time that a text names.

    Raises:
        argparse.ArgumentTypeError: it names none.
    """
    seconds = re.fullmatch(r"(\d{1,10})(?:\.(\d{1,9}))?", text)
    if seconds:
        return Given(datetime.fromtimestamp(int(seconds[1]), UTC), _rest(seconds[2]))
    parts = re.fullmatch(r"([^.]+)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", text)
    for kind in (time, datetime) if parts else ():
        try:
            return Given(kind.fromisoformat(parts[1] + (parts[3] or "")), _rest(parts[2]))  # type: ignore[index]
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(
        f"not a time: {text!r}; give 2026-01-31T12:00:00.5Z, 2026-01-31, 17:40 or seconds since 1970"
    )


def zone(text: str) -> tzinfo:
    """Return the time zone of this name; `local` is this machine's.

    Raises:
        argparse.ArgumentTypeError: there is none.
    """
    name = os.environ.get("TZ", "").removeprefix(":") if text == "local" else text
    try:
        if text == "local" and not name:
            return _of_machine()
        return UTC if name.upper() in ("UTC", "Z") else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise argparse.ArgumentTypeError(f"not a time zone: {text!r}; give Europe/Berlin, UTC or local") from None


def _of_machine() -> tzinfo:
    """Return the zone of this machine; one that has none set is in UTC."""
    try:
        with LOCAL.open("rb") as file:
            return ZoneInfo.from_file(file)
    except FileNotFoundError:
        return UTC


def _rest(digits: str | None) -> int:
    return int((digits or "").ljust(9, "0"))
