"""Reads our own documents: the TOML files beside this module."""

from typing import Any

from amqpscope.spec import columns, documents
from amqpscope.spec.model import (
    Anomaly,
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
)


def names() -> list[str]:
    """Names of the protocols that are held as data."""
    return list(documents.names())


@documents.caching
def load(name: str = "amqp-0-9-1") -> Protocol:
    """A protocol held as data.

    Raises:
        SpecError: there is none of this name.
    """
    document = documents.of_protocol(name)
    domains = tuple(Domain(**entry) for entry in document["domains"])
    types = {domain.name: domain.type for domain in domains}
    major, minor, revision = document["version"]
    protocol = Protocol(
        name=document["name"],
        title=document["title"],
        version=(major, minor, revision),
        provenance=tuple(document["provenance"]),
        headers=tuple(Header(bytes.fromhex(h["octets"]), h["version"], h["doc"]) for h in document["headers"]),
        constants=tuple(Constant(**{"kind": None, **entry}) for entry in document["constants"]),
        domains=domains,
        classes=tuple(_class(entry, types) for entry in document.get("class", ())) + _commands(document, domains),
        structs=tuple(_struct(entry) for entry in document.get("struct", ())),
        shown=_shown(document.get("shown", {})),
    )
    return columns.assign(protocol)


@documents.caching
def anomalies() -> dict[str, Anomaly]:
    """The closed list of anomaly codes, in the order of the document."""
    entries = list(documents.read(documents.FOLDER / "anomalies.toml")["anomalies"])
    for more in documents.plug_ins("anomaly"):
        entries += [{"code": code} | entry for code, entry in more.items()]
    return {entry["code"]: Anomaly(**entry) for entry in entries}


@documents.caching
def tables() -> dict[str, Table]:
    """All tables of `dissect` and `analyze` with their fixed columns, in the order of the document.

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
        result[name] = Table(name, entry["doc"], tuple(listed), entry["written_by"], methods_of)
    return result


def _shown(entry: dict[str, Any]) -> Shown:
    return Shown(
        tuple(entry.get("names", {}).items()), tuple(entry.get("milliseconds", ())), tuple(entry.get("left_out", ()))
    )


def _class(entry: dict[str, Any], types: dict[str, str]) -> Class:
    return Class(
        name=entry["name"],
        id=entry["id"],
        methods=tuple(_method(entry, method, types) for method in entry["method"]),
        fields=tuple(_field(field, types) for field in entry.get("properties", ())),
        extension=entry.get("extension"),
        doc=entry["doc"],
    )


def _method(cls: dict[str, Any], entry: dict[str, Any], types: dict[str, str]) -> Method:
    return Method(
        class_name=cls["name"],
        class_id=cls["id"],
        name=entry["name"],
        id=entry["id"],
        full_name=f"{cls['name']}.{entry['name']}",
        fields=tuple(_field(field, types) for field in entry.get("fields", ())),
        synchronous=entry.get("synchronous", False),
        responses=tuple(f"{cls['name']}.{name}" for name in entry.get("responses", ())),
        content=entry.get("content", False),
        from_client="client" in entry["from"],
        from_server="server" in entry["from"],
        extension=entry.get("extension"),
        doc=entry["doc"],
        extension_senders=tuple(entry.get("extension_senders", ())),
    )


def _commands(document: dict[str, Any], domains: tuple[Domain, ...]) -> tuple[Class, ...]:
    """The commands of a protocol without classes, each layout a method; of two classes, requests and responses."""
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
    """A field that may take its name, type and words from its domain."""
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


def _struct(entry: dict[str, Any]) -> Struct:
    fields = tuple(
        Field(columns.field_name(item["name"]), item["name"], item["type"], item["type"]) for item in entry["fields"]
    )
    return Struct(entry["name"], 0, None, 0, 0, fields)


def _field(entry: dict[str, Any], types: dict[str, str]) -> Field:
    domain = entry.get("domain") or entry["type"]
    return Field(
        name=columns.field_name(entry["name"]),
        wire_name=entry["name"],
        domain=domain,
        type=types[domain],
        reserved=entry.get("reserved", False),
        secret=entry.get("secret", False),
        extension=entry.get("extension"),
        doc=entry.get("doc", ""),
    )
