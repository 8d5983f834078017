"""Credentials of a client: a folder of small files, as Kubernetes mounts a secret and `halimede certs` writes it.

``ca.crt``: the authority of the broker's certificate (without it: the system's authorities). ``tls.crt`` and
``tls.key``: the client's own certificate. ``username`` and ``password``: for a broker that requires them. They are read
again for every connection, so that new ones apply from the next connection on, without a restart.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from halimede.errors import InvalidFieldError, cause_of

FIX = "give the folder of one user that `halimede certs` made, or mount one with ca.crt, tls.crt, tls.key or password"
TLS_FILES = ("ca.crt", "tls.crt", "tls.key")
#: most bytes of a user name or a password (MQTT v5, 1.5.4)
MOST_LOGIN = 65_535


@dataclass(frozen=True, slots=True)
class Credentials:
    """A folder with the credentials of one user of the broker. ``variable`` is what errors name."""

    folder: Path
    variable: str = "HALIMEDE_CREDENTIALS"

    @classmethod
    def at(cls, folder: str | Path, variable: str = "HALIMEDE_CREDENTIALS") -> Credentials:
        """Return the credentials in a folder; ``~`` is the user's home. Raises InvalidFieldError."""
        try:
            return cls(Path(folder).expanduser().absolute(), variable)
        except RuntimeError:
            raise InvalidFieldError(variable, str(folder), "there is no such user: write a folder") from None

    def check(self, *, secure: bool) -> None:
        """Raise InvalidFieldError for an unusable folder, or one with TLS files if the address is without TLS."""
        try:
            there = self.folder.is_dir()
            files = [name for name in (*TLS_FILES, "password") if (self.folder / name).exists()]
        except OSError as error:  # not readable, or not a valid file name
            raise InvalidFieldError(self.variable, str(self.folder), f"{error.strerror}: {FIX}") from None
        if not there:
            raise InvalidFieldError(self.variable, str(self.folder), f"there is no such folder: {FIX}")
        if not files:
            raise InvalidFieldError(self.variable, str(self.folder), f"it holds no credentials: {FIX}")
        if ("tls.crt" in files) != ("tls.key" in files):
            raise InvalidFieldError(self.variable, str(self.folder), "tls.crt and tls.key go together")
        if not secure and any(name in TLS_FILES for name in files):
            raise InvalidFieldError(
                self.variable, str(self.folder), "it is for TLS: write the broker's address as mqtts://host:port"
            )
        self.login()
        if secure:
            self.context()

    def login(self) -> tuple[str | None, str | None]:
        """Return user name and password, None if missing."""
        return self._text("username"), self._text("password")

    def context(self) -> ssl.SSLContext:
        """Return a TLS context from the current files. Raises InvalidFieldError."""
        authority, chain, key = (self.folder / name for name in TLS_FILES)
        try:
            context = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
            if chain.exists():
                context.load_cert_chain(chain, key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "reason", None) or cause_of(error)
            raise InvalidFieldError(
                self.variable, str(self.folder), f"its files do not fit ({reason}): {FIX}"
            ) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def _text(self, name: str) -> str | None:
        try:
            with (self.folder / name).open("rb") as file:
                raw = file.read(MOST_LOGIN + 1)
            if len(raw) > MOST_LOGIN:
                raise InvalidFieldError(
                    self.variable,
                    str(self.folder / name),
                    f"write at most {MOST_LOGIN} bytes: MQTT takes no more",
                )
            return raw.decode().strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidFieldError(
                self.variable, str(self.folder / name), f"make it a readable text: {error}"
            ) from None
