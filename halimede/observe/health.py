"""Whether a process lives and whether it is ready: named checks, each with a reason when it fails.

A process that does not live should be started again; one that is not ready should be left alone and given nothing to
do. Checks are looked at when somebody asks, so they cost nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

#: returns what is wrong, or nothing
Check = Callable[[], str]


class Health:
    """The checks of one process. ``live`` and ``ready`` add one; ``report`` asks them."""

    def __init__(self) -> None:
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def live(self, name: str, check: Check) -> None:
        """Add a check of whether the process lives."""
        self._live[name] = check

    def ready(self, name: str, check: Check) -> None:
        """Add a check of whether it is ready to do its work."""
        self._ready[name] = check

    def report(self, *, readiness: bool) -> tuple[bool, dict[str, str]]:
        """Return whether all is well, and each check's reason (``ok`` where there is none).

        A process that does not live is not ready. A check that raises has failed.
        """
        checks = self._live | (self._ready if readiness else {})
        found = {name: _asked(check) for name, check in checks.items()}
        return not any(found.values()), {name: reason or "ok" for name, reason in found.items()}


def _asked(check: Check) -> str:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that cannot be made is no good news
        return f"the check failed: {type(error).__name__}"
