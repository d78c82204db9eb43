"""Describe the JSON that commands print, as JSON Schema (draft 2020-12), from the declarations of the columns.

The number of a version changes when a key is renamed or removed, or its values change; keys may be added. Numbers that
readers of JSON would round are text (see `amqpscope.dissector.formatting.exact`).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from amqpscope import spec
from amqpscope.dissector.formatting import is_text
from amqpscope.dissector.handshakes.listing import COLUMNS, VERSION
from amqpscope.spec.handshakes import SEVERITIES
from amqpscope.spec.model import Column, Table

Schema = dict[str, Any]
WHOLE = {"type": "string", "pattern": r"^-?\d+$"}
"""A whole number as text."""
TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(Z|[+-]\d\d:\d\d(:\d\d)?)$"}
TYPES: dict[str, Schema] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "timestamp": TIME,
    "int32": {"type": "integer"},
    "int64": {"anyOf": [{"type": "integer", "minimum": -(1 << 53), "maximum": 1 << 53}, WHOLE]},
}
ALWAYS = [
    "ts", "sender", "receiver", "connection_id", "frame_no", "capture", "packet", "ts_ns", "from_client", "size",
    "is_partial", "missing",
]  # fmt: skip
"""Keys that every frame has."""


def text(name: str) -> str:
    """Return the schema of this name in `SCHEMAS` as JSON."""
    return json.dumps(SCHEMAS[name](), ensure_ascii=False, indent=1) + "\n"


def frames() -> Schema:
    """Return the schema of one line of `frames --format json`; columns that are null are left out."""
    tables = [table for table in spec.tables().values() if table.name.endswith("_frames")]
    return _document("frames", "A frame, as `amqpscope frames --format json` prints it on one line.") | {
        "anyOf": [_frame(table) for table in tables]
    }


def handshakes() -> Schema:
    """Return the schema of what `handshakes --format json` prints."""
    declared = {column.name: _nullable(_column(column)) for column in spec.tables()["connections"].columns}
    text: Schema = {"type": "string"}
    common: Schema = {
        "severity": {"enum": list(SEVERITIES)},
        "code": {"type": "string", "description": "A code; `amqpscope spec CODE` describes it."},
        "summary": text,
        "first": TIME,
        "last": TIME,
    }
    connection = {name: declared[name] for name in COLUMNS if name != "handshake_facts"} | common
    connection |= {"client": text, "server": text, "meaning": text, "remedy": text}
    connection["slow_side"] = {"enum": ["client", "server", None]}
    for name in ("client_properties", "server_properties"):
        connection[name] = {"type": ["object", "string", "null"]}
    for name, items in LISTED.items():
        connection[name] = {"type": ["array", "null"], "items": items, "description": declared[name]["description"]}
    names = ("client_ip", "server_ip", "server_port", "vhost", "user", "first_ts_ns", "last_ts_ns")
    group = {name: declared[name] for name in names} | common
    group |= {"text": text, "connections": TYPES["int32"], "clients": TYPES["int32"]}
    group["every_ns"] = _nullable(TYPES["int64"])
    return _document("handshakes", "What `amqpscope handshakes --format json` prints: worst first.") | _object(
        {
            "version": {"const": VERSION},
            "groups": {"type": "array", "items": _object(group)},
            "connections": {"type": "array", "items": _object(connection)},
        }
    )


SCHEMAS: Mapping[str, Callable[[], Schema]] = {"frames": frames, "handshakes": handshakes}


def _document(name: str, words: str) -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:amqpscope:{name}:{VERSION}",
        "title": f"amqpscope {name}, version {VERSION}",
        "description": words,
    }


def _frame(table: Table) -> Schema:
    whole = table.with_methods(spec.load(table.methods_of)) if table.methods_of else table
    columns = {column.name: _column(column) for column in whole.columns}
    columns |= {"sender": {"type": "string"}, "receiver": {"type": "string"}}
    return {"title": table.name, "description": table.doc} | _object(columns) | {"required": ALWAYS}


def _column(column: Column) -> Schema:
    unit = f" Unit: {column.unit}." if column.unit and column.unit not in column.doc else ""
    return (WHOLE if is_text(column.name) else TYPES[column.type]) | {"description": column.doc + unit}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _nullable(schema: Schema) -> Schema:
    words = {name: schema[name] for name in ("description",) if name in schema}
    bare = {name: item for name, item in schema.items() if name not in words}
    return {"anyOf": [*bare.get("anyOf", [bare]), {"type": "null"}]} | words


_PLACE = {"packet": {"type": "integer"}, "capture": {"type": "string"}}
_STEP = {"step": {"type": "string"}, "from_client": {"type": "boolean"}, "ts": TIME, "ts_ns": WHOLE}
LISTED: Mapping[str, Schema] = {
    "handshake_steps": _object(_STEP | _PLACE | {"took_ns": TYPES["int64"], "detail": {"type": "string"}})
    | {"required": [*_STEP, "packet"]},
    "handshake_evidence": _object(_PLACE) | {"required": ["packet"]},
    "handshake_notes": _object(_PLACE | {"code": {"type": "string"}, "detail": {"type": "string"}})
    | {"required": ["code"]},
}
"""Items of the columns that are lists."""
