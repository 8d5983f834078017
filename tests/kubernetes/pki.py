"""Certificates for servers that a test starts."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_pair(private: Path, public: Path) -> None:
    """Write a key pair."""
    key = ec.generate_private_key(ec.SECP256R1())
    private.write_bytes(_pem(key))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=30))
    )


def server_context(folder: Path) -> tuple[ssl.SSLContext, str]:
    """Return what a server on loopback shows, and the authority that its clients trust (PEM)."""
    authority = Authority.new()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.server(folder, "127.0.0.1"))
    return context, authority.pem


@dataclass(frozen=True)
class Authority:
    """Signs the certificates of one test."""

    pem: str
    _key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls) -> Authority:
        """Make one."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder("test authority", "test authority", key.public_key())
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
        return cls(certificate.public_bytes(serialization.Encoding.PEM).decode(), key)

    def server(self, folder: Path, address: str) -> tuple[Path, Path]:
        """Write a server's certificate and key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName("localhost")]
        builder = _builder("test server", "test authority", key.public_key())
        certificate = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(
            self._key, hashes.SHA256()
        )
        (folder / "server.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / "server.key").write_bytes(_pem(key))
        return folder / "server.pem", folder / "server.key"
