"""From packet captures to typed tables: reassembly, framing and field decoding of broker protocols.

`read(paths)` returns a `pyarrow.RecordBatchReader` per table; `Dissector` does the same without files.
"""

from typing import Any

__all__ = ["CaptureError", "Dissector", "Options", "read"]

_HOMES = {
    "CaptureError": "amqpscope.dissector.capture.input",
    "Dissector": "amqpscope.dissector.dissector",
    "Options": "amqpscope.dissector.dissector",
    "read": "amqpscope.dissector.reading",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `amqpscope spec` needs no Arrow."""
    if name in _HOMES:
        import importlib  # noqa: PLC0415

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
