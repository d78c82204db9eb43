"""Packet captures of message brokers to frames, verdicts and typed tables.

    import amqpscope

    for frame in amqpscope.frames("trouble.pcap"):  # a dict for each frame
        print(frame["ts"], frame["sender"], frame.get("method"))
    for connection in amqpscope.handshakes("trouble.pcap"):  # a dict for each connection
        print(connection["client"], connection["code"], connection["summary"])
    messages = amqpscope.read("trouble.pcap")["messages"]  # a pyarrow.RecordBatchReader for each table
    amqpscope.dissect("captures/", "tables")  # the tables, as Parquet
    confirms = amqpscope.analyze("trouble.pcap")["confirms"]  # a pyarrow.Table for each table of statistics
    settlements = amqpscope.read_tables("stats")["settlements"]  # of a folder that `amqpscope analyze` wrote
    amqpscope.report("trouble.pcap", "report.html")  # one page about all of it
    amqpscope.spec.load("amqp-0-9-1").method("basic.publish").fields

All errors that a user can act upon derive from `Error`. What is named here is imported when it is first used.

The folders `dissector`, `pipelines`, `spec` and `dashboards` beside this file are links to those at the top of the
repository; installed, they are subpackages.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from amqpscope.errors import Error

if TYPE_CHECKING:
    from amqpscope import spec
    from amqpscope.dashboards.api import report
    from amqpscope.dissector.api import dissect, frames, handshakes
    from amqpscope.dissector.reading import read
    from amqpscope.pipelines.api import analyze, read_tables

__all__ = ["Error", "analyze", "dissect", "frames", "handshakes", "read", "read_tables", "report", "spec"]

# To offer one more name: a line here, one in `__all__`, and its import above, which is what type checkers read.
_HOMES = {
    "analyze": "amqpscope.pipelines.api:analyze",
    "dissect": "amqpscope.dissector.api:dissect",
    "frames": "amqpscope.dissector.api:frames",
    "handshakes": "amqpscope.dissector.api:handshakes",
    "read": "amqpscope.dissector.reading:read",
    "read_tables": "amqpscope.pipelines.api:read_tables",
    "report": "amqpscope.dashboards.api:report",
    "spec": "amqpscope.spec",
}
"""Where the names come from: a module and a name in it, or a module."""


if not TYPE_CHECKING:  # type checkers would take any name for one that is there

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is asked for: neither Arrow nor numba nor Spark is loaded before."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        found: Any = import_module(module)
        if attribute:
            found = getattr(found, attribute)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Names for completion: also those that were not used yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
