"""A user's own document: read from XML, laid over ours."""

import dataclasses
import os

from amqpscope.spec import columns, data
from amqpscope.spec.model import Class, Field, Method, Protocol, SpecError


def load_xml(path: str | os.PathLike[str]) -> Protocol:
    """Return a protocol from a document in the AMQP XML format: 0-8, 0-9, 0-9-1 and their variants, or 0-10.

    Raises:
        SpecError: it is not such a document, or contradicts itself; or is not there (a `FileNotFoundError` then).
        OSError: it cannot be read.
    """
    from amqpscope.spec import amqpxml  # noqa: PLC0415 - most programs never read XML

    return columns.assign(amqpxml.read(path))


def overlay(base: Protocol, user: Protocol) -> Protocol:
    """Merge a user's document into the base protocol: methods of the same ids replace, others are added.

    Columns of the base keep their names and types. A user's field whose column type differs from that of the same name,
    or whose name means something else in the table of frames, goes to `name_type`. Of a method that both have under one
    name, what the user's document leaves unsaid (answers, senders, words, what is secret) stays as in the base.
    Methods that `left_out` names are not taken over.

    Raises:
        SpecError: the document is of a protocol with another framing.
    """
    avoid = [c.name for t in data.tables().values() if t.methods_of == base.name for c in t.columns]
    unusable = left_out(user)
    usable = tuple(
        dataclasses.replace(c, methods=tuple(m for m in c.methods if m not in unusable)) for c in user.classes
    )
    if not any(c.methods for c in usable) or not all(_decodable(c.fields) for c in usable):
        raise SpecError(
            f"{user.provenance[0]}: {user.name} cannot be laid over {base.name}; give a document of 0-8 to 0-9-1"
        )
    user = columns.assign(dataclasses.replace(user, classes=usable), taken=base.method_columns(), avoid=avoid)
    added = {c.id: c for c in user.classes}
    classes = [_merge_class(c, added.pop(c.id)) if c.id in added else c for c in base.classes]
    constants = {c.name: c for c in base.constants} | {c.name: c for c in user.constants}
    domains = {d.name: d for d in base.domains} | {d.name: d for d in user.domains}
    return dataclasses.replace(
        base,
        title=f"{base.title}, with {user.title} laid over it",
        provenance=base.provenance + user.provenance,
        constants=tuple(constants.values()),
        domains=tuple(domains.values()),
        classes=tuple(classes) + tuple(added.values()),
    )


def left_out(user: Protocol) -> tuple[Method, ...]:
    """Return the methods that `overlay` cannot use: their fields have types of other protocols."""
    return tuple(m for m in user.methods if m.kind != "method" or not _decodable(m.fields))


def _decodable(fields: tuple[Field, ...]) -> bool:
    return all(item.type in columns.BASE_TYPES for item in fields)


def _merge_class(base: Class, user: Class) -> Class:
    methods = {m.id: _renamed(m, user.name) for m in base.methods}
    for method in user.methods:
        old = methods.get(method.id)
        methods[method.id] = _merge_method(old, method) if old else method
    fields = _merge_fields(base.fields, user.fields) if user.fields else base.fields
    return dataclasses.replace(
        user, methods=tuple(methods.values()), fields=fields, extension=base.extension, doc=user.doc or base.doc
    )


def _renamed(method: Method, class_name: str) -> Method:
    """Return the method under a class name of the user's."""
    return dataclasses.replace(
        method,
        class_name=class_name,
        full_name=f"{class_name}.{method.name}",
        responses=tuple(f"{class_name}.{name.partition('.')[2]}" for name in method.responses),
    )


def _merge_method(base: Method, user: Method) -> Method:
    user = dataclasses.replace(user, fields=_merge_fields(base.fields, user.fields))
    if user.name != base.name:
        return user
    return dataclasses.replace(
        user,
        synchronous=user.synchronous or base.synchronous,
        responses=user.responses or base.responses,
        from_client=user.from_client or base.from_client,
        from_server=user.from_server or base.from_server,
        extension=base.extension,
        extension_senders=base.extension_senders,
        doc=user.doc or base.doc,
    )


def _merge_fields(base: tuple[Field, ...], user: tuple[Field, ...]) -> tuple[Field, ...]:
    merged = list(user)
    for index, (old, new) in enumerate(zip(base, user, strict=False)):
        same = old.name == new.name
        merged[index] = dataclasses.replace(
            new,
            secret=old.secret or new.secret,
            extension=old.extension if same else None,
            doc=new.doc or (old.doc if same else ""),
        )
    return tuple(merged)
