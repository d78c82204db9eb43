"""Tasks on Spark that fail when they have written all."""

import importlib
import os
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def fail(patch: pytest.MonkeyPatch, module: ModuleType, name: str, how: str, flag: Path | None) -> None:
    """Let the tasks that run this function of a module fail: the first one, which leaves the flag; each without a flag.

    `how` is `raises`, or `killed`: then the worker ends with the task.
    """
    home = module.__name__

    def failing(*given: Any) -> Any:  # workers get it by value: they know no modules of tests
        found = list(getattr(importlib.import_module(home), name)(*given))
        if flag is not None:
            try:
                flag.touch(exist_ok=False)
            except FileExistsError:
                return iter(found)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError("all gone")

    patch.setattr(module, name, failing)
