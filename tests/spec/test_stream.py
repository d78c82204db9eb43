"""The stream protocol as data: every command, layout and code that the broker's reference and source have."""

import pytest

from amqpscope import spec

KEYS = """
    declare-publisher publish publish-confirm publish-error query-publisher-sequence delete-publisher subscribe deliver
    credit store-offset query-offset unsubscribe create delete metadata metadata-update peer-properties sasl-handshake
    sasl-authenticate tune open close heartbeat route partitions consumer-update exchange-command-versions stream-stats
    create-super-stream delete-super-stream resolve-offset-spec"""
NAMES = KEYS.split()
SERVERS = {"publish-confirm", "publish-error", "deliver", "metadata-update", "consumer-update", "tune"}
BOTH = {"close", "heartbeat"}
UNANSWERED = {"publish", "publish-confirm", "publish-error", "deliver", "store-offset", "metadata-update", "heartbeat"}
UNCORRELATED = UNANSWERED | {"credit", "tune"}
PLAIN = {"uint8", "int16", "uint16", "uint32", "int64", "uint64", "string", "bytes", "short-bytes", "boolean"}


@pytest.fixture
def protocol():
    return spec.load("rabbitmq-stream")


def test_commands_1_to_31_by_name_and_sender(protocol):
    for key, name in enumerate(NAMES, 1):
        request = protocol.by_id(0, key)
        assert (request.name, request.full_name, request.version, request.variant) == (name, name, 1, None)
        assert request.from_server == (name in SERVERS | BOTH)
        assert request.from_client == (name not in SERVERS)
    assert {m.id for m in protocol.methods} == set(range(1, 32))


def test_answers(protocol):
    for key, name in enumerate(NAMES, 1):
        answers = [m for m in protocol.methods if m.class_id == 1 and m.id == key]
        assert (not answers) == (name in UNANSWERED)
        request = protocol.by_id(0, key)
        for answer in answers:
            assert answer.from_client == request.from_server or name in BOTH
        for method in [request, *answers]:
            if method.variant is None:
                assert ("correlation_id" in [f.name for f in method.fields]) == (name not in UNCORRELATED)
        coded = {"metadata", "tune"}
        assert all("response_code" in [f.name for f in a.fields] for a in answers) == (name not in coded or not answers)


def test_versions(protocol):
    assert {(m.name, m.version) for m in protocol.methods if m.version > 1} == {("publish", 2), ("deliver", 2)}
    assert [f.name for f in protocol.method("deliver-2").fields][:2] == ["subscription_id", "committed_chunk_id"]


def test_response_codes_1_to_21(protocol):
    codes = [c for c in protocol.constants if c.kind == "response"]
    assert [c.value for c in codes] == list(range(1, 22))
    assert codes[18].name == "no-offset"


def test_types_are_known(protocol):
    structs = {s.name: s for s in protocol.structs}
    maps = {"map", "long-map", "rest"}
    for method in protocol.methods:
        for field in method.fields:
            item = field.type.strip("[]")
            assert item in PLAIN | maps | structs.keys(), field
    for struct in structs.values():
        assert {f.type.strip("[]") for f in struct.fields} <= PLAIN


def test_secrets_are_marked(protocol):
    secret = {f.column for m in protocol.methods for f in m.fields if f.secret}
    assert secret == {"sasl_data", "challenge"}


def test_every_field_and_constant_is_explained(protocol):
    assert all(f.doc for m in protocol.methods for f in m.fields if not f.reserved)
    assert all(item.doc for item in [*protocol.constants, *protocol.domains, *protocol.methods])
    assert protocol.provenance
