"""What is compared with and does not come with the tests: programs, and published documents.

A test whose oracle is not installed is skipped. In continuous integration it fails: there nobody would notice that it
is no longer run.
"""

import os
import shutil
from pathlib import Path

import pytest

SPECIFICATIONS = Path("/usr/share/amqp/specs")
"""Documents of Debian's package amqp-specs."""
REQUIRED = "AMQPSCOPE_ORACLES"
"""Set in an environment in which programs and these documents must be there; other documents need not."""


def needs(*oracles: str | Path) -> pytest.MarkDecorator:
    """Mark a test that runs these programs, or reads these documents."""
    return pytest.mark.oracles(*oracles)


def look_for(oracles: tuple[str | Path, ...]) -> None:
    """Skip the running test when one of these is missing, or fail where it is required."""
    for oracle in oracles:
        if not (oracle.exists() if isinstance(oracle, Path) else shutil.which(oracle)):
            required = isinstance(oracle, str) or oracle.is_relative_to(SPECIFICATIONS)
            (pytest.fail if required and os.environ.get(REQUIRED) else pytest.skip)(f"{oracle} is not installed")
