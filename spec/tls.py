"""TLS as data: records, messages, versions, alerts, suites, extensions (tls.toml)."""

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Named:
    """A number with its name and, where known, its meaning; of a message that only one side sends, the sender."""

    number: int
    name: str
    doc: str = ""
    sender: Literal["client", "server", ""] = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """A cipher suite, with the parameters that its name contains.

    Attributes:
        number: on the wire.
        name: as IANA writes it.
        mode: how records are protected; empty where that is nothing that can be read here.
        key: bytes of the cipher's key.
        tag: bytes of the authentication tag; for `cbc`, of the MAC.
        hash: of the key schedule, as hashlib calls it; TLS 1.0 and 1.1 do not go by it.
        mac: hash of the MAC (`cbc` only).
    """

    number: int
    name: str
    mode: Literal["gcm", "chacha", "ccm", "cbc", ""]
    key: int = 0
    tag: int = 0
    hash: str = "sha256"
    mac: str = ""


@dataclass(frozen=True, slots=True)
class Tls:
    """The whole document, by number."""

    provenance: tuple[str, ...]
    versions: Mapping[int, str]
    records: Mapping[int, Named]
    messages: Mapping[int, Named]
    alerts: Mapping[int, Named]
    extensions: Mapping[int, Named]
    suites: Mapping[int, Suite]

    def number(self, kind: Literal["records", "messages", "extensions", "alerts"], name: str) -> int:
        """Return the number of a name.

        Raises:
            KeyError: there is none of this name.
        """
        entries: Mapping[int, Named] = getattr(self, kind)
        for entry in entries.values():
            if entry.name == name:
                return entry.number
        raise KeyError(name)


@functools.cache
def load() -> Tls:
    """Return the document."""
    document = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return Tls(
        provenance=tuple(document["provenance"]),
        versions={entry["number"]: entry["name"] for entry in document["versions"]},
        records=_named(document["records"]),
        messages=_named(document["messages"]),
        alerts=_named(document["alerts"]),
        extensions=_named(document["extensions"]),
        suites={entry["number"]: suite(**entry) for entry in document["suites"]},
    )


def suite(number: int, name: str) -> Suite:
    """Return a suite with the parameters in its name: `TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA`, `TLS_AES_128_GCM_SHA256`.

    The last part is the hash of the key schedule with AEAD ciphers (RFC 5288 section 3), of the MAC with CBC; with the
    latter the schedule has SHA-256 unless it is SHA-384 (RFC 5246 section 5, RFC 5289 section 3.1).
    """
    found = re.search(r"AES_(128|256)_(GCM|CCM_8|CCM|CBC)(?:_SHA(256|384)?)?$|(CHACHA20)_POLY1305_SHA256$", name)
    if not found:
        return Suite(number, name, "")
    bits, mode, digest, chacha = found.groups()
    if chacha:
        return Suite(number, name, "chacha", 32, 16)
    key, schedule = int(bits) // 8, f"sha{384 if digest == '384' else 256}"
    if mode == "CBC":
        mac = f"sha{digest or 1}"
        return Suite(number, name, "cbc", key, {"sha1": 20, "sha256": 32, "sha384": 48}[mac], schedule, mac)
    return Suite(number, name, "gcm" if mode == "GCM" else "ccm", key, 8 if mode == "CCM_8" else 16, schedule)


def usability(suite: Suite) -> str:
    """Return in words whether a suite can be decrypted."""
    modes = {"gcm": "AES-GCM", "ccm": "AES-CCM", "cbc": "AES-CBC with HMAC", "chacha": "ChaCha20-Poly1305"}
    return f"{modes[suite.mode]}; decrypted with a key log." if suite.mode else "Known by its name; not decrypted."


def _named(entries: list[dict[str, Any]]) -> dict[int, Named]:
    return {entry["number"]: Named(**entry) for entry in entries}
