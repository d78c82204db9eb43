"""`python -m tests.tickets.record [ticket...]`: records all tickets, or those named, as root; see tests/captures."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import traceback
from pathlib import Path

from tests.captures.record.scenario import House
from tests.tickets.record.stage import TICKETS, Ticket


def main(names: list[str]) -> int:
    """Records.

    Returns:
        0, 1 when a scenario failed (the others are recorded), or 2 when a name is not known.
    """
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("theme_"):
            importlib.import_module(f"tests.tickets.record.{module.name}")
    if unknown := {*names} - {"--inside", *TICKETS}:
        print(f"no such ticket: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if "--inside" not in names:
        # a network namespace of its own: no port is taken, and no other traffic seen
        again = [sys.executable, "-m", "tests.tickets.record", "--inside", *names]
        return subprocess.run(["unshare", "--net", *again], check=False).returncode
    names.remove("--inside")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    house, failed = House(), []
    try:
        for name in names or sorted(TICKETS):
            stage = Ticket(house, name)
            try:
                TICKETS[name](stage)
            except Exception:
                failed.append(name)
                traceback.print_exc()
            else:
                print(f"{name}: {stage.path.stat().st_size} bytes", flush=True)
            finally:
                stage.write()
    finally:
        house.close()
    print(f"failed: {', '.join(failed)}" if failed else "all recorded", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
