"""Files and folders that take their place when they are whole: whoever looks finds the one before, or this one."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from amqpscope.errors import Error, reason


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name to write under; what was written takes its place afterwards, or goes away where writing failed.

    Args:
        path: of a file, or of a folder that is not there; a file that is replaced keeps its mode, and its owner where
            that is allowed; a link stays one, a device or pipe is written to.

    Raises:
        Error: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    other = target.with_name(f".{secrets.token_hex(8)}")  # a name as long as the target's may have no room for more
    try:
        try:
            there = path.stat()
        except FileNotFoundError:
            there = None
        is_special = there is not None and not stat.S_ISREG(there.st_mode)
        if there is not None and not is_special:  # what others may not read, they may not read meanwhile
            os.close(os.open(other, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield path if is_special else other
        if there is not None and not is_special:
            with contextlib.suppress(PermissionError):
                os.chown(other, there.st_uid, there.st_gid)
            other.chmod(stat.S_IMODE(there.st_mode))
        if not is_special:
            os.replace(other, target)  # noqa: PTH105 - the same, and says what it does
    except Error:
        raise
    except OSError as error:
        raise Error(f"{path}: cannot write: {reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            other.unlink() if other.is_file() else shutil.rmtree(other)
