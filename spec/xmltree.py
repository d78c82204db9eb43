"""Parse untrusted XML documents into a small tree with line numbers.

Entities are not expanded, nothing outside the file is read, and the size is bounded.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from amqpscope.spec.model import MissingDocumentError, SpecError

MAX_BYTES = 4 << 20
"""Largest document that is read; the published ones stay below half a megabyte."""
MAX_DEPTH = 32
"""Deepest nesting; the published documents stay below ten."""


@dataclass(slots=True)
class Node:
    """An element: its name without namespace, attributes, children, and the text directly in it."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list["Node"] = field(default_factory=list)
    text: str = ""

    def all(self, *tags: str) -> list["Node"]:
        """Return the children of these names, in order."""
        return [child for child in self.children if child.tag in tags]


def error(path: object, line: int, what: str) -> SpecError:
    """Return an error with its place in the document."""
    return SpecError(f"{path}: line {line}: {what}")


def parse(path: str | os.PathLike[str]) -> Node:
    """Return the root element of a document.

    Raises:
        SpecError: the file is not well-formed XML, too large, or declares entities.
        MissingDocumentError: there is no such file.
        OSError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as missing:
        raise MissingDocumentError(f"{path}: no such file") from missing
    if len(data) > MAX_BYTES:
        raise error(path, 1, f"more than {MAX_BYTES >> 20} MB; give a protocol definition in the AMQP XML format")
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    top = Node("", {}, 0)
    open_nodes = [top]

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(open_nodes) > MAX_DEPTH:
            what = "elements are nested too deep; give a protocol definition in the AMQP XML format"
            raise error(path, parser.CurrentLineNumber, what)
        node = Node(name.rpartition(" ")[2], attributes, parser.CurrentLineNumber)
        open_nodes[-1].children.append(node)
        open_nodes.append(node)

    def end(_: str) -> None:
        open_nodes.pop()

    def text(data: str) -> None:
        open_nodes[-1].text += data

    def refuse(*_: object) -> None:
        raise error(path, parser.CurrentLineNumber, "entities are not allowed; write out what they stand for")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.EntityDeclHandler = refuse
    parser.SkippedEntityHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as cause:
        what = f"not well-formed XML ({expat.ErrorString(cause.code)}); correct it there"
        raise error(path, cause.lineno, what) from None
    except (LookupError, ValueError):  # an encoding that Python does not know, or one not of single bytes
        raise error(path, 1, "unknown character encoding; save the file as UTF-8") from None
    return top.children[0]
