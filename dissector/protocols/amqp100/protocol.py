"""AMQP 1.0: its handshake is judged, its performatives are counted, and that is all."""

from amqpscope.dissector.protocols.amqp100.frames import Amqp10
from amqpscope.dissector.protocols.registry import ProtocolPlugin

PROTOCOLS = (
    ProtocolPlugin(
        "amqp-1.0",
        headers=(b"AMQP\0\1\0\0", b"AMQP\2\1\0\0", b"AMQP\3\1\0\0"),  # AMQP itself, TLS, SASL (part 2, 2.2; part 5)
        answers=True,
        ports=(5672,),
        tls_ports=(5671,),
        stage=Amqp10,
        has_rows=False,
    ),
)
