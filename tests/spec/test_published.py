"""Our data against the published documents, where they are at hand: every difference is listed here with its reason."""

from pathlib import Path

import pytest
from pamqp import commands

from amqpscope import spec
from tests.oracles import SPECIFICATIONS, needs

SHARED = Path(__file__).parents[3] / "shared" / "specs"

# What we have, or have otherwise, and why.
NEWER = {
    "class access": "0-8's tickets, which RabbitMQ still grants",
    "access.request": "0-8's tickets",
    "access.request-ok": "0-8's tickets",
    "connection.blocked": "RabbitMQ 3.2",
    "connection.unblocked": "RabbitMQ 3.2",
    "connection.update-secret": "RabbitMQ 3.8",
    "connection.update-secret-ok": "RabbitMQ 3.8",
    "constant no-route": "the reply code that RabbitMQ puts into basic.return",
}
OURS = {
    "basic.recover": "we name its answer, recover-ok",
    "class basic": "the last property is `reserved` there, cluster-id for RabbitMQ and here",
}
RABBITMQ = {
    "class confirm": "publisher confirms",
    "confirm.select": "publisher confirms",
    "confirm.select-ok": "publisher confirms",
    "exchange.bind": "bindings between exchanges",
    "exchange.bind-ok": "bindings between exchanges",
    "exchange.unbind": "bindings between exchanges",
    "exchange.unbind-ok": "bindings between exchanges",
    "exchange.declare": "auto-delete and internal are reserved bits in the final draft",
    "basic.nack": "negative acknowledgement",
    "basic.ack": "sent by the broker for confirms",
    "basic.cancel": "sent by the broker when a queue goes away",
    "basic.cancel-ok": "sent by the client, then",
}
QPID = {
    "exchange.bound": "Qpid only",
    "exchange.bound-ok": "Qpid only",
    "basic.recover-async": "Qpid swaps names: recover is 100",
    "basic.recover": "Qpid swaps names: recover is 100",
    "basic.recover-ok": "Qpid swaps names: recover-sync-ok",
    "basic.recover-sync": "Qpid swaps names: 110",
    "basic.recover-sync-ok": "Qpid swaps names: 111",
}

DOCUMENTS = [
    (SPECIFICATIONS / "0-9-1/amqp0-9-1.stripped.xml", NEWER | OURS | RABBITMQ),
    (SPECIFICATIONS / "0-9-1-rabbit/amqp0-9-1.stripped.extended.xml", NEWER | OURS),
    (SPECIFICATIONS / "0-9-1-qpid/amqp0-9-1.stripped.xml", NEWER | OURS | RABBITMQ | QPID),
    (SHARED / "amqp0-9-1.final-draft-5.xml", NEWER | OURS | RABBITMQ),
    (SHARED / "amqp0-9-1.rabbitmq-extended.stripped.xml", NEWER | OURS),
    (SHARED / "amqp0-9-1.anyevent-fixed.xml", NEWER | OURS),
]


def wire(fields):
    """What fields are on the wire; the names of reserved ones differ freely."""
    return [("reserved" if f.reserved else f.name, f.type) for f in fields]


def facts(protocol):
    """Everything comparable that a document says, by what it says it of."""
    stated = {f"constant {c.name}": (c.value, c.kind) for c in protocol.constants}
    stated |= {f"class {c.name}": (c.id, wire(c.fields)) for c in protocol.classes}
    for m in protocol.methods:
        senders = m.from_client, m.from_server
        stated[m.full_name] = (m.class_id, m.id, wire(m.fields), m.synchronous, m.responses, m.content, *senders)
    return stated


def differences(ours, theirs):
    ours, theirs = facts(ours), facts(theirs)
    return {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}


@pytest.mark.parametrize(
    ("path", "expected"), [pytest.param(*each, id=each[0].name, marks=needs(each[0])) for each in DOCUMENTS]
)
def test_equal_but_for_the_list(path, expected):
    assert differences(spec.load(), spec.load_xml(path)) == expected.keys()


OLDER = [
    ("amqp-0-8", SPECIFICATIONS / "0-8/amqp0-8.stripped.xml"),
    ("amqp-0-9", SPECIFICATIONS / "0-9/amqp0-9.stripped.xml"),
    ("amqp-0-10-draft", SHARED / "amqp-transitional.0-10.xml"),
]


