"""The site of the system on one machine: access rights on its broker, in files below its home.

Passwords are the default: they exclude clients of other systems and other users. Certificates (TLS) also protect
messages and identities from a process that listens on loopback or takes the port. No secret is on a command line:
processes receive folders.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from halimede.access import files
from halimede.access.mosquitto import listener_lines
from halimede.access.passwords import make_passwords
from halimede.access.site import Principal, Site
from halimede.topic import Role
from services.broker import ANONYMOUS

#: users in addition to GM and the nodes: the user of the system, and one of each other kind for trials
OPERATOR, CONSUMER, CAMERA = "admin", "viewer", "cam0"
#: Mosquitto's own tools read their options from files of these names
TOOLS = ("mosquitto_sub", "mosquitto_pub", "mosquitto_rr")
TLS_OPTIONS = (("--cafile", "ca.crt"), ("--cert", "tls.crt"), ("--key", "tls.key"))
LOGIN_OPTIONS = (("-u", "username"), ("-P", "password"))


class Security(StrEnum):
    """How the broker of a system is protected."""

    PASSWORDS = "passwords"
    TLS = "tls"
    INSECURE = "insecure"

    @property
    def description(self) -> str:
        """The text for the user."""
        return {
            Security.PASSWORDS: "passwords and access rules",
            Security.TLS: "TLS: certificates and access rules",
            Security.INSECURE: "INSECURE: any client of this port has all rights",
        }[self]


class LocalSite:
    """The files of one system's users, below ``home``."""

    def __init__(self, home: Path, nodes: Sequence[str], security: Security) -> None:
        self.security = security
        self.folder = home / "site"
        self.clients = home / "clients"
        self._nodes = nodes

    @property
    def secure(self) -> bool:
        """Whether the broker speaks TLS."""
        return self.security is Security.TLS

    @property
    def access(self) -> Sequence[str]:
        """The lines of the broker's configuration on access rights."""
        if self.security is Security.INSECURE:
            return ANONYMOUS
        return listener_lines(self.folder, tls=self.secure)

    @property
    def operator(self) -> Path | None:
        """The folder of the system's user; None without credentials, as below."""
        return self._of(Principal(Role.OPERATOR, OPERATOR))

    @property
    def gm(self) -> Path | None:
        """The folder of the global manager."""
        return self._of(Principal(Role.GM))

    def node(self, name: str) -> Path | None:
        """Return the folder of a node, with those of its LC and of its workers."""
        own = self._of(Principal(Role.LC, name))
        return own.parent if own else None

    def make(self) -> None:
        """Make missing files, keep existing ones, and remove nodes that are no longer run."""
        if self.security is Security.INSECURE:
            return
        site = Site(nodes=list(self._nodes), operators=[OPERATOR], consumers=[CONSUMER], cameras=[CAMERA])
        if self.secure:
            from halimede.access.certs import make_certificates  # noqa: PLC0415 - passwords need no such package

            make_certificates(site, self.folder)
        else:
            make_passwords(site, self.folder)

    def write_clients(self, host: str, port: int) -> None:
        """Write options files for Mosquitto's tools, so that they act as the operator."""
        lines = [f"-h {host}", f"-p {port}"]
        if self.operator and self.secure:
            lines += [f"{option} {self.operator / name}" for option, name in TLS_OPTIONS]
        elif self.operator:
            lines += [f"{option} {(self.operator / name).read_text().strip()}" for option, name in LOGIN_OPTIONS]
        files.make_folder(self.clients)
        for tool in TOOLS:
            files.write(self.clients / tool, "\n".join(lines) + "\n", files.SECRET)

    def forget_clients(self) -> None:
        """Remove these files: another process that later uses the port must not receive a password."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.clients)

    def _of(self, principal: Principal) -> Path | None:
        return None if self.security is Security.INSECURE else self.folder / principal.folder
