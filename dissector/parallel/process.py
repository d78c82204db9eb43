"""How a process is set up that does nothing but dissect and write."""

import gc

import pyarrow as pa

COLLECT_AT = 100_000
"""Objects made between two passes of the garbage collector, as in the program."""


def settle() -> None:
    """Collect garbage seldom; let Arrow use the allocator of the system, which returns what Arrow's own ones retain."""
    gc.set_threshold(COLLECT_AT)
    pa.set_memory_pool(pa.system_memory_pool())
