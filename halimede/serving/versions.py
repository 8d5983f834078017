"""The versions of one model that a server has: the one that answers, one that is tried beside it, and one it refused.

Deciding is here and pure: what the wish asks for, which version a request goes to, and when a canary has failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from halimede.messages import ModelInUse
from halimede.models.desired import DesiredModel
from halimede.serving.errors import NotFoundError, UnavailableError
from halimede.serving.loaded import Loaded

#: requests that a canary failed on and the version before it answered, until it is withdrawn
STRIKES = 3
MAX_MESSAGE, MAX_REASON = 4096, 256
Step = Literal["keep", "load", "promote", "share", "withdraw"]
ALL = 100


@dataclass(slots=True, eq=False)
class Version:
    """A version as it was wished for, and its opened model."""

    wish: DesiredModel
    digest: str
    loaded: Loaded


@dataclass(slots=True, eq=False)
class Counts:
    """What became of one model's requests since the start."""

    requests: int = 0
    failures: int = 0
    rollouts: int = 0
    refusals: int = 0


@dataclass(slots=True, eq=False)
class Served:
    """One model by name."""

    name: str
    current: Version | None = None
    canary: Version | None = None
    percent: int = 0
    refused: DesiredModel | None = None
    refused_digest: str = ""
    reason: str = ""
    message: str = ""
    strikes: int = 0
    #: which wish all this is the answer to
    mark: str = ""
    counts: Counts = field(default_factory=Counts)
    _share: int = 0

    def step(self, wish: DesiredModel) -> Step:
        """Return what leads to the wish: nothing, opening it, giving the canary more requests or all, or none."""
        if self.current and wish.same(self.current.wish):
            return "withdraw"
        if self.canary and wish.same(self.canary.wish):
            return "promote" if wish.canary_percent >= ALL else "share"
        if self.refused and wish.same(self.refused):
            return "keep"
        return "load"

    def choose(self, version: str = "") -> Version:
        """Return who answers a request: a canary gets its percentage, spread evenly. Raises ServeError."""
        current = self.current
        if current is None:
            if self.reason:
                raise UnavailableError(f"model {self.name} is not ready: {self.reason}: {self.message}")
            raise UnavailableError(f"model {self.name} is not ready yet")
        if version:
            for one in (current, self.canary):
                if one and one.wish.version == version:
                    return one
            has = ", ".join(self.versions()) or "no named version"
            raise NotFoundError(f"there is no version {version[:80]!r} of {self.name} here: it has {has}")
        if self.canary is None:
            return current
        self._share += self.percent
        if self._share < ALL:
            return current
        self._share -= ALL
        return self.canary

    def struck(self) -> bool:
        """Note that the canary failed where the version before it did not; return whether it is to go."""
        self.strikes += 1
        return self.strikes >= STRIKES

    def refuse(self, wish: DesiredModel, digest: str, reason: str, message: str) -> None:
        """Note why a wish is not followed."""
        self.refused, self.refused_digest = wish, digest
        self.reason, self.message = reason[:MAX_REASON], message[:MAX_MESSAGE]
        self.counts.refusals += 1

    def forgive(self) -> None:
        """Forget what was refused: it is not wished for any more."""
        self.refused, self.refused_digest, self.reason, self.message = None, "", "", ""

    def versions(self) -> list[str]:
        """Return the named versions that can be asked for."""
        return [one.wish.version for one in (self.current, self.canary) if one and one.wish.version]

    def in_use(self) -> ModelInUse:
        """Return what reports say of it."""
        return ModelInUse(
            digest=self.current.digest if self.current else "",
            version=self.current.wish.version if self.current else "",
            canary_version=self.canary.wish.version if self.canary else "",
            refused=self.refused_digest,
            reason=self.reason,
            message=self.message,
            mark=self.mark,
        )
