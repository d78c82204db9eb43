"""Problems of users, reproduced with a real broker and real clients, and their twins: one capture each.

FOLDER has the captures; TICKETS, of `tickets.toml`, what must be found in each. Some are recordings of tests/captures
whose cause their script states, and some are derived from others by what `derived` does to a capture.
"""

import atexit
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from tests.thorough import THOROUGH
from tests.tickets import derived

FOLDER = Path(__file__).parent
RECORDINGS = FOLDER.parent / "captures"
TICKETS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "tickets.toml").read_text())["ticket"]


def is_derived(name: str) -> bool:
    """Return whether a ticket's capture is made of another one's."""
    return "of" in TICKETS[name]


@cache
def path_of(name: str) -> Path:
    """Return a ticket's capture; what is derived is written to a folder that lasts as long as this process."""
    ticket = TICKETS.get(name, {})
    if "of" in ticket:
        made = _folder() / f"{name}.pcap"
        made.write_bytes(derived.made(path_of(ticket["of"]).read_bytes(), ticket["by"]))
        return made
    own = FOLDER / f"{name}.pcap"
    return own if own.exists() else next(RECORDINGS.glob(f"{name}.pcap*"))


@cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="tickets-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def sample() -> list[str]:
    """Return the tickets that a run holds: the first of each rule, and each 40th of the others; or all."""
    if THOROUGH:
        return list(TICKETS)
    firsts = {ticket["first"]: name for name, ticket in reversed(TICKETS.items())}
    always = {name for code, name in firsts.items() if code}
    others = [name for name in TICKETS if name not in always]
    return [name for name in TICKETS if name in always or name in others[::40]]
