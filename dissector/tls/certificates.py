"""Read names, issuer and validity of a certificate. Nothing is verified.

This reads only as much of DER as that takes. Sources: X.690 section 8 (basic encoding), RFC 5280 section 4
(certificates), 4.2.1.6 (alternative names), 4.1.2.5 (times).
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from amqpscope.dissector.tls.messages import NAMES, MalformedError, printable

SEQUENCE, SET, INTEGER, OBJECT, BYTES, BOOLEAN, TIME, LONG_TIME = 0x30, 0x31, 0x02, 0x06, 0x04, 0x01, 0x17, 0x18
VERSION, EXTENSIONS = 0xA0, 0xA3
DNS_NAME, ADDRESS = 0x82, 0x87
COMMON_NAME, ORGANIZATION, ALTERNATIVES = b"\x55\x04\x03", b"\x55\x04\x0a", b"\x55\x1d\x11"
"""Object identifiers 2.5.4.3, 2.5.4.10 and 2.5.29.17."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Names of subject and issuer (common name, else organisation), alternative names, times in s since the epoch."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    begins_s: int
    ends_s: int


def read(der: bytes) -> Certificate:
    """Parse a certificate.

    Raises:
        MalformedError: it is not a certificate.
    """
    [(_, whole)] = [*_items(der)][:1] or [(0, b"")]
    fields = [*_items(next(_items(whole), (0, b""))[1])]
    if fields and fields[0][0] == VERSION:
        del fields[0]
    if len(fields) < 6 or fields[2][0] != SEQUENCE:  # serial number, algorithm, issuer, validity, subject, key
        raise MalformedError
    times = [_time(kind, value) for kind, value in _items(fields[3][1])]
    if len(times) != 2:
        raise MalformedError
    extensions = next((value for kind, value in fields[6:] if kind == EXTENSIONS), b"")
    return Certificate(_name(fields[4][1]), _name(fields[2][1]), tuple(_alternatives(extensions)), *times)


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of consecutive items."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise MalformedError
        tag, length = data[at], data[at + 1]
        at += 2
        if length >= 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4 or at + count > len(data):
                raise MalformedError
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + length > len(data):
            raise MalformedError
        yield tag, data[at : at + length]
        at += length


def _name(data: bytes) -> str:
    found: dict[bytes, str] = {}
    for _, group in _items(data):
        for _, pair in _items(group):
            items = [*_items(pair)]
            if len(items) == 2 and items[0][1] in (COMMON_NAME, ORGANIZATION):
                coding = "utf-16-be" if items[1][0] == 0x1E else "utf-8"  # BMPString
                found[items[0][1]] = printable(items[1][1].decode(coding, "replace").encode())
    return found.get(COMMON_NAME) or found.get(ORGANIZATION) or ""


def _alternatives(data: bytes) -> Iterator[str]:
    for _, listed in _items(data):
        for _, extension in _items(listed):
            items = [*_items(extension)]
            if len(items) < 2 or items[0][1] != ALTERNATIVES:
                continue
            names = next(_items(items[-1][1]), (0, b""))[1]
            for (kind, value), _ in zip(_items(names), range(NAMES), strict=False):
                if kind == DNS_NAME:
                    yield printable(value)
                elif kind == ADDRESS and len(value) in (4, 16):
                    yield str(ipaddress.ip_address(value))


def _time(kind: int, value: bytes) -> int:
    """Parse a time. UTCTime has two digits of the year: from 50 on, they are of the last century."""
    text = value.decode("ascii", "replace").removesuffix("Z")
    if kind == TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    try:
        return int(datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise MalformedError from None
