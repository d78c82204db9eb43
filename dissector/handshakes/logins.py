"""Read the user's name in a login; nothing else of a login goes any further."""

import functools
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from amqpscope.dissector.fields.arrow import picked
from amqpscope.dissector.fields.decoding import decode
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.spec.model import Protocol

Reader = Callable[[str | None, str], str | None]
"""Returns the user's name in a SASL response, by the mechanism; None where there is none."""
CRAM_MD5 = re.compile(r"(.+) [0-9a-f]{32}", re.DOTALL)
"""RFC 2195: the name and a digest."""
DIGEST_MD5 = re.compile(r'(?:.*,)?\s*username="([^"\\]*)".*', re.DOTALL)
"""RFC 2831: directives, one of which is the name."""
CHALLENGES = ("CRAM-MD5", "DIGEST-MD5")
"""Mechanisms of which `challenged_name` knows the answer to the broker's challenge."""


class Logins:
    """Reads the names in the secret argument `column` of a method."""

    def __init__(
        self, protocol: Protocol, full_name: str, column: str, compiled: bool, read: Reader | None = None
    ) -> None:
        self.read = read or user_name
        self.method = next(n for n, m in enumerate(protocol.methods) if m.full_name == full_name)
        self.plan = _plan(protocol, full_name, column)
        self.column = column
        self.compiled = compiled

    def users(self, mechanisms: list[str | None], offset: Ints, length: Ints, data: Bytes) -> list[str | None]:
        """Return the user names in logins by these mechanisms, whose arguments lie here; None where there is none."""
        count = len(mechanisms)
        methods, cut = np.full(count, self.method), np.ones(count, np.uint8)
        decoded = decode(self.plan, data, offset, length, methods, cut, self.compiled)
        responses = picked(decoded.columns[self.column], np.arange(count))
        return [self.read(m, response) if response else None for m, response in zip(mechanisms, responses, strict=True)]


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
    return _shown(name)


def challenged_name(_: str | None, response: str) -> str | None:
    """Return the user's name in the answer to a challenge of one of the mechanisms in `CHALLENGES`."""
    found = CRAM_MD5.fullmatch(response) or DIGEST_MD5.fullmatch(response)
    return _shown(found[1]) if found else None


def _shown(name: str | None) -> str | None:
    """Return a name; None for one with control characters, which comes from a wrong length and may hold a password."""
    return name[: limits.TEXT] if name and name.isprintable() else None


@functools.lru_cache(maxsize=32)
def _plan(protocol: Protocol, full_name: str, column: str) -> Plan:
    """Return a plan for the protocol with the fields of one method only, none of them secret."""
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
    return Plan.of_methods(replace(protocol, classes=classes), only=(column,))
