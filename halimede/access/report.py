"""What making or renewing a site's credentials did, and what looking at them finds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SiteUser:
    """One user of a site, or one certificate. ``folder`` is below the site's; ``username`` is ``ca``, ``broker`` and
    ``broker.<bridge>`` for these.
    """

    username: str
    folder: Path
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SiteUserState:
    """The state of a site's entry. ``problem`` is the reason why it is not usable, empty if it is."""

    entry: SiteUser
    path: Path
    expires: datetime | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SiteReport:
    """Names of users, ``ca`` and ``broker`` among them. ``expires``: the first of their certificates to do so."""

    made: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    expires: datetime | None = None

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        return bool(self.made or self.removed)
