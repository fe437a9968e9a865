"""An authority that signs certificates for servers of a test."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Certificates:
    """A certificate authority; only clients that trust it accept its certificates."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("an authority of a test")
        made = _builder(self._name, self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._authority = made.sign(self._key, hashes.SHA256())

    def server(self, host: str) -> ssl.SSLContext:
        """The context of a server with this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(_name(host), self._name, key.public_key()).add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False
        )
        path = self._directory / f"{host}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.write_bytes(_pem(made.sign(self._key, hashes.SHA256())) + private)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def trust(self) -> ssl.SSLContext:
        """The context of a client that trusts this authority."""
        return ssl.create_default_context(cadata=_pem(self._authority).decode())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: Any) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
