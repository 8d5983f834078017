"""Certificates of a site's own authority: made, checked, read and written as PEM. ``certs.py`` keeps the files.

Elliptic curve P-256 and SHA-256: small, fast on edge machines, and supported by every TLS 1.2 stack. Only this module
imports the `cryptography` package.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: days for which an authority is valid
CA_DAYS = 3650
#: a certificate is valid from a day before it was made, because clocks of edge machines may be wrong
VALID_BEFORE = timedelta(days=1)
#: a certificate is renewed by the next command when this share of its time, or at most this time, is left
RENEW_SHARE, MAX_RENEW_TIME = 1 / 3, timedelta(days=30)
#: the longest common name that the standard allows
MAX_NAME_CHARACTERS = 64
#: a certificate of any kind, and a private key on P-256
Certificate = x509.Certificate
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its private key."""

    certificate: Certificate
    key: Key


def new_authority(days: int = CA_DAYS) -> Pair:
    """Return a new authority, valid for ``days``. It may sign certificates, but not those of other authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    # a unique name: while one authority replaces another, both are trusted
    name = _name(f"halimede site {secrets.token_hex(4)}")
    builder = _builder(name, name, key, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(_usage(is_authority=True), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def new_client(authority: Pair, username: str, days: int) -> Pair:
    """Return a certificate, valid for ``days``, with which a user authenticates at the broker.

    ``username``: the common name, at most ``MAX_NAME_CHARACTERS``; ValueError for a longer one.
    """
    return _leaf(authority, username, days, ExtendedKeyUsageOID.CLIENT_AUTH, None)


def new_server(authority: Pair, hosts: Sequence[str], days: int) -> Pair:
    """Return a broker's certificate, valid for ``days``, for host names and IP addresses."""
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    return _leaf(authority, "halimede broker", days, ExtendedKeyUsageOID.SERVER_AUTH, names)


def is_current(certificate: Certificate, *, name: str = "", hosts: Sequence[str] = ()) -> bool:
    """Whether a certificate has the name or the hosts, and is not due for renewal; ``signer`` tells who signed it.

    ``name``: the user of a client's certificate; ``hosts``, without a name: those of a broker's.
    """
    end, begin = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    if end - datetime.now(UTC) <= min((end - begin - VALID_BEFORE) * RENEW_SHARE, MAX_RENEW_TIME):
        return False
    if name:
        return common_name(certificate) == name
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return set(names) == {_host(host) for host in hosts}


def common_name(certificate: Certificate) -> str:
    """Return the common name of a certificate, empty if it has none."""
    attributes = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attributes[0].value) if attributes else ""


def signer(certificate: Certificate, bundle: Sequence[Certificate]) -> Certificate | None:
    """Return the authority of a bundle that signed a certificate, None if none of them did."""
    for authority in bundle:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return authority
    return None


def is_key_of(key: Key, certificate: Certificate) -> bool:
    """Whether a private key belongs to a certificate."""
    return key.public_key() == certificate.public_key()


def write_bundle(bundle: Sequence[Certificate]) -> bytes:
    """Return certificates as PEM, in their order."""
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in bundle)


def write_key(key: Key) -> bytes:
    """Return a key as PEM (PKCS #8), without a password: the file's mode protects it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_bundle(pem: bytes) -> list[Certificate]:
    """Return the certificates in a PEM file; empty if there are none."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def read_key(pem: bytes) -> Key | None:
    """Return the key in a PEM file, None if it has no key of the supported type."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _leaf(
    authority: Pair, name: str, days: int, purpose: x509.ObjectIdentifier, hosts: x509.SubjectAlternativeName | None
) -> Pair:
    """Return a certificate for a user or a broker, signed by the authority; ``hosts``: those of a broker, else None."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), authority.certificate.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(is_authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    identifier = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
    )
    if hosts:
        builder = builder.add_extension(hosts, critical=False)
    return Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(subject: x509.Name, issuer: x509.Name, key: Key, days: int) -> x509.CertificateBuilder:
    """Return the fields that all certificates have, to be completed and signed."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID_BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    """Return what the key may do: sign certificates, or only authenticate."""
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    """Return an IP address or else a host name as certificates have it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
