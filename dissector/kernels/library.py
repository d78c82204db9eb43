"""Compiled kernels that come with the package: shared libraries, one for each kind of processor.

`tools/kernels.py` makes them. They need neither numba nor llvmlite.
"""

import ctypes
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

ENTRY = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
"""A C function for calls from Python; it takes a closure, a tuple of positional arguments, and keyword arguments."""
FOLDER = Path(__file__).with_name("compiled")


@cache
def opened() -> ctypes.PyDLL | None:
    """Return the library for the best kind of processor that this one is, or None."""
    for file in sorted(FOLDER.glob("*.so"), reverse=True):  # x86-64-v3 before x86-64-v2
        with suppress(OSError, AttributeError):  # made for another system
            library = ctypes.PyDLL(str(file))
            if library.is_supported():
                return library
    return None


def load(name: str) -> Any:
    """Return a kernel, an `ENTRY`; None when there is no library, or none of this name in it."""
    library = opened()
    if library is None or not hasattr(library, name):
        return None
    entry = ENTRY((name, library))
    ctypes.c_void_p.in_dll(library, environment_of(name)).value = id(library)
    return entry


def environment_of(name: str) -> str:
    """Return the name of a kernel's pointer to an object with constants. It has none, but it must not be null."""
    return f"{name}_environment"
