"""What making or renewing a site's credentials did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Report:
    """Names of users, ``ca`` and ``broker`` among them. ``expires``: the first of their certificates to do so."""

    made: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    expires: datetime | None = None

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        return bool(self.made or self.removed)
