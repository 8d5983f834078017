"""Certificates for API servers that a test starts, by the authority that a site's certificates come from."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from halimede.access.certificate_authority import Pair, new_authority, new_server, write_bundle, write_key

DAYS = 30


def key_pair(private: Path, public: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    private.write_bytes(write_key(key))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))


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
    _pair: Pair

    @classmethod
    def new(cls) -> Authority:
        pair = new_authority(DAYS)
        return cls(write_bundle([pair.certificate]).decode(), pair)

    def server(self, folder: Path, *names: str) -> tuple[Path, Path]:
        made = new_server(self._pair, [*names, "localhost"], DAYS)
        (folder / "server.pem").write_bytes(write_bundle([made.certificate]))
        (folder / "server.key").write_bytes(write_key(made.key))
        return folder / "server.pem", folder / "server.key"
