"""Read the user's name in a login; nothing else of a login goes any further."""

import re
from dataclasses import replace

import numpy as np

from amqpscope.dissector.fields.arrow import picked
from amqpscope.dissector.fields.decoding import decode
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.spec.model import Protocol


class Logins:
    """Reads the names in the secret argument `column` of a method."""

    def __init__(self, protocol: Protocol, full_name: str, column: str, compiled: bool) -> None:
        self.method = next(n for n, m in enumerate(protocol.methods) if m.full_name == full_name)
        self.plan = Plan.of_methods(_opened(protocol, full_name), only=(column,))
        self.column = column
        self.compiled = compiled

    def users(self, mechanisms: list[str | None], offset: Ints, length: Ints, data: Bytes) -> list[str | None]:
        """Return the user names in logins by these mechanisms, whose arguments lie here; None where there is none."""
        count = len(mechanisms)
        methods, cut = np.full(count, self.method), np.ones(count, np.uint8)
        decoded = decode(self.plan, data, offset, length, methods, cut, self.compiled)
        responses = picked(decoded.columns[self.column], np.arange(count))
        return [user_name(m, response) if response else None for m, response in zip(mechanisms, responses, strict=True)]


def user_name(mechanism: str | None, response: str) -> str | None:
    """Return the user's name in a first SASL response, and nothing else of it.

    RFC 4616 for PLAIN; AMQPLAIN is a field table; RabbitMQ's RABBIT-CR-DEMO has the password in its second response.
    """
    name: str | None = None
    if mechanism == "PLAIN":
        parts = response.split("\0")
        name = parts[1] if len(parts) == 3 and parts[2] else None
    elif mechanism == "AMQPLAIN":
        data = response.encode()  # its lengths count bytes, and the password may follow the name
        found = re.search(rb"\x05LOGINS\0\0\0([\0-\x7f])", data)
        name = data[found.end() : found.end() + found[1][0]].decode(errors="ignore") if found else None
    elif mechanism == "RABBIT-CR-DEMO":
        name = response
    # A name with control characters comes from a wrong length, and may contain the password.
    return name[: limits.TEXT] if name and name.isprintable() else None


def _opened(protocol: Protocol, full_name: str) -> Protocol:
    """Return the protocol with the fields of one method only, none of them secret."""
    classes = tuple(
        replace(
            k,
            methods=tuple(
                replace(m, fields=tuple(replace(a, secret=False) for a in m.fields if m.full_name == full_name))
                for m in k.methods
            ),
        )
        for k in protocol.classes
    )
    return replace(protocol, classes=classes)
