"""Credentials of a node for the broker (``NodeCredentials``): one user for the LC, and one for each role of workers.

The LC has more rights than its workers. So each worker receives its role's folder, and none of them the LC's or the
whole node's. All processes belong to one user of the machine: this separates what a worker receives, not what a hostile
worker could read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from halimede.access.site import role_name
from halimede.bus.credentials import TLS_FILES, Credentials
from halimede.errors import InvalidFieldError
from halimede.topic import Role as User
from services.lc.supervisor.process import Role

#: the user of each role of workers
USERS: dict[Role, User] = {"edge": User.EDGE, "cloud": User.CLOUD}
#: the option of the LC with the folder
OPTION = "--credentials"


@dataclass(frozen=True, slots=True)
class NodeCredentials:
    """A node's folder of a site, such as ``site/nodes/edge0``."""

    folder: Path

    @property
    def own(self) -> Credentials:
        """The credentials of the LC."""
        return Credentials(self.folder / role_name(User.LC), OPTION)

    def worker(self, role: Role) -> Path:
        """Return the folder with the credentials for workers of a role, edge or cloud."""
        return self.folder / role_name(USERS[role])

    def check(self, *, secure: bool, workers: bool = True) -> None:
        """Raise InvalidFieldError if the folder or the credentials in it are unusable.

        ``secure``: whether the connection has TLS. ``workers``: whether workers' credentials are needed as well: pods
        have their own.
        """
        roles = tuple(USERS) if workers else ()
        names = [role_name(user) for user in (User.LC, *(USERS[role] for role in roles))]
        try:
            exists = self.folder.is_dir()
            missing = [name for name in names if not (self.folder / name).is_dir()]
        except OSError as error:
            fix = f"{error.strerror}: give the node's folder"
            raise InvalidFieldError(OPTION, str(self.folder), fix) from None
        if not exists:
            raise InvalidFieldError(OPTION, str(self.folder), "there is no such folder: give the node's folder")
        if missing:
            is_user = any((self.folder / name).exists() for name in (*TLS_FILES, "password"))
            mistake = "it is the folder of one user" if is_user else f"it has no folder {missing[0]}"
            folders = f"folder{'s' if workers else ''} {', '.join(names)}"
            fix = f"{mistake}: give the node's folder, with the {folders}, such as site/nodes/edge0"
            raise InvalidFieldError(OPTION, str(self.folder), fix)
        self.own.check(secure=secure)
        for role in roles:
            Credentials(self.worker(role), OPTION).check(secure=secure)
