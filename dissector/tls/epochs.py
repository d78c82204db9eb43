"""Derive the keys of a connection, in their order, from the secrets of its key log."""

from amqpscope.dissector.tls import keys
from amqpscope.dissector.tls.keylog import MASTER
from amqpscope.dissector.tls.messages import KNOWN, ClientHello, ServerHello
from amqpscope.dissector.tls.opener import Epoch, of_master, of_secret
from amqpscope.spec.tls import Suite

LABELS = {
    True: (b"CLIENT_HANDSHAKE_TRAFFIC_SECRET", b"CLIENT_TRAFFIC_SECRET_0"),
    False: (b"SERVER_HANDSHAKE_TRAFFIC_SECRET", b"SERVER_TRAFFIC_SECRET_0"),
}
"""Labels of the client's and the server's secrets in TLS 1.3, in their order; early data is not read."""


def epochs_of(
    hello: ClientHello, chosen: ServerHello | None, from_client: bool, known: dict[bytes, bytes]
) -> list[Epoch]:
    """Return the keys of one direction, given both hellos and the known secrets; none if a secret is missing."""
    if chosen and chosen.retry:
        return []
    suite = KNOWN.suites.get(chosen.suite) if chosen else None
    if chosen and chosen.version < keys.TLS_1_3:
        master = known.get(MASTER)
        if not master or suite is None or not suite.mode or chosen.version < keys.TLS_1_1:
            return []
        of = keys.Master(master, hello.random, chosen.random, chosen.version, chosen.then_mac, from_client)
        return [of_master(of, suite)]
    # Where the server's choice was lost, the length of the secrets leaves few suites.
    return [
        of_secret(known[label], each, carries)
        for label, carries in zip(LABELS[from_client], (False, True), strict=True)
        if label in known
        for each in ([suite] if suite else _suites(known[label]))
        if each.mode and _digest(each) == len(known[label])
    ]


def _suites(secret: bytes) -> list[Suite]:
    return [suite for suite in KNOWN.suites.values() if suite.number >> 8 == 0x13 and _digest(suite) == len(secret)]


def _digest(suite: Suite) -> int:
    return 48 if suite.hash == "sha384" else 32
