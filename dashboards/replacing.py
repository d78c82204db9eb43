"""Files and folders that take their place when they are whole: whoever looks finds the one before, or this one."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from amqpscope.errors import Error, reason


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yield the name to write under; what was written takes its place afterwards, or goes away where writing failed.

    Args:
        path: of a file, or of a folder that is not there; a link stays one, a device or pipe is written to.

    Raises:
        Error: it cannot be written.
    """
    is_special = path.exists() and not path.is_file()
    target = path.resolve()
    other = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        yield path if is_special else other
        if not is_special:
            os.replace(other, target)  # noqa: PTH105 - the same, and says what it does
    except Error:
        raise
    except OSError as error:
        raise Error(f"{path}: cannot write: {reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            other.unlink() if other.is_file() else shutil.rmtree(other)
