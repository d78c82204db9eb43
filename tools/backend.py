"""Build the package by setuptools; wheels get compiled kernels.

Compiling them takes more packages than setuptools. An editable installation of a checkout does without; there,
`make kernels` compiles to the user's cache.
"""

import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from platform import machine
from typing import Any

from setuptools import build_meta as _setuptools
from setuptools.build_meta import *  # noqa: F403 - the other hooks

ROOT = Path(__file__).parents[1]
COMPILED = ROOT / "dissector" / "kernels" / "compiled"


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what reading recordings and compiling kernels requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["compile"], *extras["tls"]]
    return [*_setuptools.get_requires_for_build_wheel(config_settings), *needed]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel for this Python and machine, or for any, where `tools.kernels` knows no processors of this kind."""
    try:
        compiler()(COMPILED)
        if COMPILED.exists():
            # The libraries need no other, not even the C library, so that the oldest platform tag is right.
            python = f"cp{sys.version_info.major}{sys.version_info.minor}"
            tags = [f"--python-tag={python}", f"--plat-name=manylinux_2_17_{machine()}"]
            config_settings = {**(config_settings or {}), "--build-option": tags}
        return str(_setuptools.build_wheel(wheel_directory, config_settings, metadata_directory))
    finally:
        shutil.rmtree(COMPILED, ignore_errors=True)


def compiler() -> Callable[[Path], None]:
    """Return what compiles all kernels to a folder; pip hides this checkout where it is installed editable."""
    sys.path[:0] = map(str, (ROOT, ROOT / "src"))
    from tools.kernels import main  # noqa: PLC0415 - what it needs is there only when a wheel is built

    return main
