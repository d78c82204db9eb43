"""Reads our own documents: the TOML files beside this module."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from amqpscope.spec import columns, documents, merging
from amqpscope.spec.model import (
    Anomaly,
    Choice,
    Class,
    Column,
    Constant,
    Domain,
    Field,
    Header,
    Method,
    Protocol,
    Shown,
    Struct,
    Table,
    WireType,
)

TIME, CONNECTION = "ts_ns", "connection_id"
"""Names and ends of names of columns from which others follow when statistics are read."""


def names() -> list[str]:
    """Return the names of the protocols that are held as data."""
    return list(documents.names())


@documents.caching
def load(name: str = "amqp-0-9-1") -> Protocol:
    """Return a protocol held as data.

    Raises:
        SpecError: there is none of this name.
    """
    return _load(documents.path_of(name))


@functools.cache
def _load(path: Path) -> Protocol:
    """Return the same protocol whatever other documents are added: caches look protocols up."""
    document = documents.read(path)
    wire_types = tuple(WireType(**entry) for entry in document.get("types", ()))
    domains = _domains(document)
    base = merging.less(load(document["over"]), document.get("without", ())) if "over" in document else None
    types = {domain.name: domain.type for domain in base.domains} if base else {}
    types |= {t.name: t.name for t in wire_types} | {domain.name: domain.type for domain in domains}
    types |= {name: "struct" for name, *_ in _structs(document)}
    major, minor, revision = document["version"]
    protocol = Protocol(
        name=document["name"],
        title=document["title"],
        version=(major, minor, revision),
        provenance=tuple(document["provenance"]),
        headers=tuple(Header(bytes.fromhex(h["bytes"]), h["version"], h["doc"]) for h in document["headers"]),
        constants=tuple(Constant(**{"kind": None, **entry}) for entry in document.get("constants", ())),
        domains=domains,
        classes=tuple(_class(entry, types) for entry in document.get("class", ())) + _commands(document, domains),
        structs=tuple(_struct(*struct, types) for struct in _structs(document)),
        types=wire_types,
        shown=_shown(document.get("shown", {})),
    )
    avoid = document.get("avoid", ())
    if base is None:
        return columns.assign(protocol, avoid=avoid)
    return dataclasses.replace(
        merging.merged(base, protocol, avoid),
        **{name: getattr(protocol, name) for name in ("name", "title", "version", "provenance", "headers")},
    )


@documents.caching
def anomalies() -> dict[str, Anomaly]:
    """Return the closed list of anomaly codes, in the order of the document."""
    entries = list(documents.read(documents.FOLDER / "anomalies.toml")["anomalies"])
    for more in documents.plug_ins("anomaly"):
        entries += [{"code": code} | entry for code, entry in more.items()]
    return {entry["code"]: Anomaly(**entry) for entry in entries}


@documents.caching
def tables() -> dict[str, Table]:
    """Return all tables of `dissect` and `analyze` with their fixed columns, in the order of the document.

    Tables of frames go on with one column for each method argument: see `Table.with_methods`.
    """
    document = documents.read(documents.FOLDER / "tables.toml")
    shared = {name: group["columns"] for name, group in document["shared"].items()}
    messages = [column for more in documents.plug_ins("messages") for column in more["columns"]]
    described = dict(document["table"])
    described["messages"] = described["messages"] | {"columns": described["messages"]["columns"] + messages}
    for more in documents.plug_ins("table"):
        described |= more
    result = {}
    for name, entry in described.items():
        methods_of: str | None = None
        listed: list[Column] = []
        for column in entry["columns"]:
            if "include" in column:
                listed.extend(Column(**c) for c in shared[column["include"]])
            elif "methods_of" in column:
                methods_of = column["methods_of"]
            else:
                listed.append(Column(**column))
        by = entry["written_by"]
        added = _when_read(listed, document["when_read"]) if by == "analyze" else ()
        result[name] = Table(name, entry["doc"], tuple(listed), by, methods_of, added)
    return result


def _when_read(listed: list[Column], rule: dict[str, Any]) -> tuple[Column, ...]:
    """Return the columns that a table has besides when it is read."""
    taken = {column.name for column in listed}
    found = []
    for name in (column.name for column in listed if column.type == "int64"):
        if name == TIME or name.endswith(f"_{TIME}"):
            doc = rule["times"].format(column=name)
            found.append(Column(name.removesuffix("_ns"), "timestamp", doc))
        elif name == CONNECTION or name.endswith(f"_{CONNECTION}"):
            before = name.removesuffix(CONNECTION)
            own = taken & {before + entry["name"] for entry in rule["addresses"]}
            some = () if own else rule["addresses"]
            found += [Column(before + each["name"], each["type"], each["doc"].format(column=name)) for each in some]
    return tuple(found)


def _shown(entry: dict[str, Any]) -> Shown:
    return Shown(
        names=tuple(entry.get("names", {}).items()),
        milliseconds=tuple(entry.get("milliseconds", ())),
        left_out=tuple(entry.get("left_out", ())),
        same=tuple((name, tuple(columns)) for name, columns in entry.get("same", {}).items()),
    )


def _domains(document: dict[str, Any]) -> tuple[Domain, ...]:
    """Return the document's own domains, then those of its classes."""
    scoped = [("", entry) for entry in document.get("domains", ())]
    scoped += [(f"{cls['name']}.", entry) for cls in document.get("class", ()) for entry in cls.get("domain", ())]
    return tuple(
        Domain(scope + entry["name"], entry["type"], entry["doc"], tuple(Choice(**c) for c in entry.get("choices", ())))
        for scope, entry in scoped
    )


