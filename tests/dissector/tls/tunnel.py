"""Connections in TLS, as OpenSSL writes them: what two ends say goes through Python's `ssl`, in memory."""

import contextlib
import ssl
import tempfile
import warnings
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.dissector.wire import CLIENT, SERVER, Turn

NAME = "broker.example"
VERSIONS = {"1.1": ssl.TLSVersion.TLSv1_1, "1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
KINDS = (
    ("1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"), ("1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"), ("1.2", "ECDHE-ECDSA-AES128-CCM"), ("1.2", "ECDHE-ECDSA-AES128-CCM8"),
    ("1.2", "ECDHE-ECDSA-AES128-SHA"), ("1.2", "ECDHE-ECDSA-AES128-SHA256"), ("1.2", "ECDHE-ECDSA-AES256-SHA384"),
    ("1.1", "ECDHE-ECDSA-AES256-SHA"), ("1.3", ""),
)  # fmt: skip
"""Versions and suites. OpenSSL agrees with itself on encrypt-then-MAC where there is CBC."""


@cache
def certificate() -> tuple[Path, bytes]:
    """A certificate with its key in a file, and in DER."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 7)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=20_000))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = Path(tempfile.mkdtemp()) / "broker.pem"
    path.write_bytes(key.private_bytes(*form) + made.public_bytes(serialization.Encoding.PEM))
    return path, made.public_bytes(serialization.Encoding.DER)


class Tunnel:
    """Two ends with their handshake done; `opening` is what they sent for it, `keylog` their secrets.

    With `earlier` the session of that tunnel is resumed.
    """

    def __init__(
        self, version: str, suites: str, protocols: tuple[str, ...] = (), curve: str = "",
        earlier: "Tunnel | None" = None,
    ) -> None:  # fmt: skip
        path = Path(tempfile.mkdtemp()) / "keylog"
        self.ends: list[ssl.SSLObject] = []
        self.out = []
        self.contexts: list[ssl.SSLContext] = []
        for side, kind in ((CLIENT, ssl.PROTOCOL_TLS_CLIENT), (SERVER, ssl.PROTOCOL_TLS_SERVER)):
            context = earlier.contexts[side] if earlier else ssl.SSLContext(kind)
            self.contexts.append(context)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = context.maximum_version = VERSIONS[version]
            if suites:
                context.set_ciphers(f"{suites}:@SECLEVEL=0")
            if protocols:
                context.set_alpn_protocols(list(protocols))
            if side == CLIENT:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.keylog_filename = str(path)
            else:
                context.load_cert_chain(certificate()[0])
                if curve:
                    context.set_ecdh_curve(curve)
            self.out += [(ssl.MemoryBIO(), ssl.MemoryBIO())]
            name = NAME if side == CLIENT else None
            session = earlier.ends[side].session if earlier and side == CLIENT else None
            ends = {"server_side": side == SERVER, "server_hostname": name, "session": session}
            self.ends += [context.wrap_bio(*self.out[side], **ends)]
        self.opening: list[Turn] = []
        for _ in range(4):
            for side in (CLIENT, SERVER):
                with contextlib.suppress(ssl.SSLWantReadError):
                    self.ends[side].do_handshake()
                self._pass(side)
        self.keylog = path.read_bytes()

    def _pass(self, side: int) -> bytes:
        sent = self.out[side][1].read()
        if sent:
            self.out[1 - side][0].write(sent)
            self.opening.append((side, sent))
        return sent

    def send(self, side: int, data: bytes) -> bytes:
        """The records of these bytes."""
        self.ends[side].write(data)
        return self._pass(side)

    def close(self, side: int) -> bytes:
        """The goodbye of a side."""
        with contextlib.suppress(ssl.SSLError):
            self.ends[side].unwrap()
        return self._pass(side)


@cache
def sealed(version: str, suites: str, turns: tuple[Turn, ...]) -> tuple[list[Turn], list[Turn], bytes]:
    """The handshake, then these turns as they are in TLS, each in as many records as OpenSSL likes; and the key log."""
    tunnel = Tunnel(version, suites)
    opening = list(tunnel.opening)
    return opening, [(side, tunnel.send(side, data)) for side, data in turns], tunnel.keylog


def written(keylog: bytes) -> str:
    """A file with these secrets."""
    path = Path(tempfile.mkdtemp()) / "keylog"
    path.write_bytes(keylog)
    return str(path)
