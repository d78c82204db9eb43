"""Build the package by setuptools; a wheel gets the compiled kernels of a folder, if one is named.

`pip install .` names none: the wheel has no machine code, is for any machine, and is made in seconds. `make wheel`
compiles all kernels first, and names the folder: `pip wheel -C compiled=FOLDER .`
"""

import shutil
import sys
from pathlib import Path
from platform import machine
from typing import Any

from setuptools import build_meta as _setuptools
from setuptools.build_meta import *  # noqa: F403 - the other hooks

ROOT = Path(__file__).parents[1]
COMPILED = ROOT / "dissector" / "kernels" / "compiled"


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel for any machine; with `compiled`, a folder of `tools.kernels`, for this Python and machine."""
    settings = dict(config_settings or {})
    libraries = sorted(Path(folder).glob("*.so")) if (folder := settings.pop("compiled", None)) else []
    if libraries:
        # They need no other library, not even that of C, so that the oldest platform tag is right.
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        settings["--build-option"] = [f"--python-tag={python}", f"--plat-name=manylinux_2_17_{machine()}"]
    try:
        for library in libraries:
            COMPILED.mkdir(exist_ok=True)
            shutil.copy(library, COMPILED)
        return str(_setuptools.build_wheel(wheel_directory, settings, metadata_directory))
    finally:
        if libraries:
            shutil.rmtree(COMPILED)
