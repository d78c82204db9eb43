"""A user's own document: read from XML, laid over ours."""

import dataclasses
import os

from spec import columns, data
from spec.model import Class, Field, Method, Protocol, SpecError

BASE_TYPES = frozenset(["bit", "octet", "short", "long", "longlong", "shortstr", "longstr", "timestamp", "table"])
"""Wire types of AMQP 0-8 to 0-9-1."""


def load_xml(path: str | os.PathLike[str]) -> Protocol:
    """A protocol from a document in the AMQP XML format: 0-8, 0-9, 0-9-1 and their variants, or 0-10.

    Raises:
        SpecError: it is not such a document, or contradicts itself.
        OSError: it cannot be read.
    """
    from spec import xml  # noqa: PLC0415 - most programs never read XML

    return columns.assign(xml.parse(path))


def overlay(base: Protocol, user: Protocol) -> Protocol:
    """The base protocol with a user's document laid over it, by class id and method id: replaces and adds.

    Columns of the base keep their names and types. A user's field whose column type differs from that of the same name,
    or whose name means something else in the table of frames, goes to `name_type`. What holds credentials in the base
    stays secret at the same place.

    Raises:
        SpecError: the document uses types that the base's framing does not have.
    """
    for method in user.methods:
        for item in method.fields:
            _check(user, item, method.full_name)
    for cls in user.classes:
        for item in cls.fields:
            _check(user, item, cls.name)
    avoid = [c.name for t in data.tables().values() if t.methods_of == base.name for c in t.columns]
    # Columns of the user's own fields are found again, with those of the base already there.
    user = columns.assign(user, taken=base.method_columns(), avoid=avoid)
    ids = {c.id: c for c in user.classes}
    classes = [_merge(c, ids.pop(c.id)) if c.id in ids else c for c in base.classes]
    constants = {c.name: c for c in base.constants} | {c.name: c for c in user.constants}
    domains = {d.name: d for d in base.domains} | {d.name: d for d in user.domains}
    return dataclasses.replace(
        base,
        title=f"{base.title}, with {user.title} laid over it",
        provenance=base.provenance + user.provenance,
        constants=tuple(constants.values()),
        domains=tuple(domains.values()),
        classes=tuple(classes) + tuple(ids.values()),
    )


def _check(user: Protocol, item: Field, where: str) -> None:
    if item.type not in BASE_TYPES:
        raise SpecError(
            f"{user.provenance[0]}: {where}: field {item.wire_name} has type {item.type}, which AMQP 0-9-1 does not "
            f"have; give a document of AMQP 0-8, 0-9 or 0-9-1"
        )


def _merge(base: Class, user: Class) -> Class:
    methods = {m.id: _renamed(m, user.name) for m in base.methods}
    for method in user.methods:
        methods[method.id] = _keep_secrets(methods.get(method.id), method)
    return dataclasses.replace(user, methods=tuple(methods.values()), fields=user.fields or base.fields)


def _renamed(method: Method, class_name: str) -> Method:
    """The method under a class name of the user's."""
    return dataclasses.replace(
        method,
        class_name=class_name,
        full_name=f"{class_name}.{method.name}",
        responses=tuple(f"{class_name}.{name.partition('.')[2]}" for name in method.responses),
    )


def _keep_secrets(base: Method | None, user: Method) -> Method:
    secrets = [item.secret for item in base.fields] if base else []
    fields = [
        dataclasses.replace(item, secret=item.secret or (index < len(secrets) and secrets[index]))
        for index, item in enumerate(user.fields)
    ]
    return dataclasses.replace(user, fields=tuple(fields))
