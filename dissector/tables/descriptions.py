"""What columns mean, in the files of tables: metadata of their fields, from the specification."""

from collections.abc import Iterator

import pyarrow as pa

from amqpscope import spec

DESCRIPTION, UNIT = "description", "unit"
"""Entries of a field's metadata; a table's description stands in its schema's metadata."""


def described(name: str, schema: pa.Schema) -> pa.Schema:
    """Return a schema with descriptions of the table and its columns, as far as the specification has them.

    Args:
        name: of the table.
        schema: its columns; metadata of the schema stays.
    """
    table = spec.tables().get(name)
    if table is None:
        return schema
    whole = table.with_methods(spec.load(table.methods_of)) if table.methods_of else table
    known = {column.name: dict(_entries(column.doc, column.unit)) for column in whole.columns}
    fields = [field.with_metadata(known[field.name]) if field.name in known else field for field in schema]
    return pa.schema(fields, {**(schema.metadata or {}), DESCRIPTION: table.doc})


def _entries(doc: str, unit: str | None) -> Iterator[tuple[str, str]]:
    if doc:
        yield DESCRIPTION, doc
    if unit:
        yield UNIT, unit