def _structs(document: dict[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the structs with their full names, the ids of their classes and their entries."""
    found = [(entry["name"], 0, entry) for entry in document.get("struct", ())]
    for cls in document.get("class", ()):
        found += [(f"{cls['name']}.{entry['name']}", cls["id"], entry) for entry in cls.get("struct", ())]
    return found


def _class(entry: dict[str, Any], types: dict[str, str]) -> Class:
    return Class(
        name=entry["name"],
        id=entry["id"],
        methods=tuple(_method(entry, method, types) for method in entry.get("method", ())),
        fields=tuple(_field(field, types, entry["name"]) for field in entry.get("properties", ())),
        extension=entry.get("extension"),
        doc=entry.get("doc", ""),
    )


def _method(cls: dict[str, Any], entry: dict[str, Any], types: dict[str, str]) -> Method:
    result = ("execution.result",) if "result" in entry else ()
    return Method(
        class_name=cls["name"],
        class_id=cls["id"],
        name=entry["name"],
        id=entry["id"],
        full_name=f"{cls['name']}.{entry['name']}",
        fields=tuple(_field(field, types, cls["name"]) for field in entry.get("fields", ())),
        synchronous=entry.get("synchronous", False),
        responses=tuple(f"{cls['name']}.{name}" for name in entry.get("responses", ())) or result,
        content=entry.get("content", False),
        from_client="client" in entry["from"],
        from_server="server" in entry["from"],
        extension=entry.get("extension"),
        doc=entry.get("doc", ""),
        extension_senders=tuple(entry.get("extension_senders", ())),
        kind=entry.get("kind", "method"),
        result=_scoped(entry["result"], types, cls["name"]) if "result" in entry else None,
        entries=tuple(_scoped(name, types, cls["name"]) for name in entry.get("entries", ())),
    )


def _commands(document: dict[str, Any], domains: tuple[Domain, ...]) -> tuple[Class, ...]:
    """Return two classes, requests and responses, with a method for each layout of a protocol without classes."""
    if "command" not in document:
        return ()
    known = {domain.name: domain for domain in domains}
    layouts: dict[bool, list[Method]] = {False: [], True: []}
    for command in document["command"]:
        answer = [{"response": True, "fields": command["response"], "doc": ""}] if "response" in command else []
        for layout in [command | {"response": False}, *answer, *command.get("layouts", ())]:
            layouts[layout.get("response", False)].append(_layout(command, layout, known))
    return (
        Class("request", 0, tuple(layouts[False]), doc="What a side sends of its own accord; bit 15 of the key is 0."),
        Class("response", 1, tuple(layouts[True]), doc="Answers; bit 15 of the key is 1, with exceptions."),
    )


def _layout(command: dict[str, Any], layout: dict[str, Any], domains: dict[str, Domain]) -> Method:
    answers = layout.get("response", False)
    version, variant, name = layout.get("version", 1), layout.get("variant"), command["name"]
    parts = [name, "response" if answers else "", str(version) if version > 1 else "", variant or ""]
    return Method(
        class_name="response" if answers else "request",
        class_id=int(answers),
        name=name,
        id=command["key"],
        full_name="-".join(part for part in parts if part),
        fields=tuple(_domain_field(field, domains) for field in layout["fields"]),
        synchronous=answers or "response" in command,
        responses=() if answers or "response" not in command else (f"{name}-response",),
        content=False,
        from_client=("client" in command["from"]) != (answers and len(command["from"]) == 1),
        from_server=("server" in command["from"]) != (answers and len(command["from"]) == 1),
        doc=layout.get("doc") or f"Answers {name}.",
        kind="command",
        version=version,
        variant=variant,
        since=layout.get("since") or command["since"],
    )


def _domain_field(entry: dict[str, Any], domains: dict[str, Domain]) -> Field:
    """Return a field, which may take its name, type and description from its domain."""
    domain = domains.get(entry.get("domain", ""))
    name = entry.get("name") or entry["domain"]
    return Field(
        name=columns.field_name(name),
        wire_name=name,
        domain=domain.name if domain else entry["type"],
        type=domain.type if domain else entry["type"],
        reserved=entry.get("reserved", False),
        secret=entry.get("secret", False),
        doc=entry.get("doc") or (domain.doc if domain else ""),
        optional=entry.get("optional", False),
        when=entry.get("when"),
    )


def _struct(name: str, class_id: int, entry: dict[str, Any], types: dict[str, str]) -> Struct:
    fields = tuple(_field(field, types, name.rpartition(".")[0]) for field in entry["fields"])
    size, pack = entry.get("size", 0), entry.get("pack", 0)
    return Struct(name, class_id, entry.get("code"), size, pack, fields, entry.get("doc", ""))


def _field(entry: dict[str, Any], types: dict[str, str], scope: str) -> Field:
    domain = _scoped(entry.get("domain") or entry["type"], types, scope)
    return Field(
        name=columns.field_name(entry["name"]),
        wire_name=entry["name"],
        domain=domain,
        type=types.get(domain, domain),
        reserved=entry.get("reserved", False),
        secret=entry.get("secret", False),
        property_column=entry.get("property_column"),
        extension=entry.get("extension"),
        doc=entry.get("doc", ""),
    )


def _scoped(name: str, types: dict[str, str], scope: str) -> str:
    """Return the full name of a type as seen from a class, whose own come before the document's."""
    return f"{scope}.{name}" if f"{scope}.{name}" in types else name
