"""Who may use a server: clients with its bearer token, over TLS, for REST and gRPC. Both are off by default."""

from __future__ import annotations

import hmac
import ssl
from dataclasses import dataclass
from pathlib import Path

from halimede.errors import InvalidFieldError, cause_of

#: most bytes of a token or of a TLS file
MOST = 65_536
#: the least characters of a token
LEAST_TOKEN = 16
#: what a client without the token is told
UNAUTHORIZED = "show the server's token: Authorization: Bearer TOKEN"
#: the mode bit of a file that every user of the machine may read
READABLE_BY_ALL = 0o004


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """Who may use a server.

    Attributes:
        token: what clients must send; empty: nothing.
        certificate: the server's certificate chain in PEM; empty: no TLS.
        key: its key in PEM.
        tls: both for an HTTP server; None: no TLS.

    """

    token: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    tls: ssl.SSLContext | None = None

    def is_admitted(self, authorization: str) -> bool:
        """Whether a client with this ``Authorization`` header (in gRPC: metadata) may use the server."""
        return not self.token or hmac.compare_digest(authorization.encode(), b"Bearer " + self.token)


#: admits all clients
OPEN_ACCESS = ServerAccess()


def read_access(token_file: str, certificate: str, key: str, token: str = "") -> ServerAccess:
    """Return the access that files define.

    ``token_file``, ``certificate``, ``key``: paths of the files; empty: none. ``token``: the token itself, which counts
    without a token file. Raises InvalidFieldError, which names the option or SERVE_TOKEN.
    """
    if bool(certificate) != bool(key):
        raise InvalidFieldError("--tls-cert", certificate, "give --tls-cert and --tls-key, or neither")
    shown = _content("--token-file", token_file, secret=True).strip() if token_file else token.strip().encode()
    field = "--token-file" if token_file else "SERVE_TOKEN"
    if (token_file or token) and not (len(shown) >= LEAST_TOKEN and shown.isascii() and len(shown.split()) == 1):
        fix = f"write a token of {LEAST_TOKEN} or more ASCII characters without spaces, as `openssl rand -hex 32` does"
        raise InvalidFieldError(field, token_file or "***", fix)
    if not certificate:
        return ServerAccess(shown)
    chain, private = _content("--tls-cert", certificate), _content("--tls-key", key, secret=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or cause_of(error)
        fix = f"give a certificate and its key as PEM, the key without a password ({reason})"
        raise InvalidFieldError("--tls-cert", certificate, fix) from None
    return ServerAccess(shown, chain, private, context)


def _content(option: str, name: str, *, secret: bool = False) -> bytes:
    """Return the content of an option's file. ``secret``: not all users may read it. Raises InvalidFieldError."""
    path = Path(name)
    try:
        if secret and path.stat().st_mode & READABLE_BY_ALL:
            raise InvalidFieldError(option, name, f"every user of this machine may read it: chmod o= {name}")
        with path.open("rb") as file:
            content = file.read(MOST + 1)
    except OSError as error:
        raise InvalidFieldError(option, name, f"give a file that can be read: {error.strerror}") from None
    if not content.strip():
        raise InvalidFieldError(option, name, "it is empty")
    if len(content) > MOST:
        raise InvalidFieldError(option, name, f"it has more than {MOST} bytes")
    return content
