"""Throw-away certificate authorities and certificates for TLS scenarios, and contexts that use them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "broker.example"


class Authority:
    """A certificate authority of its own, with its files in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(f"{name} CA")
        self.certificate = self._sign(self._subject, self._key.public_key(), 365, authority=True)
        self.file = self._write(f"{name}-ca.pem", self.certificate)

    def issue(self, name: str, days: int = 365, begun: int = 1, names: tuple[str, ...] = (NAME,)) -> Path:
        """A certificate with its key in one file, valid from `begun` days ago for so many days."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(name), key.public_key(), days, begun=begun, names=names)
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, *form)
        return self._write(f"{self.name}-{name}-{days}-{begun}.pem", certificate, private)

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int, begun: int = 1, authority: bool = False,
        names: tuple[str, ...] = (),
    ) -> x509.Certificate:  # fmt: skip
        start = datetime.now(UTC) - timedelta(days=begun)
        builder = x509.CertificateBuilder(self._subject, subject, key, x509.random_serial_number())
        builder = builder.not_valid_before(start).not_valid_after(start + timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        if names:
            alternatives = [x509.DNSName(each) for each in names] + [x509.IPAddress(ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, name: str, certificate: x509.Certificate, private: bytes = b"") -> Path:
        path = self.folder / name
        path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        return path


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def context(
    trusted: Authority | None, keylog: Path | None, version: str | None = None, suites: str | None = None,
    own: Path | None = None,
) -> ssl.SSLContext:  # fmt: skip
    """A client's: `version` such as 1.2 is the only one; None of trusted: any certificate is taken."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = trusted is not None
    made.verify_mode = ssl.CERT_REQUIRED if trusted else ssl.CERT_NONE
    if trusted:
        made.load_verify_locations(trusted.file)
    if keylog:
        made.keylog_filename = str(keylog)
    if version:
        made.minimum_version = made.maximum_version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[
            version
        ]
    if suites:
        made.set_ciphers(suites)
    if own:
        made.load_cert_chain(own)
    return made
