"""AMQP's own XML format to the model: 0-8, 0-9, 0-9-1 with their variants, and both documents called 0-10.

Up to 0-9-1, and in the transitional 0-10, classes have an `index` and contain methods; in the final 0-10 they have a
`code` and contain controls, commands, structs and domains of their own.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from amqpscope.spec.columns import BASE_TYPES, field_name
from amqpscope.spec.model import Choice, Class, Constant, Domain, Field, Method, Protocol, SpecError, Struct, WireType
from amqpscope.spec.xmltree import Node, error, parse

_NAME = re.compile(r"[a-z][a-z0-9]*([-_ ]+[a-z0-9]+)*", re.IGNORECASE | re.ASCII)
_TYPE = re.compile(rf"({_NAME.pattern}\.)?{_NAME.pattern}", re.IGNORECASE | re.ASCII)
_MAX_NAME = 64
_MAX_CHAIN = 8
_SECRETS = frozenset(["response", "new-secret", "secret", "password", "token", "credentials"])
"""Fields of class connection that hold credentials."""


def read(path: str | os.PathLike[str]) -> Protocol:
    """Return the protocol that a document describes, its fields without columns.

    Raises:
        SpecError: it is not a protocol definition, or contradicts itself.
        OSError: it cannot be read.
    """
    return _Reader(path).protocol()


class _Reader:
    """One document while it is read: knows its path, for errors, and its domains."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = "".join(c if c.isprintable() else "?" for c in str(path))
        self.root = parse(path)
        self.types: dict[str, WireType] = {}
        self.domains: dict[str, Node] = {}
        self.structs: dict[str, Node] = {}

    def fail(self, node: Node, what: str) -> SpecError:
        """Return the error for this element."""
        return error(self.path, node.line, what)

    def protocol(self) -> Protocol:
        root = self.root
        if root.tag != "amqp" or "major" not in root.attributes or "minor" not in root.attributes:
            raise self.fail(root, "not a definition of AMQP 0-8 to 0-10 (<amqp major= minor=>); give one of those")
        major, minor = self.number(root, "major"), self.number(root, "minor")
        revision = self.optional(root, "revision") or 0
        if (major, minor) == (8, 0):  # the 0-8 document numbers itself 8-0
            major, minor = 0, 8
        if minor == 91:  # a spelling of Qpid's
            minor, revision = 9, 1
        version = f"{major}-{minor}-{revision}" if revision else f"{major}-{minor}"
        for node in root.all("type"):
            code, fixed, variable = (self.optional(node, a) for a in ("code", "fixed-width", "variable-width"))
            self.types[self.name(node)] = WireType(self.name(node), code, fixed, variable)
        for scope in [root, *root.all("class")]:
            prefix = "" if scope is root else self.name(scope) + "."
            self.domains |= {prefix + self.name(node): node for node in scope.all("domain")}
            results = [r for c in scope.all("command") for r in c.all("result")]
            for holder in [scope, *results]:
                self.structs |= {prefix + self.name(node): node for node in holder.all("struct")}
        constants = tuple(self.constant(node) for node in root.all("constant"))
        classes = tuple(self.cls(node) for node in root.all("class"))
        if not classes:
            raise self.fail(root, "no classes in it; give a complete protocol definition")
        self.unique(root.all("constant"), [c.name for c in constants], "constant")
        self.unique(root.all("class"), [c.id for c in classes], "class id")
        self.unique(root.all("class"), [c.name for c in classes], "class")
        return Protocol(
            name=f"amqp-{version}",
            title=f"AMQP {version} from {Path(self.path).name}",
            version=(major, minor, revision),
            provenance=(self.path,),
            headers=(),
            constants=constants,
            domains=tuple(self.domain(name, node) for name, node in self.domains.items()),
            classes=classes,
            structs=tuple(self.struct(name, node) for name, node in self.structs.items()),
            types=tuple(self.types.values()),
        )

    # ------------------------------------------------------------------------------------------------- attributes

    def name(self, node: Node, attribute: str = "name") -> str:
        """Return a name in lower case with hyphens; 0-8 writes blanks."""
        text = node.attributes.get(attribute, "").strip()
        if len(text) > _MAX_NAME or not (_TYPE if attribute in ("type", "domain") else _NAME).fullmatch(text):
            what = f"<{node.tag}> has no proper {attribute}; names are words of letters and digits with hyphens between"
            raise self.fail(node, what)
        return re.sub(r"[ _]+", "-", text).lower()

    def number(self, node: Node, attribute: str) -> int:
        """Return an unsigned 16-bit number, decimal or hexadecimal."""
        text = node.attributes.get(attribute, "").strip()
        try:
            value = int(text, 16 if text.lower().startswith("0x") else 10)
        except ValueError:
            value = -1
        if not 0 <= value <= 0xFFFF:
            raise self.fail(node, f"<{node.tag}> needs a number from 0 to 65535 as its {attribute}")
        return value

    def optional(self, node: Node, attribute: str) -> int | None:
        return self.number(node, attribute) if attribute in node.attributes else None

    def flag(self, node: Node, attribute: str) -> bool:
        return node.attributes.get(attribute, "0").strip().lower() in ("1", "true", "yes")

    def doc(self, node: Node) -> str:
        """Return the label, or the first sentence of the documentation, as one line of printable text."""
        text = node.attributes.get("label", "")
        if not text:
            text = next((doc.text for doc in node.all("doc") if doc.attributes.get("type") != "grammar"), "")
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return re.split(r"(?<=[.!?]) (?=[A-Z])", text, maxsplit=1)[0]

    def unique(self, nodes: list[Node], keys: Sequence[int | str], what: str) -> None:
        seen: set[int | str] = set()
        for node, key in zip(nodes, keys, strict=True):
            if key in seen:
                raise self.fail(node, f"{what} {key} is there twice; keep one")
            seen.add(key)

    # ------------------------------------------------------------------------------------------------------ types

    def resolve(self, node: Node, name: str, scope: str, depth: int = 0) -> tuple[str, str]:
        """Return the full name and the wire type of a type or domain, as seen from a class."""
        if name in BASE_TYPES or name in self.types:
            return name, name
        for full in (f"{scope}.{name}", name):  # the class's own come before the document's
            if full in self.structs:
                return full, "struct"
            if full in self.domains:
                wanted = self.name(self.domains[full], "type")
                if wanted == full:  # declared as itself: a type of the document's own
                    return full, full
                if depth > _MAX_CHAIN:
                    raise self.fail(self.domains[full], f"domain {full} leads back to itself; name a type")
                return full, self.resolve(self.domains[full], wanted, full.rpartition(".")[0], depth + 1)[1]
        raise self.fail(node, f"type {name} is declared nowhere; declare it as a domain, or correct its name")

    def domain(self, name: str, node: Node) -> Domain:
        _, kind = self.resolve(node, name, "")
        choices = tuple(
            Choice(self.name(c), self.number(c, "value"), self.doc(c))
            for e in node.all("enum")
            for c in e.all("choice")
        )
        return Domain(name, kind, self.doc(node), choices)

    def struct(self, name: str, node: Node) -> Struct:
        scope = name.rpartition(".")[0]
        class_id = next((self.number(c, "code") for c in self.root.all("class") if self.name(c) == scope), 0)
        size, pack = self.optional(node, "size") or 0, self.optional(node, "pack") or 0
        return Struct(name, class_id, self.optional(node, "code"), size, pack, self.fields(node, scope), self.doc(node))

    # ----------------------------------------------------------------------------------------- classes and methods

    def constant(self, node: Node) -> Constant:
        reply = node.attributes.get("class")
        kind: Literal["soft", "hard"] | None = None
        if reply is not None:
            kind = "soft" if reply.startswith("soft") else "hard" if reply.startswith("hard") else None
        return Constant(self.name(node), self.number(node, "value"), kind, self.doc(node))

    def cls(self, node: Node) -> Class:
        name = self.name(node)
        number = self.number(node, "code" if "code" in node.attributes else "index")
        nodes = node.all("method", "control", "command")
        answers = {self.name(r) for m in nodes for r in m.all("response")}
        if any(m.all("result") for m in nodes) or name == "execution":
            answers.add("result")
        methods = tuple(self.method(m, name, number, answers) for m in nodes)
        self.unique(nodes, [m.id for m in methods], f"class {name}: method id")
        self.unique(nodes, [m.name for m in methods], f"class {name}: method")
        return Class(name, number, methods, self.fields(node, name), doc=self.doc(node))

    def method(self, node: Node, class_name: str, class_id: int, answers: set[str]) -> Method:
        name = self.name(node)
        kind: Literal["method", "control", "command"] = "method"
        if node.tag == "control":
            kind = "control"
        elif node.tag == "command":
            kind = "command"
        responses = [f"{class_name}.{self.name(r)}" for r in node.all("response")]
        if kind == "command" and node.all("result"):
            responses.append("execution.result")
        results = [n for r in node.all("result") for n in (r, *r.all("struct"))]
        entries = [e for s in node.all("segments") for h in s.all("header") for e in h.all("entry")]
        # Who implements a method receives it. Without a role, or with one that either may have, it is both.
        handlers = {n.attributes.get("name") for n in node.all("chassis")}
        handlers |= {n.attributes.get("role") for n in node.all("implement")}
        anyone = not handlers <= {"client", "server"} or not handlers
        return Method(
            class_name=class_name,
            class_id=class_id,
            name=name,
            id=self.number(node, "index" if kind == "method" else "code"),
            full_name=f"{class_name}.{name}",
            fields=self.fields(node, class_name),
            synchronous=self.flag(node, "synchronous") or (kind != "method" and (bool(responses) or name in answers)),
            responses=tuple(responses),
            content=self.flag(node, "content") or bool(node.all("segments")),
            from_client=anyone or "server" in handlers,
            from_server=anyone or "client" in handlers,
            doc=self.doc(node),
            kind=kind,
            result=next(iter(self.names_of(results, class_name)), None),
            entries=self.names_of(entries, class_name),
        )

    def names_of(self, nodes: list[Node], class_name: str) -> tuple[str, ...]:
        """Return the full names that elements refer to: by their type, or of a struct where it is declared."""
        given = [(n, "name" if n.tag == "struct" else "type") for n in nodes]
        return tuple(self.resolve(n, self.name(n, a), class_name)[0] for n, a in given if a in n.attributes)

    def fields(self, node: Node, class_name: str) -> tuple[Field, ...]:
        nodes = node.all("field")
        fields = tuple(self.field(child, class_name) for child in nodes)
        self.unique(nodes, [item.name for item in fields], f"<{node.tag} {self.name(node)}>: field")
        return fields

    def field(self, node: Node, class_name: str) -> Field:
        wire_name = self.name(node)
        given = "domain" if "domain" in node.attributes else "type"
        domain, kind = self.resolve(node, self.name(node, given), class_name)
        return Field(
            name=field_name(wire_name),
            wire_name=wire_name,
            domain=domain,
            type=kind,
            reserved=self.flag(node, "reserved"),
            secret=class_name == "connection" and wire_name in _SECRETS,
            doc=self.doc(node),
        )
