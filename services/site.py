"""The site of ``halimede up``: the users of its broker with their credentials and rights, as files below its home.

Passwords are the default: they exclude clients of other systems and other users. Certificates (TLS) also protect
messages and identities from a process that listens on loopback or takes the port. No secret is on a command line: each
process gets the path of a folder with its credentials.
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

#: names of the users besides GM and the nodes: an operator, and for trials a consumer and a camera
OPERATOR, CONSUMER, CAMERA = "admin", "viewer", "cam0"
#: tools of Mosquitto: each reads its options from a file of its name
TOOLS = ("mosquitto_sub", "mosquitto_pub", "mosquitto_rr")
#: options of these tools, and the file in a user's folder with the value (of TLS: the path of the file is the value)
TLS_OPTIONS = (("--cafile", "ca.crt"), ("--cert", "tls.crt"), ("--key", "tls.key"))
LOGIN_OPTIONS = (("-u", "username"), ("-P", "password"))


class Security(StrEnum):
    """How the broker is protected: by passwords, by TLS certificates, or not at all."""

    PASSWORDS = "passwords"
    TLS = "tls"
    INSECURE = "insecure"

    @property
    def description(self) -> str:
        """What the user reads about it when the system is up."""
        return {
            Security.PASSWORDS: "passwords and access rules",
            Security.TLS: "TLS: certificates and access rules",
            Security.INSECURE: "INSECURE: any client of this port has all rights",
        }[self]


class LocalSite:
    """The credentials of the users of one system: GM, the nodes, an operator, a consumer and a camera."""

    def __init__(self, home: Path, nodes: Sequence[str], security: Security) -> None:
        self.security = security
        #: the folder of the users' credentials
        self.folder = home / "site"
        #: the folder of options files for Mosquitto's tools
        self.clients = home / "clients"
        #: names of the nodes
        self._nodes = nodes

    @property
    def secure(self) -> bool:
        """Whether the broker speaks TLS."""
        return self.security is Security.TLS

    @property
    def access(self) -> Sequence[str]:
        """The lines of Mosquitto's configuration on access rights, for ``MosquittoProcess``."""
        if self.security is Security.INSECURE:
            return ANONYMOUS
        return listener_lines(self.folder, tls=self.secure)

    @property
    def operator(self) -> Path | None:
        """The folder with the operator's credentials; None: the broker requires none."""
        return self._of(Principal(Role.OPERATOR, OPERATOR))

    @property
    def gm(self) -> Path | None:
        """The folder with the global manager's credentials; None: the broker requires none."""
        return self._of(Principal(Role.GM))

    def node(self, name: str) -> Path | None:
        """Return the folder with the folders of a node's LC and workers; None: the broker requires no credentials."""
        own = self._of(Principal(Role.LC, name))
        return own.parent if own else None

    def make(self) -> None:
        """Make missing files, keep existing ones, and remove those of nodes that are no longer run. Raises OSError."""
        if self.security is Security.INSECURE:
            return
        site = Site(nodes=list(self._nodes), operators=[OPERATOR], consumers=[CONSUMER], cameras=[CAMERA])
        if self.secure:
            from halimede.access.certs import make_certificates  # noqa: PLC0415 - passwords need no such package

            make_certificates(site, self.folder)
        else:
            make_passwords(site, self.folder)

    def write_clients(self, host: str, port: int) -> None:
        """Write options files with which Mosquitto's tools connect to ``host`` as the operator. Raises OSError."""
        lines = [f"-h {host}", f"-p {port}"]
        if self.operator and self.secure:
            lines += [f"{option} {self.operator / name}" for option, name in TLS_OPTIONS]
        elif self.operator:
            lines += [f"{option} {(self.operator / name).read_text().strip()}" for option, name in LOGIN_OPTIONS]
        files.make_folder(self.clients)
        for tool in TOOLS:
            files.write(self.clients / tool, "\n".join(lines) + "\n", files.SECRET)

    def forget_clients(self) -> None:
        """Remove the files of ``write_clients``: a process that takes the port later must not get the password."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.clients)

    def _of(self, principal: Principal) -> Path | None:
        """Return the folder of a user; None: the broker requires no credentials."""
        return None if self.security is Security.INSECURE else self.folder / principal.folder
