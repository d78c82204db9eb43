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

import ast
import contextlib
import dis
import functools
import hashlib
import inspect
import os
import sys
import textwrap
import types
from collections.abc import Callable, Hashable
from importlib.metadata import version
from pathlib import Path
from threading import RLock
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np
from numpy import ndarray

from amqpscope.dissector.kernels.state import Matrix

F = TypeVar("F", bound=Callable[..., Any])

_kernels: set[Callable[..., Any]] = set()
_proven: set[Callable[..., Any]] = set()
_outlined: set[Callable[..., Any]] = set()
_dispatchers: dict[Callable[..., Any], Any] = {}
"""Numba's dispatchers of the kernels that were compiled in this process."""
_ready: dict[tuple[Any, ...], Callable[..., Any]] = {}
"""Compiled kernels as `machine_code.ENTRY`, by function and the types of its arguments."""
_not_kept: set[tuple[Any, ...]] = set()
"""Keys of compiled kernels whose machine code could not be taken: numba runs them, in this process alone."""
_compiling = RLock()

FLAGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False, "forceinline": True}
"""How numba compiles kernels. They allocate nothing: without `_nrt`, references to arrays are not counted. A call
passes every array as seven words on the stack, and every matrix as nine; inlining avoids most of that."""
FORMAT = 2
"""Raised by one when kernels are compiled, called or cached in another way: this invalidates the cache."""
INDEX = "__unsigned"
"""Name of the function that makes an index of a compiled kernel unsigned."""

C_ORDER, F_ORDER = 0x1, 0x2
OF_TYPES = C_ORDER | F_ORDER | 0x100 | 0x400
"""Flags by which the types of arrays differ: order, aligned, writeable (numpy's `NPY_ARRAY_*`)."""

COMPILE_ABOVE = 1 << 18
"""Bytes of input above which loading cached compiled kernels (0.1 s) pays."""
COMPILE_COLD_ABOVE = 8 << 20
"""Bytes of input above which compiling kernels for the first time (most of a minute) pays."""


def kernel(function: F) -> F:
    """Register a plain function as a kernel and return it unchanged."""
    _kernels.add(function)
    return function


def proven(function: F) -> F:
    """Register a kernel that is compiled without bounds checks: its caller has shown that accesses are in bounds."""
    _proven.add(function)
    return kernel(function)


def called(function: F) -> F:
    """Register a kernel that is not inlined: a long one that few rows need is compiled only once."""
    _outlined.add(function)
    return kernel(function)


def u64(value: int) -> int:
    """Return an integer as uint64: compiled, as numpy's type, because numba converts int64 with uint64 to float64."""
    return value & 0xFFFFFFFFFFFFFFFF


def i64(value: int) -> int:
    """Return an integer as int64: compiled, a byte from an array is uint8, and its sums are uint64."""
    return value


def call(function: Callable[..., Any], compiled: bool, *arguments: Any) -> Any:
    """Run a kernel, compiled or interpreted, over numpy arrays and integers."""
    if compiled:
        key = (
            function,
            *[(a.dtype, a.ndim, a.flags.num & OF_TYPES) if a.__class__ is ndarray else _kind(a) for a in arguments],
        )
        ready = _ready.get(key) or _made_ready(key, arguments)
        return ready(None, arguments, None)
    return function(*[_view(a) for a in arguments])


def _view(argument: Any) -> Any:
    if isinstance(argument, tuple):
        views = map(_view, argument)
        return argument._make(views) if hasattr(argument, "_make") else tuple(views)
    return argument.data if isinstance(argument, np.ndarray) else argument


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
    return size >= COMPILE_COLD_ABOVE or (size >= COMPILE_ABOVE and is_cached(folder))


def is_cached(folder: Path | None = None) -> bool:
    """Return whether an earlier, complete run cached its compiled kernels, also those of the modules in a folder."""
    return _exists(_marker(folder))


def note_run(folder: Path | None = None) -> None:
    """Note that a run with compiled kernels is complete: all that such runs need is cached."""
    if _ready and not _not_kept and not is_cached(folder):
        _note(_marker(folder), b"")


