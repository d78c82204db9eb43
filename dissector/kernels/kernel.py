"""Kernels: plain functions over arrays that run interpreted or compiled.

A kernel is an ordinary function over numpy arrays and integers. Decorating it with `kernel` only
registers it. `call` runs it, compiled by numba or interpreted: an interpreted kernel gets every array as a
`memoryview`, so that items are Python integers and small inputs need neither numba nor compilation.

A kernel may do what works both ways: index arrays with one integer, or with a tuple of
two integers, columns by the names that `state` gives them; integer arithmetic that stays within int64 (or, for hashes,
uint64 masked to 64 bits); calls of other kernels by their global name, or as `module.kernel`; no slices, no numpy
functions, no exceptions, no floats. Arrays that belong together are one argument, a NamedTuple.

No index is negative. In a compiled kernel, all indexes are unsigned: numba checks for each signed one whether it counts
from the end, which also keeps the compiler from combining accesses.
"""

import contextlib
import dis
import functools
import hashlib
import os
import sys
import types
import warnings
from collections.abc import Callable, Hashable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any, cast

import numpy as np
from numpy import ndarray

from amqpscope.dissector.kernels.declared import (
    FLAGS,
    F,
    i64,
    interpreted,
    is_declaration,
    is_kernel,
    is_proven,
    kernel,
    proven,
    source,
    u64,
)

__all__ = ["call", "i64", "kernel", "proven", "specialize", "u64"]

_ready: dict[tuple[Any, ...], Callable[..., Any]] = {}
"""Compiled kernels as `machine_code.ENTRY`, by function and the types of its arguments."""
_not_kept: set[tuple[Any, ...]] = set()
"""Keys of compiled kernels whose machine code could not be taken: numba runs them, in this process alone."""
_count = 0
"""Kernels that were compiled in this process."""
_compiling = RLock()

FORMAT = 4
"""Raised by one when kernels are compiled, called or cached in another way: this invalidates the cache."""

C_ORDER, F_ORDER = 0x1, 0x2
OF_TYPES = C_ORDER | F_ORDER | 0x100 | 0x400
"""Flags by which the types of arrays differ: order, aligned, writeable (numpy's `NPY_ARRAY_*`)."""

COMPILE_ABOVE = 1 << 18
"""Bytes of input above which loading cached compiled kernels (0.1 s) pays."""
COMPILE_COLD_ABOVE = 8 << 20
"""Bytes of input above which compiling kernels for the first time (about a minute) pays."""
COMPILING = "compiling kernels that this input needs, once; a wheel of `make wheel` never does"
"""What is reported while they compile."""


def call(function: Callable[..., Any], compiled: bool, *arguments: Any) -> Any:
    """Run a kernel, compiled or interpreted, over numpy arrays and integers."""
    if compiled:
        key = (
            function,
            *[(a.dtype, a.ndim, a.flags.num & OF_TYPES) if a.__class__ is ndarray else _kind(a) for a in arguments],
        )
        ready = _ready.get(key) or _made_ready(key, arguments)
        return ready(None, arguments, None)
    return interpreted(function, arguments)


def _kind(argument: Any) -> Hashable:
    """Return what distinguishes the types of kernel arguments for numba."""
    if isinstance(argument, np.ndarray):
        flags = argument.flags.num & OF_TYPES
        return argument.dtype, argument.ndim, flags & ~F_ORDER if flags & C_ORDER else flags
    if isinstance(argument, tuple):
        return getattr(argument, "_fields", ()), *map(_kind, argument)
    return argument.bit_length() < 64 if argument.__class__ is int else argument.__class__


def specialize(template: F, **parts: Any) -> F:
    """Return a kernel in which some global names stand for other kernels or constants."""
    scope = template.__globals__ | parts
    return kernel(cast(F, types.FunctionType(template.__code__, scope, template.__name__, template.__defaults__)))


def worthwhile(size: int | None, folder: Path | None = None) -> bool:
    """Return whether compiled kernels, also those of a folder, pay for input of this size (None: unknown)."""
    if size is None:
        return is_cached(folder)  # a pipe may bring a few packets only: nothing is compiled for it
    return (size >= COMPILE_ABOVE and is_cached(folder)) or (size >= COMPILE_COLD_ABOVE and can_compile())


def is_cached(folder: Path | None = None) -> bool:
    """Return whether compiled kernels are there, also those of the modules in a folder.

    They came with the package, or an earlier, complete run cached them.
    """
    return _are_packaged() or (can_compile() and _exists(_marker(folder)))


def can_compile() -> bool:
    """Return whether the compiler is installed, which cached kernels need as well."""
    return find_spec("numba") is not None


def _are_packaged() -> bool:
    from amqpscope.dissector.kernels import library  # noqa: PLC0415 - interpreted kernels do not need it

    return library.opened() is not None


def note_run(folder: Path | None = None) -> None:
    """Note that a run with compiled kernels is complete: all that such runs need is cached."""
    if _ready and not _not_kept and not is_cached(folder):
        note_complete(folder)


def note_complete(folder: Path | None = None) -> None:
    """Note that all kernels are cached that runs need, also those of the modules in a folder."""
    keep(_marker(folder), b"")


