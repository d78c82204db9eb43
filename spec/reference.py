"""The reference page: `python -m amqpscope.spec.reference` writes it from the data.

`--check` says whether it is stale. The page is in the repository, so this is for an editable install.
"""

import argparse
import difflib
import sys
from pathlib import Path

from amqpscope.spec import codes, data, describe, describe_codes, findings, handshakes, tls
from amqpscope.spec.model import Class, Column, Field, Protocol, Table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
_DIFF_LINES = 40


def page() -> str:
    """Return the whole page as Markdown."""
    protocols = [data.load(name) for name in data.names()]
    lines = [
        "# Reference",
        "",
        "Written from the data in `spec/` by `python -m amqpscope.spec.reference`; change it there.",
        "`amqpscope spec NAME` shows the same in a terminal.",
        "",
    ]
    lines += ["- [Tables](#tables): every column", "- [Values of columns](#values-of-columns): what codes in them mean"]
    lines += ["- [Anomaly codes](#anomaly-codes)", "- [Findings](#findings): what `amqpscope summary` says is wrong"]
    lines += ["- [Handshakes](#handshakes): their states, and what the codes of `amqpscope handshakes` mean"]
    for protocol in protocols:
        lines += [f"- [{protocol.name}](#{protocol.name}): methods, content properties, reply codes, protocol headers"]
    lines += ["- [TLS](#tls): versions, alerts, cipher suites", ""]
    lines += _tables(protocols)
    lines += _codes()
    lines += _anomalies()
    lines += _findings()
    lines += _handshakes()
    for protocol in protocols:
        lines += _protocol(protocol)
    lines += _tls()
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it.

    Returns:
        0; 1 when the page is stale and `--check` was given.
    """
    parser = argparse.ArgumentParser(prog="python -m amqpscope.spec.reference", description="Write docs/reference.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the page is stale")
    return publish(PAGE, page(), parser.parse_args(arguments).check, "python -m amqpscope.spec.reference")


def publish(path: Path, wanted: str, check: bool, command: str) -> int:
    """Write a file that is made from data, or check it, and say which command writes it.

    Returns:
        0; 1 when the file is stale and was to be checked.
    """
    if not check:
        path.parent.mkdir(exist_ok=True)
        path.write_text(wanted, encoding="utf-8")
        return 0
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    if found == wanted:
        return 0
    name = f"docs/{path.name}"
    diff = difflib.unified_diff(found.splitlines(), wanted.splitlines(), name, "as it must be", lineterm="")
    shown = [line for line, _ in zip(diff, range(_DIFF_LINES), strict=False)]
    sys.stderr.write("\n".join([*shown, f"{name} is stale: run {command}"]) + "\n")
    return 1


def _protocol(protocol: Protocol) -> list[str]:
    lines = [f"## {protocol.name}", "", f"{protocol.title}. Sources:", ""]
    lines += [f"- {source}" for source in protocol.provenance]
    marked = any(m.extension for m in protocol.methods)
    words = "**+** marks additions of RabbitMQ's to the published protocol. " if marked else ""
    lines += ["", f"{words}Ids are class.method.", ""]
    for cls in sorted(protocol.classes, key=lambda c: c.id):
        lines += _class(cls)
    lines += _structs(protocol)
    replies = [c for c in protocol.constants if describe_codes.is_reply(c)]
    if replies:
        rows = [[str(c.value), c.name + _mark(c.extension), describe_codes.closes(c), c.doc] for c in replies]
        lines += ["### Reply codes", "", *_grid(["code", "name", "", ""], rows)]
    lines += ["### Other constants", ""]
    others = [c for c in protocol.constants if c not in replies]
    lines += _grid(["value", "name", ""], [[str(c.value), c.name, c.doc] for c in others])
    if not protocol.headers:
        return lines
    lines += ["### Protocol headers", ""]
    rows = [[f"`{describe.spelling(h.data)}`", h.version, h.doc] for h in protocol.headers]
    return lines + _grid(["bytes", "version", ""], rows)


def _structs(protocol: Protocol) -> list[str]:
    """Return the structs, enumerations and types of AMQP 0-10."""
    lines = []
    for struct in protocol.structs:
        if struct.doc:
            code = "" if struct.code is None else f" ({struct.class_id}.{struct.code})"
            lines += [f"### Struct {struct.name}{code}", "", struct.doc, "", *_fields(struct.fields, None)]
    for domain in protocol.domains:
        if domain.choices:
            rows = [[str(c.value), c.name, c.doc] for c in domain.choices]
            lines += [f"### Values of {domain.name}", "", domain.doc, "", *_grid(["value", "name", ""], rows)]
    if protocol.types:
        rows = [[describe_codes.code(t), t.name, t.doc] for t in protocol.types]
        lines += ["### Types", "", *_grid(["code", "name", ""], rows)]
    return lines


def _class(cls: Class) -> list[str]:
    lines = [f"### {cls.name} ({cls.id}){_mark(cls.extension)}", "", cls.doc, ""]
    for method in sorted(cls.methods, key=lambda m: m.id):
        facts = [f"{cls.id}.{method.id}", f"sent by {describe.senders(method)}"]
        facts += [f"answered by {describe.answers(method)}"] if method.responses else []
        facts += [f"followed by {describe.followers(method)}"] if method.content else []
        facts += [f"version {method.version}"] if method.version > 1 else []
        facts += [f"since {method.since}"] if method.since and not method.variant else []
        lines += [f"#### {method.full_name}{_mark(method.extension)}", "", f"{'; '.join(facts)}. {method.doc}", ""]
        lines += _fields(method.fields, method.extension)
    if cls.fields:
        lines += [f"#### Content properties of {cls.name}", ""]
        lines += _fields(cls.fields, cls.extension)
    return lines


def _fields(fields: tuple[Field, ...], extension: str | None) -> list[str]:
    rows = []
    for item in fields:
        column = f"`{item.column}` {item.column_type}" if item.column else ""
        mark = "" if extension else _mark(item.extension)
        rows.append([item.wire_name + mark, describe.type_name(item), column, describe.words(item)])
    return _grid(["field", "type", "column", ""], rows) if rows else []


def _tables(protocols: list[Protocol]) -> list[str]:
    lines = ["## Tables", ""]
    for table in data.tables().values():
        lines += [f"### {table.name}", "", f"Written by `amqpscope {table.written_by}`. {table.doc}", ""]
        lines += _columns(table)
        if table.when_read:
            lines += [
                describe.WHEN_READ,
                "",
                *_grid_of(table.when_read),
            ]
        for protocol in protocols:
            if table.methods_of == protocol.name:
                count = len(table.columns)
                lines += [f"One column for each method argument of {protocol.name}, null on all other rows:", ""]
                lines += _columns(table.with_methods(protocol), count)
    return lines


def _columns(table: Table, start: int = 0) -> list[str]:
    return _grid_of(table.columns[start:])


def _grid_of(columns: tuple[Column, ...]) -> list[str]:
    rows = [[f"`{c.name}`", c.type, c.unit or "", c.doc] for c in columns]
    return _grid(["column", "type", "unit", ""], rows)


def _codes() -> list[str]:
    lines = ["## Values of columns", ""]
    for listed in codes.load():
        columns = ", ".join(f"`{column}`" for column in listed.columns)
        lines += [f"### {columns}", "", listed.doc, ""]
        lines += _grid(["column", "value", ""], [[columns, f"`{code.name}`", code.doc] for code in listed.values])
    return lines


def _anomalies() -> list[str]:
    rows = [[f"`{a.code}`", a.severity, a.doc] for a in data.anomalies().values()]
    return ["## Anomaly codes", "", *_grid(["code", "severity", ""], rows)]


def _findings() -> list[str]:
    rows = [[f"`{r.code}`", r.severity, r.party, describe_codes.named(r.text)] for r in findings.load()]
    lead = "What `amqpscope summary` says, in its order (spec/findings.toml); capitals stand for values of a capture."
    return ["## Findings", "", lead, "", *_grid(["code", "severity", "party", "says"], rows)]


def _handshakes() -> list[str]:
    known = handshakes.load()
    lines = ["## Handshakes", ""]
    for machine in known.machines.values():
        lines += [f"### Handshake: {machine.title}", ""]
        lines += [
            "A side may send ahead: its message waits until the handshake reaches a state that expects it.",
            "",
        ]
        lines += ["```mermaid", *diagram(machine), "```", ""]
        rows = [[s.name, s.stage, _due(s), s.doc] for s in machine.states.values()]
        lines += _grid(["state", "stage", "what must come next", ""], rows)
    parts = (
        ("Outcomes of handshakes", "`handshake_outcome` of `connections`.", known.outcomes),
        ("Endings", "`ending` of `connections`: how connections that came up ended.", known.endings),
    )
    for title, text, rules in parts:
        lines += [f"### {title}", "", text, ""]
        for cause in dict.fromkeys(rule.cause for rule in rules):
            lines += [f"#### `{cause.code}`", "", f"*{cause.severity}*: {cause.summary}", ""]
            lines += [f"Means: {cause.meaning}", "", f"Do: {cause.remedy}", ""]
    lines += ["### Notes", "", "Codes in `handshake_notes` of `connections`.", ""]
    lines += [*(f"- `{code}`: {doc}" for code, doc in known.notes.items()), ""]
    lines += ["### First bytes", "", "Kinds of the first bytes that a side sends.", ""]
    rows = [[o.kind, f"`{o.pattern.pattern.decode('latin-1')}`", o.doc] for o in known.openings]
    return lines + _grid(["kind", "regular expression over bytes", ""], rows)


def _tls() -> list[str]:
    known = tls.load()
    lines = ["## TLS", "", "Sources:", "", *(f"- {source}" for source in known.provenance), ""]
    lines += [f"Known versions: {', '.join(known.versions.values())}; TLS 1.1 to 1.3 can be decrypted.", ""]
    lines += [
        "### Alerts",
        "",
        *_grid(["number", "name", ""], [[str(a.number), a.name, a.doc] for a in known.alerts.values()]),
    ]
    rows = [[f"0x{suite.number:04X}", suite.name, tls.usability(suite)] for suite in known.suites.values()]
    return [*lines, "### Cipher suites", "", *_grid(["number", "name", ""], rows)]


def diagram(machine: handshakes.Machine) -> list[str]:
    """Return a state machine as a Mermaid diagram; the solid arrow's text says which side sends what."""
    lines = ["stateDiagram-v2", f"    [*] --> {_node(machine.start)}"]
    lines += [f'    state "{s.name} ({s.stage})" as {_node(s.name)}' for s in machine.states.values()]
    for (before, side, event), after in machine.transitions.items():
        lines.append(f"    {_node(before)} --> {_node(after)}: {side} {event}")
    return lines


def _due(state: handshakes.State) -> str:
    return f"the {state.turn}: {state.due}" if state.due else ""


def _node(name: str) -> str:
    return name.replace("-", "_")


def _grid(head: list[str], rows: list[list[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *escaped]
    return [*("| " + " | ".join(row) + " |" for row in lines), ""]


def _mark(extension: str | None) -> str:
    return " **+**" if extension else ""


if __name__ == "__main__":
    sys.exit(main())
