"""Compare a user's document with the built-in protocol, method by method, in lines of plain text."""

import difflib

from amqpscope.spec import describe
from amqpscope.spec.layout import aligned
from amqpscope.spec.model import Field, Method, Protocol
from amqpscope.spec.user import left_out


def lines(ours: Protocol, user: Protocol, merged: Protocol) -> list[str]:
    """Return an overview of a user's document, and what it adds and replaces in the built-in protocol.

    Args:
        ours: the protocol held as data.
        user: the user's document as it was read.
        merged: the one laid over the other, from which columns are named.
    """
    lines = [user.title, "", *describe.class_list(user), "", f"Laid over {ours.name}", ""]
    known = {(m.class_id, m.id): m for m in ours.methods}
    unusable = {(m.class_id, m.id) for m in left_out(user)}
    rows, same, covered = [], 0, set()
    for theirs in user.methods:
        key = theirs.class_id, theirs.id
        mine = known.get(key)
        if key in unusable:
            rows.append(["leaves out", _label(theirs), "types of another protocol: " + _layout(theirs.fields)])
            continue
        covered.add(key)
        if mine is None:
            rows.append(["adds", _label(theirs), _layout(merged.by_id(*key).fields)])
        elif _wire(mine) != _wire(theirs):
            rows.append(["replaces", _label(theirs), _changes(mine, merged.by_id(*key))])
        elif mine.full_name != theirs.full_name:
            rows.append(["renames", _label(theirs), f"ours: {mine.full_name}"])
        else:
            same += 1
    lines += aligned(rows)
    lines += [""] if rows else []
    lines += aligned(
        [
            ["same fields", f"{same} methods"],
            ["only ours", f"{len(ours.methods) - len(covered & known.keys())} methods, which stay"],
            *_constants(ours, user),
        ]
    )
    new = [f"{name} {kind}" for name, kind in merged.method_columns().items() if name not in ours.method_columns()]
    return [*lines, "", "New columns of amqp091_frames", "", *aligned([[", ".join(new)]])] if new else lines


def _constants(ours: Protocol, user: Protocol) -> list[list[str]]:
    known = {c.name: c for c in ours.constants}
    other = [c for c in user.constants if c.name not in known or known[c.name].value != c.value]
    return [["new constants", ", ".join(f"{c.name} {c.value}" for c in other)]] if other else []


def _label(method: Method) -> str:
    return f"{method.full_name} ({method.class_id}.{method.id})"


def _wire(method: Method) -> list[tuple[str | None, str]]:
    return [(None if item.reserved else item.name, item.type) for item in method.fields]


def _changes(mine: Method, theirs: Method) -> str:
    """Return the changes of fields as text, such as `ticket short for reserved-1 short`."""
    parts = []
    for what, a, b, c, d in difflib.SequenceMatcher(None, _wire(mine), _wire(theirs), autojunk=False).get_opcodes():
        old, new = _layout(mine.fields[a:b]), _layout(theirs.fields[c:d])
        words = {"replace": f"{new} for {old}", "insert": f"with {new}", "delete": f"without {old}"}
        parts += [words[what]] if what in words else []
    return "; ".join(parts)


def _layout(fields: tuple[Field, ...]) -> str:
    return ", ".join(_field(item) for item in fields) or "no fields"


def _field(item: Field) -> str:
    moved = f" in column {item.column}" if item.column not in (None, item.name) else ""
    return f"{item.wire_name} {item.type}{moved}"
