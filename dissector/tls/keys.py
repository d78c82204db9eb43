"""Derive keys from secrets: the key schedules of TLS 1.2 and 1.3, from the secrets of a key log on.

Sources: RFC 5246 sections 5 (pseudorandom function) and 6.3 (keys), RFC 4346 section 5 (that of TLS 1.1), RFC 8446
sections 7.1 to 7.3, RFC 5869 (HKDF).
"""

import hmac
from typing import NamedTuple

from amqpscope.dissector.tls import ciphers
from amqpscope.dissector.tls.ciphers import Cipher
from amqpscope.spec.tls import Suite

TLS_1_3, TLS_1_2, TLS_1_1 = 0x0304, 0x0303, 0x0302
FIXED = {"gcm": 4, "ccm": 4, "chacha": 12, "cbc": 0}
"""Bytes of the nonce that come from the keys in TLS 1.2; RFC 5288, 6655, 7905."""


def prf(hash_name: str, secret: bytes, label: bytes, seed: bytes, count: int) -> bytes:
    """Return `count` bytes of the pseudorandom function of TLS 1.2."""
    seed = label + seed
    out, a = b"", seed
    while len(out) < count:
        a = hmac.digest(secret, a, hash_name)
        out += hmac.digest(secret, a + seed, hash_name)
    return out[:count]


def old_prf(secret: bytes, label: bytes, seed: bytes, count: int) -> bytes:
    """Return what `prf` does, for TLS 1.0 and 1.1."""
    half = (len(secret) + 1) // 2
    first, second = prf("md5", secret[:half], label, seed, count), prf("sha1", secret[-half:], label, seed, count)
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


def expand(hash_name: str, secret: bytes, label: bytes, count: int) -> bytes:
    """Run HKDF-Expand-Label with an empty context."""
    label = b"tls13 " + label
    info = count.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    out, block = b"", b""
    while len(out) < count:
        block = hmac.digest(secret, block + info + bytes([len(out) // max(len(block), 1) + 1]), hash_name)
        out += block
    return out[:count]


class Master(NamedTuple):
    """Inputs of the keys of one direction up to TLS 1.2, besides the cipher suite."""

    secret: bytes
    client_random: bytes
    server_random: bytes
    version: int
    then_mac: bool
    from_client: bool


def of_master(master: Master, suite: Suite) -> Cipher:
    """Return the cipher of one direction up to TLS 1.2, from the master secret."""
    mac = suite.tag if suite.mode == "cbc" else 0
    iv = FIXED[suite.mode]
    count, seed = 2 * (mac + suite.key + iv), master.server_random + master.client_random
    if master.version < TLS_1_2:
        block = old_prf(master.secret, b"key expansion", seed, count)
    else:
        block = prf(suite.hash, master.secret, b"key expansion", seed, count)
    parts, at = [], 0
    for length in (mac, mac, suite.key, suite.key, iv, iv):
        parts.append(block[at : at + length])
        at += length
    mac_key, key, nonce = parts[0 if master.from_client else 1 :: 2]
    return ciphers.of_12(suite, mac_key, key, nonce, master.then_mac)


def of_traffic(secret: bytes, suite: Suite) -> Cipher:
    """Return the cipher of one direction in TLS 1.3, from its traffic secret."""
    return ciphers.of_13(suite, expand(suite.hash, secret, b"key", suite.key), expand(suite.hash, secret, b"iv", 12))


def following(secret: bytes, suite: Suite) -> bytes:
    """Return the traffic secret after a key update."""
    return expand(suite.hash, secret, b"traffic upd", len(secret))
