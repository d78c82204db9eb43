"""Declare kernels: which functions are kernels, how they are compiled, and how they run interpreted."""

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, TypeVar

import numpy as np

from amqpscope.dissector.kernels.state import Matrix

F = TypeVar("F", bound=Callable[..., Any])

_kernels: set[Callable[..., Any]] = set()
_proven: set[Callable[..., Any]] = set()

FLAGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""How numba compiles kernels. They allocate nothing: without `_nrt`, references to arrays are not counted. LLVM decides
what it inlines: to force it took twice the time of compiling, and the kernels ran no faster."""


def kernel(function: F) -> F:
    """Register a plain function as a kernel and return it unchanged."""
    _kernels.add(function)
    return function


def proven(function: F) -> F:
    """Register a kernel that is compiled without bounds checks: its caller has shown that accesses are in bounds."""
    _proven.add(function)
    return kernel(function)


def interpreted_as(stand_in: F) -> Callable[[F], F]:
    """Have a function run instead of a kernel where that is interpreted: it does the same in ways no kernel may."""

    def replaced(function: F) -> F:
        functools.update_wrapper(stand_in, function)
        return kernel(stand_in)

    return replaced


def source(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel that is compiled where this one is called."""
    compiled: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return compiled


def u64(value: int) -> int:
    """Return an integer as uint64: compiled, as numpy's type, because numba converts int64 with uint64 to float64."""
    return value & 0xFFFFFFFFFFFFFFFF


def i64(value: int) -> int:
    """Return an integer as int64: compiled, a byte from an array is uint8, and its sums are uint64."""
    return value


def is_proven(function: Callable[..., Any]) -> bool:
    """Return whether a kernel is compiled without bounds checks."""
    return function in _proven


def is_kernel(value: Any) -> bool:
    """Return whether something is a kernel."""
    return isinstance(value, types.FunctionType) and value in _kernels


def is_declaration(value: Any) -> TypeGuard[type[Matrix]]:
    """Return whether something declares the columns of a matrix."""
    return isinstance(value, type) and issubclass(value, Matrix)


def interpreted(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Run a kernel interpreted: arrays become `memoryview`s, whose items are Python integers."""
    return function(*[_view(a) for a in arguments])


def _view(argument: Any) -> Any:
    if isinstance(argument, tuple):
        views = map(_view, argument)
        return argument._make(views) if hasattr(argument, "_make") else tuple(views)
    return argument.data if isinstance(argument, np.ndarray) else argument
