"""Which column a field goes to: names, types, and what happens when a name is taken.

Columns follow the wire names with `_` for `-`, except `nowait`, which is `no_wait` as elsewhere in the protocol.
Fields of one name share a column when their column types agree; otherwise the later one goes to `name_type`, with its
wire type.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from amqpscope.spec.model import COMMAND_HEADER, Class, ColumnType, Field, Method, Protocol, Struct

BASE_TYPES = frozenset(
    [
        "bit", "octet", "short", "long", "longlong", "shortstr", "longstr", "timestamp", "table",
        "content", "uuid", "rfc1982-long-set",
    ]
)  # fmt: skip
"""Wire types of AMQP 0-8 to 0-9-1; the last three are in documents of 0-9 and the transitional 0-10 alone."""

_COLUMN_TYPES: dict[str, ColumnType] = {
    "bit": "bool",
    "octet": "int32",
    "short": "int32",
    "long": "int64",
    "longlong": "int64",
    "timestamp": "int64",
    "shortstr": "string",
    "longstr": "string",
    "table": "string",
    "content": "int64",  # its size: bodies are not for the tables of frames
    # AMQP 0-10 and its transitional draft; bytes are text, and maps, lists, sets and structs JSON text.
    "boolean": "bool",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "int32": "int64",
    "uint32": "int64",
    "int64": "int64",
    "uint64": "int64",
    "sequence-no": "int64",
    "datetime": "int64",
}


def field_name(wire_name: str) -> str:
    """Return the name of a field with underscores: `delivery-tag` is `delivery_tag`, `nowait` is `no_wait`."""
    return "no_wait" if wire_name == "nowait" else wire_name.replace("-", "_")


def column_type(wire_type: str) -> ColumnType:
    """Return the column type for a wire type; `string` (text or JSON text) for all that is not listed."""
    return _COLUMN_TYPES.get(wire_type, "string")


def assign(
    protocol: Protocol,
    taken: Mapping[str, ColumnType] | None = None,
    avoid: Collection[str] = (),
    properties_taken: Mapping[str, ColumnType] | None = None,
) -> Protocol:
    """Return the protocol with a column for each field that is not reserved; of structs, for those that headers hold.

    Args:
        protocol: a protocol whose fields have no columns yet, or others.
        taken: columns of method arguments that are there already, with their types.
        avoid: columns with another meaning in the same table; a field of that name goes to `name_type`.
        properties_taken: columns of content properties that are there already.
    """
    columns = dict(taken or {})
    command_header = _place(protocol.command_header, columns, avoid)
    replaced: dict[int, Method] = {}
    for method in protocol.methods:
        fields = _place(method.fields, columns, avoid)
        replaced[id(method)] = dataclasses.replace(method, fields=fields)
    properties = dict(properties_taken or {})
    classes: list[Class] = []
    for cls in protocol.classes:
        methods = tuple(replaced[id(m)] for m in cls.methods)
        classes.append(dataclasses.replace(cls, methods=methods, fields=_place(cls.fields, properties, ())))
    entries = {name for method in protocol.methods for name in method.entries}
    structs: list[Struct] = []
    for struct in protocol.structs:
        fields = struct.fields
        if struct.name == COMMAND_HEADER:
            fields = command_header
        elif struct.name in entries:
            fields = _place(fields, properties, ())
        structs.append(dataclasses.replace(struct, fields=fields))
    return dataclasses.replace(protocol, classes=tuple(classes), structs=tuple(structs))


def _place(fields: Iterable[Field], columns: dict[str, ColumnType], avoid: Collection[str]) -> tuple[Field, ...]:
    placed = []
    for item in fields:
        name: str | None = None
        kind = column_type(item.type)
        if not item.reserved:
            name = item.property_column or item.name
            while name in avoid or columns.get(name, kind) != kind:
                name = f"{name}_{field_name(item.type)}"
            columns[name] = kind
        placed.append(dataclasses.replace(item, column=name, column_type=kind))
    return tuple(placed)
