"""AMQP 1.0 as data: its types, the sections of messages, and the names of its performatives (`amqp-1.0.toml`)."""

import functools
from dataclasses import dataclass
from typing import Literal

from amqpscope.spec import documents

NAME = "amqp-1.0"
ValueKind = Literal[
    "null", "true", "false", "boolean", "unsigned", "signed", "float", "decimal", "char", "timestamp", "uuid", "binary",
    "text", "list", "map", "array",
]  # fmt: skip
"""How the bytes of a value are read."""
SectionKind = Literal["list", "map", "body"]


@dataclass(frozen=True, slots=True)
class SectionField:
    """A field of a section that is a list, in wire order."""

    name: str
    type: str
    column: str
    """Column of `messages` that it goes to."""
    add: int = 0
    divide: int = 1
    """Numbers are divided first, then added to."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a message: a described value (part 3, section 3.2)."""

    name: str
    code: int
    symbol: str
    """Descriptor, as number and as symbol."""
    kind: SectionKind
    fields: tuple[SectionField, ...] = ()
    column: str | None = None
    """Column of a map as a whole, as JSON text."""


@dataclass(frozen=True, slots=True)
class Messages:
    """What is known of messages, and of the frames that bring them where AMQP 1.0 itself is spoken."""

    title: str
    provenance: tuple[str, ...]
    constructors: dict[int, ValueKind]
    """By code; 0, of described values, is not among them."""
    sections: tuple[Section, ...]
    performatives: dict[int, dict[int, str]]
    """Names by frame type (0 AMQP, 1 SASL) and descriptor."""


@functools.cache
def load() -> Messages:
    """Return the document."""
    document = documents.read(documents.FOLDER / f"{NAME}.toml")
    return Messages(
        document["title"],
        tuple(document["provenance"]),
        {code: entry["kind"] for entry in document["types"] for code in entry["codes"]},
        tuple(
            Section(**{**entry, "fields": tuple(SectionField(**field) for field in entry.get("fields", ()))})
            for entry in document["section"]
        ),
        {
            entry["frame_type"]: {int(code, 0): name for code, name in entry["names"].items()}
            for entry in document["performative"]
        },
    )
