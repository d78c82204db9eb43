"""How much memory there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OF_THIS_PROCESS = Path("/proc/self/cgroup")
"""Its control groups, of both versions: lines such as `0::/user.slice` and `4:memory:/docker/1f9c`."""


def of_machine() -> int:
    """Return the bytes of memory of this machine, or of the control group of this process where that has less."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30]
    for file in _limits():
        with suppress(OSError, ValueError):  # it is not there, or says max
            found.append(int(file.read_text(encoding="ascii")))
    return min(found)


def _limits() -> Iterator[Path]:
    """Yield files that may say how many bytes a group, or one around it, may have; a container sees its own as root."""
    with suppress(OSError):
        for line in OF_THIS_PROCESS.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                base = CONTROL_GROUPS / controllers
                group = base / path.lstrip("/")
                name = "memory.limit_in_bytes" if controllers else "memory.max"
                yield from (each / name for each in (group, *group.parents) if each.is_relative_to(base))
