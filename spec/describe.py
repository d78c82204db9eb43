"""Describe a name in lines of plain text: a protocol, class, method, column, table, domain or code."""

import difflib
from collections.abc import Iterator

from amqpscope.spec import amqp100, codes, data, documents, findings, handshakes, tls
from amqpscope.spec.describe_codes import (
    OWNERS,
    addition,
    closes,
    code,
    is_code,
    of_anomalies,
    of_anomaly,
    of_cause,
    of_choice,
    of_constant,
    of_domain,
    of_finding,
    of_type,
)
from amqpscope.spec.layout import aligned, paragraph, title
from amqpscope.spec.model import (
    Class,
    Domain,
    Field,
    Method,
    Protocol,
    SpecError,
    Struct,
    Table,
)

WHEN_READ = "Besides, where it is read in Python or on Spark (not in its files):"


def describe(name: str, protocol: Protocol) -> list[str]:
    """Return the description of a name, one section for each meaning.

    Names are taken with hyphens, underscores or blanks; methods also by ids (`60.40`), constants and classes by number.
    Names of another protocol than the given one are followed by its name.

    Raises:
        SpecError: nothing has this name; the message offers what comes near.
    """
    sections = list(_sections(name.strip().lower().replace(" ", "-"), protocol))
    if not sections:
        raise SpecError(f"unknown name: {_printable(name)}; {_near(name, protocol)}")
    lines: list[str] = []
    for section in sections:
        for line in [*([""] if lines else []), *section]:
            if line or not lines or lines[-1]:  # of blank lines in a row, one
                lines.append(line)
    return lines


def _sections(name: str, protocol: Protocol) -> Iterator[list[str]]:
    name, column = name.replace("_", "-"), name.replace("-", "_")
    known = _known(protocol)
    for each in known:
        if name == each.name:
            yield of_protocol(each)
        for cls in each.classes:
            if name in (cls.name, str(cls.id)):
                yield of_class(cls, each)
        for method in each.methods:
            if name in (method.full_name, method.name, f"{method.class_id}.{method.id}"):
                yield of_method(method, _other(each, protocol))
        for struct in each.structs:
            if name in _names(struct) and struct.doc:
                yield of_struct(struct, each)
    shown = {method.full_name for each in known for method in each.methods}
    for each in _older(protocol):
        if name == each.name:
            yield of_protocol(each)
        if name not in shown and any(name == method.full_name for method in each.methods):
            shown.add(name)
            yield of_method(each.method(name), _other(each, protocol))
    if name == amqp100.NAME:
        yield of_messages()
    for section in amqp100.load().sections:
        if name == section.name:
            yield of_section(section)
    if column in data.tables():
        yield of_table(data.tables()[column], protocol)
    lines = of_column(column, protocol)
    if lines:
        yield lines
    if name == "anomalies":
        yield of_anomalies()
    if name in data.anomalies():
        yield of_anomaly(data.anomalies()[name])
    if name in handshakes.load().causes:
        yield of_cause(handshakes.load().causes[name])
    yield from (of_finding(rule) for rule in findings.load() if name == rule.code)
    if name in handshakes.load().notes:
        yield title(name, "note on a handshake") + paragraph(handshakes.load().notes[name])
    for listed in codes.load():
        for value in listed.values:
            if name == value.name.replace("_", "-"):
                yield title(value.name, f"value of {_named(listed)}") + paragraph(value.doc)
    for alert in tls.load().alerts.values():
        if column == alert.name:
            yield title(alert.name, f"alert {alert.number} of TLS") + paragraph(alert.doc)
    for suite in tls.load().suites.values():
        if column.upper() == suite.name.upper():
            yield title(suite.name, f"cipher suite 0x{suite.number:04X} of TLS") + paragraph(tls.usability(suite))
    for each in known:
        for constant in each.constants:
            if name in (constant.name, str(constant.value)):
                yield of_constant(constant, _other(each, protocol))
        for domain in each.domains:
            if name in _names(domain):
                yield of_domain(domain, each, _other(each, protocol))
            for choice in domain.choices:
                if name == choice.name or (is_code(domain) and name == str(choice.value)):
                    yield of_choice(choice, domain, each)
        for wire_type in each.types:
            if name == wire_type.name:
                yield of_type(wire_type, each)


def _columns_of(listed: codes.Codes) -> list[str]:
    """Return the columns that have these values, without their tables."""
    return [column.rpartition(".")[2] for column in listed.columns]