def _made_ready(key: tuple[Any, ...], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the kernel, compiled with the kernels that it calls; load it from the cache if possible."""
    with _compiling:
        if key not in _ready:
            ready = None
            for made in (_from_cache, _to_cache):
                # This uses more of numba and LLVM than they document. If anything fails, numba itself calls the kernel.
                with contextlib.suppress(Exception):
                    ready = ready or made(key[0], arguments)
            if ready is None:
                _not_kept.add(key)
            _ready[key] = ready or _called_by_numba(key[0])
        return _ready[key]


def _from_cache(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    from amqpscope.dissector.kernels.machine_code import Code  # noqa: PLC0415 - interpreted kernels do not need it

    code = Code.read(_noted(_file(function, arguments)))
    return code and code.load()


def _to_cache(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    from amqpscope.dissector.kernels.machine_code import Code  # noqa: PLC0415

    dispatcher = _dispatcher(function)
    signature = tuple(dispatcher.typeof_pyval(argument) for argument in arguments)
    dispatcher.compile(signature)
    code = Code.of(dispatcher.overloads[signature])
    if ready := code.load():
        _note(_file(function, arguments), code.written())
    return ready


def _called_by_numba(function: Callable[..., Any]) -> Callable[..., Any]:
    dispatcher = _dispatcher(function)
    if isinstance(dispatcher, types.FunctionType):  # NUMBA_DISABLE_JIT: numba compiles nothing
        return lambda _, arguments, __: call(function, False, *arguments)
    return lambda _, arguments, __: dispatcher(*arguments)


def _file(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Path:
    """Return the file of the machine code for arguments of these types."""
    from amqpscope.dissector.kernels.machine_code import host  # noqa: PLC0415

    name = hashlib.sha256(f"{_kind(arguments)} {host()}".encode()).hexdigest()[:16]
    return cache_folder() / _digest(function) / f"{function.__name__}.{name}"


def _dispatcher(function: Callable[..., Any]) -> Any:
    """Return numba's dispatcher of a kernel, which compiles it for the types of its arguments.

    Bounds checks are on, because bytes from the wire determine many indexes; they are off for `proven` kernels.
    """
    if function not in _dispatchers:
        import numba  # noqa: PLC0415 - takes a quarter of a second, which cached kernels save

        namespace = _Namespace(function.__globals__)
        namespace[INDEX] = np.uint64
        code = _rewritten(function)
        copy = types.FunctionType(code, namespace, function.__name__, function.__defaults__)
        copy.__module__ = function.__module__
        copy.__qualname__ = function.__qualname__
        _dispatchers[function] = numba.njit(
            boundscheck=function not in _proven, **(FLAGS | {"forceinline": function not in _outlined})
        )(copy)
    return _dispatchers[function]


class _Namespace(dict[str, Any]):
    """Return the global names of a kernel, as its compiled form sees them.

    Kernels among them are made when numba asks for them.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__(names)
        self.kernels = {name: value for name, value in names.items() if _is_kernel(value)}
        for name, module in names.items():
            if isinstance(module, types.ModuleType):
                self.kernels |= {_joined(name, n): v for n, v in vars(module).items() if _is_kernel(v)}
        for name, value in names.items():
            if name in self.kernels:
                del self[name]
            elif value is u64 or value is i64:
                self[name] = np.uint64 if value is u64 else np.int64

    def __missing__(self, name: str) -> Any:
        self[name] = _dispatcher(self.kernels[name])
        return self[name]


def _is_kernel(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and value in _kernels


def _exists(file: Path) -> bool:
    """Return whether a file exists; files in a folder of another user do not count."""
    try:
        return file.exists()
    except OSError:
        return False


def _noted(file: Path) -> bytes:
    """Return the content of a file; nothing when it cannot be read."""
    with contextlib.suppress(OSError):
        return file.read_bytes()
    return b""


def _note(file: Path, data: bytes) -> None:
    """Write a file; when that fails, nothing is cached."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        own = file.with_suffix(f".{os.getpid()}")
        own.write_bytes(data)
        own.replace(file)


@functools.cache
def _digest(function: Callable[..., Any]) -> str:
    """Return a digest of all that a kernel is compiled from: its code, its constants, the kernels it calls."""
    code = function.__code__
    digest = hashlib.sha256(
        repr(
            (
                FORMAT,
                INDEX,
                FLAGS,
                function in _proven,
                function in _outlined,
                code.co_code,
                code.co_consts,
                code.co_varnames,
                code.co_names,
            )
        ).encode()
    )
    # Not names of attributes: a kernel may call `module.name` where its own module has another kernel of that name.
    for name in dict.fromkeys(each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"):
        value = function.__globals__.get(name)
        part = repr(value)
        if isinstance(value, types.FunctionType):
            part = _digest(value) if value in _kernels else value.__name__
        elif _is_declaration(value):
            part = value.layout()
        elif isinstance(value, types.ModuleType):  # its constants and kernels
            found = [(n, getattr(value, n, None)) for n in code.co_names]
            part = repr([(n, _digest(v) if _is_kernel(v) else v) for n, v in found if _is_kernel(v) or _is_constant(v)])
        digest.update(f"{name} {part} ".encode())
    return digest.hexdigest()[:16]


def _is_declaration(value: Any) -> TypeGuard[type[Matrix]]:
    return isinstance(value, type) and issubclass(value, Matrix)


def _is_constant(value: Any) -> bool:
    return isinstance(value, int | tuple)


def _joined(module: str, name: str) -> str:
    """Return the name by which a compiled kernel finds another one that its source calls as `module.name`."""
    return f"{module}__{name}"


class _Rewriter(ast.NodeTransformer):
    """Make all indexes unsigned; turn names of columns into numbers, and `module.kernel` into plain names."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        of = node.value.id if isinstance(node.value, ast.Name) else ""
        owner = self.names.get(of)
        if _is_declaration(owner):
            return ast.Constant(getattr(owner, node.attr))
        if isinstance(owner, types.ModuleType) and _is_kernel(getattr(owner, node.attr, None)):
            return ast.Name(_joined(of, node.attr), ast.Load())
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        made = [p if isinstance(p, ast.Constant) else _called(INDEX, p) for p in parts]
        node.slice = ast.Tuple(made, ast.Load()) if isinstance(node.slice, ast.Tuple) else made[0]
        return node


def _called(name: str, argument: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def _rewritten(function: Callable[..., Any]) -> types.CodeType:
    """Return the code of a kernel for numba, made from its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    for argument in definition.args.args:
        argument.annotation = None
    definition.returns = None
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    made = ast.fix_missing_locations(_Rewriter(function.__globals__).visit(tree))
    module = compile(made, function.__code__.co_filename, "exec")
    return next(code for code in module.co_consts if isinstance(code, types.CodeType))


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
    for file in sorted(Path(__file__).parents[1].rglob("*.py")) + (sorted(folder.glob("*.py")) if folder else []):
        digest.update(file.read_bytes())
    return cache_folder() / f"{digest.hexdigest()[:16]}.compiled"
