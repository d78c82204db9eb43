"""Kernels: plain functions over arrays that run interpreted or compiled.

A kernel is an ordinary function over numpy arrays and integers. Decorating it with `kernel` only
registers it. `call` runs it, compiled by numba or as it stands: interpreted, every array is handed in as a
`memoryview`, so that items are Python integers and small inputs need neither numba nor compilation.

What a kernel may do is the common part of both worlds: index arrays with one integer, or with a tuple of
two integers; integer arithmetic that stays within int64 (or, for hashes, uint64 masked to 64 bits); calls of
other kernels by their global name; no slices, no numpy functions, no exceptions, no floats.
"""

import functools
import hashlib
import os
import sys
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_kernels: set[Callable[..., Any]] = set()
_proven: set[Callable[..., Any]] = set()
_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
_compiling = RLock()

COMPILE_ABOVE = 1 << 18
"""Input of this many octets is worth loading compiled kernels, where they are cached (0.5 to 1 s)."""
COMPILE_COLD_ABOVE = 8 << 20
"""Input of this many octets is worth compiling kernels for the first time (half a minute)."""


def kernel(function: F) -> F:
    """Register a plain function as a kernel and return it unchanged."""
    _kernels.add(function)
    return function


def proven(function: F) -> F:
    """Register a kernel that is compiled without bounds checks: its caller has shown that all reads are in bounds."""
    _proven.add(function)
    return kernel(function)


def u64(value: int) -> int:
    """An integer as uint64; compiled it is numpy's type, for numba takes int64 with uint64 to float64."""
    return value & 0xFFFFFFFFFFFFFFFF


def i64(value: int) -> int:
    """An integer as int64; compiled, an octet out of an array is uint8, and its sums uint64."""
    return value


def call(function: Callable[..., Any], compiled: bool, *arguments: Any) -> Any:
    """Run a kernel, compiled or interpreted, over numpy arrays and integers."""
    if compiled:
        ready = compile_kernel(function)
        for _ in _kernels:
            try:
                return ready(*arguments)
            except OSError:  # a cache that cannot be written, as on a full disk: what was compiled stays in memory
                continue
        return ready(*arguments)
    return function(*[a.data if isinstance(a, np.ndarray) else a for a in arguments])


def worthwhile(octets: int | None) -> bool:
    """Whether input of this size (None: nobody knows) is to be read with compiled kernels."""
    if octets is None:
        return is_cached()  # a pipe may bring a few packets only: nothing is compiled for it
    return octets >= COMPILE_COLD_ABOVE or (octets >= COMPILE_ABOVE and is_cached())


def is_cached() -> bool:
    """Whether kernels were compiled here before."""
    return any(cache_folder().glob("**/*.nbi"))


def compile_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel compiled by numba, with the kernels that it calls; loaded from the cache where it can be.

    Bounds checks are on, for bytes from the wire choose many of the indexes; `proven` kernels do without.
    """
    ready = _compiled.get(function)
    if ready is None:
        with _compiling:
            ready = _compiled.get(function) or _compile(function)
            _compiled[function] = ready
    return ready


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba  # noqa: PLC0415 - half a second that small inputs do not pay

    namespace = dict(function.__globals__)
    for name in function.__code__.co_names:
        value = namespace.get(name)
        if isinstance(value, types.FunctionType) and value in _kernels:
            namespace[name] = compile_kernel(value)
        elif value is u64 or value is i64:
            namespace[name] = np.uint64 if value is u64 else np.int64
    copy = types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    # A cache entry of numba knows only its own file; kernels call each other across files, so the
    # folder's name carries a digest of them all.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_folder())
    try:
        # Kernels allocate nothing; without _nrt numba does not count references of every array handed on.
        flags: dict[str, Any] = {"boundscheck": function not in _proven, "error_model": "numpy", "_nrt": False}
        return numba.njit(cache=True, nogil=True, **flags)(copy)
    finally:
        numba.config.CACHE_DIR = before


@functools.cache
def cache_folder() -> Path:
    """Where numba keeps what it compiled; another folder whenever a kernel has changed."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    base = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(home) / "amqpscope")
    digest = hashlib.sha256(f"{version('numba')} {sys.version} {__file__}".encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return base / digest.hexdigest()[:16]
