"""Lay a document over another: methods of the same ids replace, others are added."""

import dataclasses
from collections.abc import Collection

from amqpscope.spec import columns
from amqpscope.spec.model import Class, Field, Method, Protocol, Struct


def merged(base: Protocol, over: Protocol, avoid: Collection[str] = ()) -> Protocol:
    """Return the base protocol with another laid over it.

    Columns of the base keep their names and types. A field whose column type differs from that of the same name, or
    whose name is among those to avoid, goes to `name_type`. Of a method that both have under one name, what the
    document above leaves unsaid (answers, senders, words, what is secret) stays as in the base.

    Args:
        base: the document below.
        over: the document above.
        avoid: columns with another meaning in the table of frames.
    """
    added = {c.id: c for c in over.classes}
    classes = [_merge_class(c, added.pop(c.id)) if c.id in added else c for c in base.classes]
    structs = {s.name: s for s in base.structs}
    structs |= {s.name: _merge_struct(structs[s.name], s) if s.name in structs else s for s in over.structs}
    both = dataclasses.replace(
        base,
        provenance=base.provenance + over.provenance,
        constants=tuple(({c.name: c for c in base.constants} | {c.name: c for c in over.constants}).values()),
        domains=tuple(({d.name: d for d in base.domains} | {d.name: d for d in over.domains}).values()),
        types=tuple(({t.name: t for t in base.types} | {t.name: t for t in over.types}).values()),
        structs=tuple(structs.values()),
        classes=(*classes, *added.values()),
    )
    return columns.assign(both, base.method_columns(), avoid, base.property_columns())


def less(protocol: Protocol, names: Collection[str]) -> Protocol:
    """Return the protocol without these classes and methods, given by their full names, and as answers of others."""

    def stays(method: Method) -> bool:
        return not {method.class_name, method.full_name} & set(names)

    def answered(method: Method) -> Method:
        responses = tuple(name for name in method.responses if name not in names)
        return (
            method
            if responses == method.responses
            else dataclasses.replace(method, responses=responses, synchronous=bool(responses))
        )

    return dataclasses.replace(
        protocol,
        classes=tuple(
            dataclasses.replace(c, methods=tuple(answered(m) for m in c.methods if stays(m)))
            for c in protocol.classes
            if c.name not in names
        ),
    )


def _merge_class(base: Class, user: Class) -> Class:
    methods = {m.id: _renamed(m, user.name) for m in base.methods}
    for method in user.methods:
        old = methods.get(method.id)
        methods[method.id] = _merge_method(old, method) if old else method
    fields = _merge_fields(base.fields, user.fields) if user.fields else base.fields
    return dataclasses.replace(
        user, methods=tuple(methods.values()), fields=fields, extension=base.extension, doc=user.doc or base.doc
    )


def _merge_struct(base: Struct, user: Struct) -> Struct:
    return dataclasses.replace(user, fields=_merge_fields(base.fields, user.fields), doc=user.doc or base.doc)


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
            property_column=old.property_column if same else new.property_column,
            extension=old.extension if same else None,
            doc=new.doc or (old.doc if same else ""),
        )
    return tuple(merged)