def _named(listed: codes.Codes) -> str:
    """Return the columns that have these values, as text."""
    return ", ".join(listed.columns)


def _names(named: Domain | Struct) -> tuple[str, str]:
    """Return the names of a domain or struct: with its class, and without."""
    return named.name, named.name.rpartition(".")[2]


def _other(each: Protocol, protocol: Protocol) -> str:
    """Return a suffix that names a protocol other than the given one."""
    return "" if each is protocol else f" of {each.name}"


def _known(protocol: Protocol) -> list[Protocol]:
    """Return the given protocol, then the built-in ones; a document of another framing stands alone."""
    held = data.names()
    return [protocol, *(data.load(n) for n in held if n != protocol.name)] if protocol.name in held else [protocol]


def _older(protocol: Protocol) -> list[Protocol]:
    """Return the older versions, which are not described beside a document of another framing."""
    return [data.load(name) for name in documents.OLDER] if protocol.name in data.names() else []


def _whole(table: Table, protocol: Protocol) -> Table:
    """Return the table with the columns of its protocol's fields."""
    for each in _known(protocol):
        if table.methods_of == each.name:
            return table.with_methods(each)
    return table


def names(protocol: Protocol) -> set[str]:
    """Return every name that `describe` knows, except numbers."""
    known = {*data.tables(), *data.anomalies(), *handshakes.load().causes, *handshakes.load().notes}
    known |= {rule.code for rule in findings.load()}
    known |= {each.name for listed in codes.load() for each in listed.values}
    known |= {alert.name for alert in tls.load().alerts.values()}
    known |= {amqp100.NAME, *(section.name for section in amqp100.load().sections)}
    known |= {name for each in _older(protocol) for name in (each.name, *(m.full_name for m in each.methods))}
    for each in _known(protocol):
        known |= {each.name} | {c.name for c in each.classes} | {m.full_name for m in each.methods}
        known |= {c.name for c in each.constants} | {d.name for d in each.domains} | {t.name for t in each.types}
        known |= {c.name for d in each.domains for c in d.choices} | {s.name for s in each.structs if s.doc}
    return known | {c.name for t in data.tables().values() for c in _whole(t, protocol).columns}


def _near(name: str, protocol: Protocol) -> str:
    wanted = name.lower()
    if not any(c.isalpha() for c in wanted):
        return "`amqpscope spec reply-code` lists the numbers that there are"
    known = sorted(names(protocol))
    near = sorted((k for k in known if len(wanted) > 2 and wanted in k), key=len)
    near += [k for k in difflib.get_close_matches(wanted, known, 4, 0.6) if k not in near]
    return f"did you mean {', '.join(near[:6])}?" if near else "`amqpscope spec` lists all names"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


# ------------------------------------------------------------------------------------------------------- protocol


def overview(protocol: Protocol) -> list[str]:
    """Return an overview: protocols, classes with their methods, tables, and other names to ask for."""
    lines = ["Protocols", ""]
    known = _known(protocol)
    counts = {p.name: len({m.full_name for m in p.methods}) for p in known}
    lines += aligned([p.name, f"{len(p.classes)} classes, {counts[p.name]} methods", p.title] for p in known)
    for each in known:
        lines += ["", *class_list(each)]
    for command in dict.fromkeys(t.written_by for t in data.tables().values()):
        tables = [t for t in data.tables().values() if t.written_by == command]
        lines += ["", f"Tables written by {command}", ""]
        lines += aligned([t.name, t.doc] for t in tables)
    lines += ["", "Show one: amqpscope spec NAME", ""]
    lines += aligned(
        [
            ["a class or method", "basic, basic.publish, publish, 60.40"],
            ["a struct or type of AMQP 0-10", "delivery-properties, sequence-set"],
            ["a table or column", "messages, delivery_tag"],
            ["a reply code", "406, precondition-failed; reply-code for all of them"],
            ["an anomaly code", f"tcp-gap, frame-cut; anomalies for all {len(data.anomalies())}"],
            ["a verdict or note on a handshake", "vhost-not-found, heartbeat-off"],
            ["a value of a column", "capture-end, message-credit; ended_by for all of its values"],
            ["an alert of TLS", "unknown_ca, protocol_version"],
            ["a protocol", f"{protocol.name} for its headers, constants and sources"],
            ["an older version of AMQP", ", ".join(documents.OLDER)],
        ]
    )
    return lines


