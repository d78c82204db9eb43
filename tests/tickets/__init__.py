"""Problems of users, reproduced with a real broker and real clients, and their twins: one capture each.

FOLDER has the captures; TICKETS, of `tickets.toml`, what must be found in each.
"""

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
TICKETS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "tickets.toml").read_text())["ticket"]
