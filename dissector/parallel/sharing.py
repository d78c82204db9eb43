"""Results that several processes share through a folder: all of them need all results, and each is made once."""

import fcntl
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

Make = Callable[[Path], None]
"""Writes a result to a path, as a file or as a folder."""


def share(folder: Path, results: Mapping[str, Make], first: int = 0) -> list[Path]:
    """Return the paths of all results once they are there, whichever process made them.

    Processes that call this with the same folder and results divide the work. A lock shows which result is being made;
    it ends with its process, and another process makes the result then. In a file system without locks a result may be
    made twice, and one of the two stays.

    Args:
        folder: created if it does not exist, for this user alone.
        results: what makes each result, by its name.
        first: the index of the result to begin with, so that processes do not all want the same one.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = [*results][first:] + [*results][:first]
    for waits in (False, True):
        for name in names:
            if not (folder / name).exists():
                _make(folder / name, results[name], waits)
    return [folder / name for name in results]


def _make(path: Path, make: Make, waits: bool) -> None:
    """Make a result, unless another process does or did; wait for that process or leave the result to it."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:
            pass  # there are no locks here
        if path.exists():
            return
        own = path.with_name(f".{path.name}.{uuid4().hex}")
        make(own)
        try:
            own.rename(path)
        except OSError:
            if not path.exists():
                raise
            shutil.rmtree(own)  # a folder that another process made meanwhile stays