@pytest.mark.parametrize(("name", "path"), [pytest.param(*each, id=each[0], marks=needs(each[1])) for each in OLDER])
def test_older_versions_are_equal_but_for_what_rabbitmq_adds(name, path):
    """RabbitMQ speaks its additions after headers of 0-8 and 0-9, too; types of values in tables are not held here."""
    ours, theirs = facts(spec.load(name)), facts(spec.load_xml(path))
    added = RABBITMQ.keys() | NEWER.keys() | {"basic.recover-ok", "queue.unbind", "queue.unbind-ok"}
    for key, stated in theirs.items():
        if key.startswith("constant field-table"):
            continue
        if key in added:  # senders that RabbitMQ allows besides
            assert ours[key][:-2] == stated[:-2]
            assert all(own >= their for own, their in zip(ours[key][-2:], stated[-2:], strict=True))
        else:
            assert ours[key] == stated, key
    newer = {f"constant {reply}" for reply in ("no-consumers", "precondition-failed", "unexpected-frame")}
    assert ours.keys() - theirs.keys() <= newer | (set() if name == "amqp-0-10-draft" else added)


def facts_010(protocol):
    """Everything that a document of the final 0-10 says."""
    stated = facts(protocol)
    stated |= {f"type {t.name}": (t.code, t.fixed_width, t.variable_width) for t in protocol.types}
    stated |= {f"domain {d.name}": (d.type, [(c.name, c.value) for c in d.choices]) for d in protocol.domains}
    for s in protocol.structs:
        stated[f"struct {s.name}"] = s.class_id, s.code, s.size, s.pack, wire(s.fields)
    for m in protocol.methods:
        stated[m.full_name] += m.kind, m.result, m.entries, [f.domain for f in m.fields]
    return stated


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(path, expected, id=path.name, marks=needs(path))
        for path, expected in (
            (SHARED / "amqp.0-10-qpid-errata.stripped.xml", set()),
            (SPECIFICATIONS / "0-10-qpid/amqp.0-10-qpid-errata.stripped.xml", set()),
            (SHARED / "amqp.0-10.stripped.xml", {"struct dtx.xid"}),  # its size and code are among the errata
            (SPECIFICATIONS / "0-10/amqp.0-10.stripped.xml", {"struct dtx.xid"}),
        )
    ],
)
def test_0_10_is_equal_but_for_the_errata(path, expected):
    ours, theirs = facts_010(spec.load("amqp-0-10")), facts_010(spec.load_xml(path))
    assert {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)} == expected


def test_marks_of_extensions_are_the_differences():
    ours = spec.load()
    marked = {f"constant {c.name}" for c in ours.constants if c.extension}
    marked |= {f"class {c.name}" for c in ours.classes if c.extension}
    for m in ours.methods:
        if m.extension or m.extension_senders or any(f.extension for f in m.fields):
            marked.add(m.full_name)
    assert marked == (NEWER | RABBITMQ).keys()


@pytest.mark.parametrize("name", ["0-8", "0-8-qpid", "0-9", "0-9-qpid", "0-10", "0-10-qpid"])
@needs(SPECIFICATIONS)
def test_all_published_versions_load(name):
    (path,) = (SPECIFICATIONS / name).glob("*.xml")
    protocol = spec.load_xml(path)
    assert protocol.name == "amqp-" + name.removesuffix("-qpid")
    assert protocol.method("connection.start").from_server


def test_pamqp_agrees():
    """An independent library has the same ids, number and types of fields, answers and content properties."""
    assert len(commands.INDEX_MAPPING) == len(spec.load().methods) - 2  # it has left class access out
    for index, theirs in commands.INDEX_MAPPING.items():
        ours = spec.load().by_id(index >> 16, index & 0xFFFF)
        assert [f.type for f in ours.fields] == [theirs.amqp_type(a) for a in theirs.attributes()], ours.full_name
        answers = [name.replace("-", "").lower() for name in ours.responses]
        assert answers == [name.lower() for name in theirs.valid_responses], ours.full_name
        assert theirs.synchronous == bool(ours.responses), ours.full_name
    theirs = commands.Basic.Properties
    names = [name.removeprefix("message_") for name in theirs.attributes()]
    ours = next(c for c in spec.load().classes if c.name == "basic")
    assert [f.name.removeprefix("message_") for f in ours.fields] == names
    assert [f.type for f in ours.fields] == [theirs.amqp_type(a) for a in theirs.attributes()]