def _made_ready(key: tuple[Any, ...], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the kernel, compiled with those that it calls: from the package, from the cache, or by the compiler."""
    with _compiling:
        if key not in _ready:
            _ready[key] = _from_package(key[0], arguments) or _from_cache(key[0], arguments) or _made(key, arguments)
        return _ready[key]


def _from_package(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    from amqpscope.dissector.kernels import library  # noqa: PLC0415

    return library.load(symbol(function, arguments))


def _from_cache(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    with contextlib.suppress(Exception):  # llvmlite is not installed, or works otherwise: the compiler reports that
        from amqpscope.dissector.kernels.machine_code import Code, host  # noqa: PLC0415

        code = Code.read(kept(file_of(function, arguments, host())))
        return code and code.load()
    return None


def _made(key: tuple[Any, ...], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """Return a kernel as the compiler makes it, and cache it.

    This uses more of numba and LLVM than they document. If it fails, numba itself compiles and calls the kernel, in
    this process alone; without numba, it is interpreted.
    """
    function = key[0]
    try:
        from amqpscope.dissector.kernels import compiling  # noqa: PLC0415
        from amqpscope.dissector.kernels.machine_code import host  # noqa: PLC0415
    except ImportError as error:
        _fall_back(key, f"{error}; the kernel is interpreted")
        return lambda _, arguments, __: interpreted(function, arguments)
    if compiling.IS_OFF:
        return compiling.called_by_numba(function)
    try:
        with _announced(function.__name__):
            (code,) = compiling.compiled(function, arguments, symbol(function, arguments), [host()])
        if ready := code.load():
            keep(file_of(function, arguments, host()), code.written())
            return ready
        reason = "its machine code cannot be loaded"
    except Exception as error:
        reason = repr(error)
    _fall_back(key, f"{reason}; numba calls it, and compiles it in each process")
    return compiling.called_by_numba(function)


class FallbackWarning(RuntimeWarning):
    """A kernel runs slower than it should, or is compiled in each process."""


def _fall_back(key: tuple[Any, ...], reason: str) -> None:
    _not_kept.add(key)
    warnings.warn(f"kernel {key[0].__name__}: {reason}", FallbackWarning, stacklevel=2)


@contextlib.contextmanager
def _announced(name: str) -> Iterator[None]:
    """Tell on standard error that a kernel is compiled, so that nobody waits without knowing why."""
    global _count  # noqa: PLW0603
    _count += 1
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if is_terminal:
        sys.stderr.write(f"\r\033[Kamqpscope: {COMPILING}: {_count}, {name} ")
        sys.stderr.flush()
    elif _count == 1 and sys.stderr is not None:
        sys.stderr.write(f"amqpscope: {COMPILING} (a few minutes at most)\n")
    try:
        yield
    finally:
        if is_terminal:
            sys.stderr.write("\r\033[K")


def symbol(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Return the name of a compiled kernel, which depends on its source and the types of its arguments."""
    return f"{function.__name__}_{_digest(function)}_{_types(arguments)}"


def file_of(function: Callable[..., Any], arguments: tuple[Any, ...], processor: object) -> Path:
    """Return the file of the machine code for arguments of these types."""
    name = hashlib.sha256(f"{_types(arguments)} {processor}".encode()).hexdigest()[:16]
    return cache_folder() / _digest(function) / f"{function.__name__}.{name}"


def _types(arguments: tuple[Any, ...]) -> str:
    return hashlib.sha256(str(_kind(arguments)).encode()).hexdigest()[:16]


def _exists(file: Path) -> bool:
    """Return whether a file exists; files in a folder of another user do not count."""
    try:
        return file.exists()
    except OSError:
        return False


def kept(file: Path) -> bytes:
    """Return the content of a file; nothing when it cannot be read."""
    with contextlib.suppress(OSError):
        return file.read_bytes()
    return b""


def keep(file: Path, data: bytes) -> None:
    """Write a file; when that fails, nothing is cached."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        own = file.with_suffix(f".{os.getpid()}")
        own.write_bytes(data)
        own.replace(file)


@functools.cache
def _digest(function: Callable[..., Any]) -> str:
    """Return a digest of all that a kernel is compiled from: its code, its constants, the kernels it calls."""
    function = source(function)
    code = function.__code__
    digest = hashlib.sha256(
        repr(
            (
                FORMAT,
                FLAGS,
                is_proven(function),
                code.co_code,
                code.co_consts,
                code.co_varnames,
                code.co_names,
            )
        ).encode()
    )
    # Not names of attributes: a kernel may call `module.name` where its own module has another kernel of that name.
    for name in dict.fromkeys(_globals(code)):
        value = function.__globals__.get(name)
        part = repr(value)
        if isinstance(value, types.ModuleType):  # its constants, declarations and kernels
            part = repr([(n, _named(getattr(value, n, None))) for n in code.co_names])
        elif is_kernel(value) or is_declaration(value):
            part = _named(value)
        elif isinstance(value, types.FunctionType):
            part = value.__name__
        digest.update(f"{name} {part} ".encode())
    return digest.hexdigest()[:16]


def _globals(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals that code loads, in its order: `dis` takes five times as long, at each start."""
    extended = 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        if operation == dis.opmap["LOAD_GLOBAL"]:
            yield code.co_names[(extended | argument) >> 1]
        extended = (extended | argument) << 8 if operation == dis.EXTENDED_ARG else 0


def _named(value: Any) -> Any:
    """Return what a digest has of a kernel, a declaration or a constant of a module; None for anything else."""
    if is_kernel(value):
        return _digest(value)
    if is_declaration(value):
        return value.layout()
    return value if isinstance(value, int | tuple) else None


@functools.cache
def cache_folder() -> Path:
    """Return the cache folder for this numba and Python; without a home, a path that cannot exist."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        home = Path(os.devnull)
    base = Path(os.environ.get("NUMBA_CACHE_DIR") or home / "amqpscope")
    return base / hashlib.sha256(f"{version('numba')} {sys.version}".encode()).hexdigest()[:16]


@functools.cache
def _marker(folder: Path | None = None) -> Path:
    """Return the file that marks a complete run with kernels of this release, also those of a folder."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")) + (sorted(folder.rglob("*.py")) if folder else []):
        digest.update(file.read_bytes())
    return cache_folder() / f"{digest.hexdigest()[:16]}.compiled"
