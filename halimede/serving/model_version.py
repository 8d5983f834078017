"""One model of a server: its versions and its counts, and which version answers a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from halimede.models.desired_state import DesiredModel
from halimede.models.rollout import ALL_PERCENT, Rollout
from halimede.serving.errors import ModelNotFoundError, ModelUnavailableError
from halimede.serving.loaded_model import Loaded


@dataclass(slots=True, eq=False)
class ModelVersionState:
    """An opened version of a model: what it was opened for, and what it is reported as."""

    desired: DesiredModel | None
    version: str
    digest: str
    loaded: Loaded


@dataclass(slots=True, eq=False)
class RequestCounts:
    """What became of one model's requests since the start."""

    requests: int = 0
    failures: int = 0
    rollouts: int = 0
    refusals: int = 0


@dataclass(slots=True, eq=False)
class Served:
    """A model by name, with the rollout of its versions and the counts of its requests."""

    name: str
    rollout: Rollout[ModelVersionState] = field(default_factory=Rollout)
    counts: RequestCounts = field(default_factory=RequestCounts)
    _share: int = 0

    def choose(self, version: str = "") -> ModelVersionState:
        """Return who answers a request: a canary gets its percentage, spread evenly. Raises ServeError."""
        rollout = self.rollout
        current, canary = rollout.current, rollout.canary
        if current is None:
            if rollout.reason:
                raise ModelUnavailableError(f"model {self.name} is not ready: {rollout.reason}: {rollout.message}")
            raise ModelUnavailableError(f"model {self.name} is not ready yet")
        if version:
            for one in (current, canary):
                if one and one.version == version:
                    return one
            has = ", ".join(self.versions()) or "no named version"
            raise ModelNotFoundError(f"there is no version {version[:80]!r} of {self.name} here: it has {has}")
        if canary is None:
            return current
        self._share += rollout.percent
        if self._share < ALL_PERCENT:
            return current
        self._share -= ALL_PERCENT
        return canary

    def opened(self) -> list[ModelVersionState]:
        """Return the versions that are open: the one that answers, and the canary."""
        return [one for one in (self.rollout.current, self.rollout.canary) if one]

    def versions(self) -> list[str]:
        """Return the named versions that can be asked for."""
        return [one.version for one in self.opened() if one.version]
