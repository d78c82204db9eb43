"""A user's own document: read from XML, laid over ours."""

import dataclasses
import os

from amqpscope.spec import columns, data, merging
from amqpscope.spec.model import Field, Method, Protocol, SpecError


def load_xml(path: str | os.PathLike[str]) -> Protocol:
    """Return a protocol from a document in the AMQP XML format: 0-8, 0-9, 0-9-1 and their variants, or 0-10.

    Raises:
        SpecError: it is not such a document, or contradicts itself; or is not there (a `FileNotFoundError` then).
        OSError: it cannot be read.
    """
    from amqpscope.spec import amqpxml  # noqa: PLC0415 - most programs never read XML

    return columns.assign(amqpxml.read(path))


def overlay(base: Protocol, user: Protocol) -> Protocol:
    """Merge a user's document into the base protocol, as `merging.merged` does.

    Methods that `left_out` names are not taken over.

    Raises:
        SpecError: the document is of a protocol with another framing.
    """
    avoid = [c.name for t in data.tables().values() if t.methods_of == base.name for c in t.columns]
    if base_of(user) == base.name and user.types:
        return _titled(merging.merged(base, user, avoid), base, user)
    unusable = left_out(user)
    usable = tuple(
        dataclasses.replace(c, methods=tuple(m for m in c.methods if m not in unusable)) for c in user.classes
    )
    if not any(c.methods for c in usable) or not all(_decodable(c.fields) for c in usable):
        raise SpecError(
            f"{user.provenance[0]}: {user.name} cannot be laid over {base.name}; give a document of 0-8 to 0-9-1"
        )
    return _titled(merging.merged(base, dataclasses.replace(user, classes=usable), avoid), base, user)


def _titled(merged: Protocol, base: Protocol, user: Protocol) -> Protocol:
    return dataclasses.replace(merged, title=f"{base.title}, with {user.title} laid over it")


def base_of(user: Protocol) -> str:
    """Return the name of the built-in protocol that frames as a user's document describes."""
    return "amqp-0-10" if user.types else "amqp-0-9-1"


def left_out(user: Protocol) -> tuple[Method, ...]:
    """Return the methods that `overlay` cannot use: their fields have types of other protocols."""
    return tuple(m for m in user.methods if m.kind != "method" or not _decodable(m.fields))


def _decodable(fields: tuple[Field, ...]) -> bool:
    return all(item.type in columns.BASE_TYPES for item in fields)
