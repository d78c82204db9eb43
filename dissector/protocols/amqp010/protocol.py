"""AMQP 0-10: known by its header (§4.3); nothing of it is decoded."""

from amqpscope.dissector.protocols.registry import ProtocolPlugin

PROTOCOL = ProtocolPlugin("amqp-0-10", headers=(b"AMQP\1\1\0\x0a",), ports=(5672,), tls_ports=(5671,))
