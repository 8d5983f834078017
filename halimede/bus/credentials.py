"""Credentials of a client: a folder of small files, as Kubernetes mounts a secret and `halimede certs` writes it.

``ca.crt``: the authority of the broker's certificate (without it: the system's authorities). ``tls.crt`` and
``tls.key``: the client's own certificate. ``username`` and ``password``: for a broker that requires them. The files are
read again for every connection, so that new ones apply from the next connection on, without a restart.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from halimede.errors import InvalidFieldError, cause_of

#: the correction of an unusable folder
FIX = "give the folder of one user that `halimede certs` made, or mount one with ca.crt, tls.crt, tls.key or password"
#: the authority, and the client's certificate and key
TLS_FILES = ("ca.crt", "tls.crt", "tls.key")
#: a certificate in a file, which may have text before it and further certificates
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
#: most bytes of a user name or a password (MQTT v5, 1.5.4)
MOST_LOGIN = 65_535


#: the validity in the DER form of a certificate: two times, as RFC 5280, 4.1.2.5, has them before 2050 and after
VALIDITY = re.compile(rb"\x30[\x1e-\x22](?:\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)(?:\x17\x0d(\d{12}Z)|\x18\x0f(\d{14}Z))")

#: user name and password, None for a missing one
Login = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Credentials:
    """A folder with the credentials of one user of the broker.

    ``variable``: the environment variable that errors name.
    """

    folder: Path
    variable: str = "HALIMEDE_CREDENTIALS"

    @classmethod
    def at(cls, folder: str | Path, variable: str = "HALIMEDE_CREDENTIALS") -> Credentials:
        """Return the credentials in a folder, which may begin with ``~``, the home of a user, as in a shell.

        Raises InvalidFieldError if there is no such user. ``check`` examines the folder.
        """
        try:
            return cls(Path(folder).expanduser().absolute(), variable)
        except RuntimeError:
            raise InvalidFieldError(variable, str(folder), "there is no such user: write a folder") from None

    def check(self, *, secure: bool) -> None:
        """Check the folder and its files. ``secure``: the broker's address is for TLS, as files for TLS require.

        Raises InvalidFieldError for files that are missing, unreadable or do not fit.
        """
        try:
            is_folder = self.folder.is_dir()
            files = [name for name in (*TLS_FILES, "password") if (self.folder / name).exists()]
        except OSError as error:  # not readable, or not a valid file name
            raise self._error(f"{error.strerror}: {FIX}") from None
        if not is_folder:
            raise self._error(f"there is no such folder: {FIX}")
        if not files:
            raise self._error(f"it holds no credentials: {FIX}")
        if ("tls.crt" in files) != ("tls.key" in files):
            raise self._error("tls.crt and tls.key go together")
        if not secure and any(name in TLS_FILES for name in files):
            raise self._error("it is for TLS: write the broker's address as mqtts://host:port")
        self.login()
        if secure:
            self.context()

    def login(self) -> Login:
        """Return user name and password, None for a missing file. Raises InvalidFieldError for an unreadable one."""
        return self._text("username"), self._text("password")

    def context(self) -> ssl.SSLContext:
        """Return a TLS context from the current files. Raises InvalidFieldError if they are not usable together."""
        authority, chain, key = (self.folder / name for name in TLS_FILES)
        try:
            context = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
            if chain.exists():
                context.load_cert_chain(chain, key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "reason", None) or cause_of(error)
            raise self._error(f"its files do not fit ({reason}): {FIX}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def certificate_end(self) -> float | None:
        """Return the Unix time at which the client's own certificate ends; None: there is none, or it is unreadable."""
        try:
            pem = PEM.search((self.folder / "tls.crt").read_text())
            times = VALIDITY.search(ssl.PEM_cert_to_DER_cert(pem[0])) if pem else None
        except (OSError, ValueError):
            return None
        if times is None:
            return None
        short, long = times.groups()
        text = f"20{short.decode()}" if short else long.decode()
        return datetime.strptime(f"{text}+0000", "%Y%m%d%H%M%SZ%z").timestamp()

    def _text(self, name: str) -> str | None:
        """Return the text of a file, None if it does not exist. Raises InvalidFieldError."""
        try:
            with (self.folder / name).open("rb") as file:
                raw = file.read(MOST_LOGIN + 1)
            if len(raw) > MOST_LOGIN:
                raise self._error(f"write at most {MOST_LOGIN} bytes: MQTT takes no more", name)
            return raw.decode().strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise self._error(f"make it a readable text: {error}", name) from None

    def _error(self, fix: str, name: str = "") -> InvalidFieldError:
        """Return the error of the folder, or of the file ``name`` in it."""
        return InvalidFieldError(self.variable, str(self.folder / name), fix)
