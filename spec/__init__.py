"""The protocols as data: classes, methods, fields, codes, tables and their columns.

    from amqpscope import spec

    protocol = spec.load("amqp-0-9-1")
    protocol.method("basic.publish").fields
    protocol.by_id(60, 40).full_name
    spec.tables()["messages"].columns
    spec.anomalies()["frame-cut"].severity

A user's own document in the AMQP XML format is read by `load_xml` and laid over ours by `overlay`. Nothing is read
before it is asked for.
"""

from amqpscope.spec.data import anomalies, load, names, tables
from amqpscope.spec.model import (
    Anomaly,
    Choice,
    Class,
    Column,
    ColumnType,
    Constant,
    Domain,
    Field,
    Header,
    Method,
    Protocol,
    Severity,
    SpecError,
    Struct,
    Table,
    WireType,
)
from amqpscope.spec.user import base_of, left_out, load_xml, overlay

__all__ = [
    "Anomaly",
    "Choice",
    "Class",
    "Column",
    "ColumnType",
    "Constant",
    "Domain",
    "Field",
    "Header",
    "Method",
    "Protocol",
    "Severity",
    "SpecError",
    "Struct",
    "Table",
    "WireType",
    "anomalies",
    "base_of",
    "left_out",
    "load",
    "load_xml",
    "names",
    "overlay",
    "tables",
]
