"""How a process is set up that does nothing but dissect and write."""

import ctypes
import gc
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder

COLLECT_AT = 100_000
"""Objects made between two passes of the garbage collector: cycles are rare, and each pass takes 40 ms."""
ALLOCATOR = "ARROW_DEFAULT_MEMORY_POOL", "system"
"""Read by Arrow when it is loaded. One thread allocates rows and another frees them: Arrow's own allocator keeps what
is free in heaps of each thread (80 MB of 850 in `analyze`), and giving that back after each step takes a tenth of the
time."""

MALLOC = {-8: 1, -3: 2 << 20, -1: 32 << 20}
"""Options of glibc's `mallopt`: heaps, bytes from which on memory is mapped, and those that may be free at the end. One
thread allocates rows and another frees them, so that heaps of threads fill with what nobody uses: 60 MB of 800."""


def settle(without_pandas: bool = False) -> None:
    """Set this process up: collect garbage seldom, and let Arrow use the allocator of the system.

    That returns memory which Arrow's own retains: statistics of the tables of 250 MB of capture take 680 MB at the
    peak, not 1,230.

    Args:
        without_pandas: keep pyarrow from importing pandas, which takes 0.2 s: for processes that are ours alone.
    """
    import pyarrow as pa  # noqa: PLC0415 - not every command needs it

    gc.set_threshold(COLLECT_AT)
    if without_pandas and "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            pa.array([0])  # pyarrow tries the import once, when it makes its first array
        finally:
            sys.meta_path.remove(finder)
    pa.set_memory_pool(pa.system_memory_pool())
    _return_memory()


def _return_memory() -> None:
    """Have the allocator of the system share one heap among threads, and take large pieces from the system."""
    with suppress(AttributeError, OSError):  # where it is not glibc's
        change = ctypes.CDLL(None).mallopt
        for option, value in MALLOC.items():
            change(option, value)


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Report pandas as missing, and find nothing."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)