def of_protocol(protocol: Protocol) -> list[str]:
    """Describe a protocol: provenance, headers, classes, constants."""
    lines = title(protocol.name, "protocol") + paragraph(protocol.title)
    lines += ["", "  Sources", *aligned((["-", source] for source in protocol.provenance), 4)]
    if protocol.headers:
        lines += ["", "  Protocol headers", ""]
        lines += aligned(([spelling(h.data), h.version, h.doc] for h in protocol.headers), 4)
    lines += ["", *class_list(protocol), "", "Constants", ""]
    lines += aligned([str(c.value), c.name, closes(c), c.doc] for c in protocol.constants)
    if protocol.types:
        lines += ["", "Types", "", *aligned([code(t), t.name, t.doc] for t in protocol.types)]
    return lines


def of_messages() -> list[str]:
    """Describe AMQP 1.0: provenance, the sections of messages, performatives."""
    known = amqp100.load()
    lines = title(amqp100.NAME, "protocol") + paragraph(known.title)
    lines += ["", "  Sources", *aligned((["-", source] for source in known.provenance), 4)]
    lines += ["", "  Sections of messages", ""]
    lines += aligned(([f"0x{s.code:02x}", s.name, _columns(s)] for s in known.sections), 4)
    performatives = [name for names in known.performatives.values() for name in names.values()]
    return [*lines, "", "  Performatives, which are counted", "", *aligned([["-", ", ".join(performatives)]], 4)]


def of_section(section: amqp100.Section) -> list[str]:
    """Describe a section of AMQP 1.0's messages: its fields, and the columns they go to."""
    lines = title(section.name, f"section 0x{section.code:02x} of messages of {amqp100.NAME}")
    if not section.fields:
        return lines + paragraph(_columns(section))
    return lines + aligned([[field.name, field.type, field.column] for field in section.fields])


def _columns(section: amqp100.Section) -> str:
    """Return the columns that hold a section."""
    if section.kind == "body":
        return "the body: body_kind, body_size, body_hash, body"
    return section.column or ", ".join(field.column for field in section.fields)


def class_list(protocol: Protocol) -> list[str]:
    """Return the classes with their methods, each once for all versions, additions marked."""
    marked = any(m.extension for m in protocol.methods)
    lines = [f"Classes and methods of {protocol.name}" + (" (+ is an addition of RabbitMQ's)" if marked else ""), ""]
    return lines + aligned(
        [str(c.id), c.name, "  ".join(dict.fromkeys(m.name + ("+" if m.extension else "") for m in _ordered(c)))]
        for c in sorted(protocol.classes, key=lambda c: c.id)
    )


def spelling(header: bytes) -> str:
    """Return a protocol header as text: its letters, then its other bytes as numbers."""
    return f"{header[:4].decode('ascii')} {' '.join(str(byte) for byte in header[4:])}"


def _ordered(cls: Class) -> list[Method]:
    return sorted(cls.methods, key=lambda m: m.id)


# ------------------------------------------------------------------------------------------- classes, methods, fields


def of_class(cls: Class, protocol: Protocol) -> list[str]:
    """Describe a class: its methods and content properties."""
    lines = title(cls.name, f"class {cls.id} of {protocol.name}{addition(cls.extension)}") + paragraph(cls.doc) + [""]
    lines += aligned([str(m.id), m.full_name, arrow(m), m.doc] for m in _ordered(cls))
    if cls.fields:
        lines += ["", "  Content properties, in the order of their flags", "", *_field_rows(cls.fields, cls.extension)]
    return lines


def of_method(method: Method, other: str = "") -> list[str]:
    """Describe a method: direction, answers, fields."""
    kind = f"{method.kind} {method.class_id}.{method.id}{other}{addition(method.extension)}"
    lines = title(method.full_name, kind) + paragraph(method.doc) + ([""] if method.doc else [])
    facts = [["Sent by", senders(method)]]
    if method.responses:
        facts.append(["Answered by", answers(method)])
    if method.content:
        facts.append(["Followed by", followers(method)])
    if method.since:
        facts.append(["Since", f"{method.since}{f', version {method.version}' if method.version > 1 else ''}"])
    lines += aligned(facts)
    return [*lines, "", *(_field_rows(method.fields, method.extension) or ["  No fields."])]


def answers(method: Method) -> str:
    """Return the answers to a method."""
    return " or ".join(method.responses) + (f" with {method.result}" if method.result else "")


def followers(method: Method) -> str:
    """Return the frames that follow a method with content."""
    return f"header ({', '.join(method.entries)}) and body" if method.entries else "content header and body"


def arrow(method: Method) -> str:
    """Return the direction as a sign: `C>S`, `C<S`, `C<>S`."""
    return {(True, False): "C>S", (False, True): "C<S"}.get((method.from_client, method.from_server), "C<>S")


def senders(method: Method) -> str:
    """Return the direction in words, with directions that only an extension allows."""
    who = [side for side, sends in (("client", method.from_client), ("server", method.from_server)) if sends]
    words = [side + (" (addition of RabbitMQ)" if side in method.extension_senders else "") for side in who]
    return " and ".join(words)


def _field_rows(fields: tuple[Field, ...], extension: str | None) -> list[str]:
    """Return fields with types and columns; fields that an extension adds are marked."""
    if not fields:
        return []
    rows = [["field", "type", "column", "", "", ""]]
    for item in fields:
        column = [item.column, item.column_type] if item.column else ["-", ""]
        mark = OWNERS.get(item.extension, item.extension) if item.extension and not extension else ""
        rows.append([item.wire_name, type_name(item), *column, mark, words(item)])
    return aligned(rows)


def type_name(field: Field) -> str:
    """Return the wire type of a field; of a struct its name."""
    return field.domain if field.type == "struct" else field.type


def of_struct(struct: Struct, protocol: Protocol) -> list[str]:
    """Describe a struct: where it may stand, its fields."""
    code = f" {struct.class_id}.{struct.code}" if struct.code is not None else ""
    lines = [*title(struct.name, f"struct{code} of {protocol.name}"), *paragraph(struct.doc), ""]
    heads = [m.full_name for m in protocol.methods if struct.name in m.entries]
    results = [m.full_name for m in protocol.methods if struct.name == m.result]
    facts = [["In the header of", ", ".join(heads)]] if heads else []
    facts += [["Answers", ", ".join(results)]] if results else []
    return [*lines, *aligned(facts), *([""] if facts else []), *_field_rows(struct.fields, None)]


def words(field: Field) -> str:
    """Return the description of a field."""
    if field.reserved:
        return field.doc or "reserved"
    when = f" Only where the field before has the value {field.when}." if field.when is not None else ""
    return field.doc + when + (" May be absent." if field.optional else "")


# --------------------------------------------------------------------------------------------------- tables, columns


def of_table(table: Table, protocol: Protocol) -> list[str]:
    """Describe a table: its columns."""
    whole = _whole(table, protocol)
    lines = title(table.name, f"table written by {table.written_by}, {len(whole.columns)} columns")
    lines += [*paragraph(table.doc), ""]
    lines += aligned([c.name, c.type, c.unit or "", c.doc] for c in whole.columns)
    if table.when_read:
        lines += ["", *paragraph(WHEN_READ), ""]
        lines += aligned([c.name, c.type, c.unit or "", c.doc] for c in table.when_read)
    return lines


def of_column(name: str, protocol: Protocol) -> list[str]:
    """Describe a column: the tables that have it, and the fields that it holds; no lines when there is none."""
    rows = []
    for table in data.tables().values():
        whole = _whole(table, protocol)
        rows += [[table.name, c.type, c.unit or "", c.doc] for c in whole.columns + table.when_read if c.name == name]
    if not rows:
        return []
    lines = title(name, "column") + aligned(rows)
    for listed in codes.load():
        if name in _columns_of(listed):
            lines += ["", *paragraph(f"Values of {_named(listed)}: {listed.doc}"), ""]
            lines += aligned(([each.name, each.doc] for each in listed.values), 4)
    methods = [m.full_name for p in _known(protocol) for m in p.methods for f in m.fields if f.column == name]
    if methods:
        lines += ["", "  Argument of", *aligned(([text] for text in [", ".join(methods)]), 4)]
    properties = [c.name for c in protocol.classes for f in c.fields if f.column == name]
    if properties:
        lines += ["", f"  Content property of class {', '.join(properties)}"]
    for each in _known(protocol):
        heads = {name for m in each.methods for name in m.entries}
        structs = [s.name for s in each.structs for f in s.fields if s.name in heads and f.column == name]
        if structs:
            lines += ["", f"  Field of {', '.join(structs)} of {each.name}"]
    return lines
