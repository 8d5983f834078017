"""What a Lease says and what follows from it. Pure.

``leaseTransitions`` is GM's epoch. It is raised whenever somebody begins to lead, the same GM after a restart included,
so that a leader which only believes to be one is told apart by everybody (nodes follow the highest). No clock is ever
compared with another: what counts is for how long the record was seen unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.gm.cluster.kubernetes.api_paths import Object

#: seconds after which a record that does not change is nobody's any more
DURATION = 9.0
#: what a Lease may say of that, at most
MAX_DURATION = 60.0


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease as it was last seen. ``renewed`` only tells one renewal from another."""

    holder: str
    epoch: int
    duration_s: float
    renewed: str
    version: str
    uid: str

    @classmethod
    def of(cls, lease: Object) -> LeaseRecord:
        """Read a Lease; whatever is missing says that nobody has it."""
        spec, metadata = lease.get("spec") or {}, lease.get("metadata") or {}
        return cls(
            holder=spec.get("holderIdentity") or "",
            epoch=int(spec.get("leaseTransitions") or 0),
            duration_s=min(float(spec.get("leaseDurationSeconds") or DURATION), MAX_DURATION),
            renewed=str(spec.get("renewTime") or ""),
            version=metadata.get("resourceVersion", ""),
            uid=metadata.get("uid", ""),
        )

    @property
    def sign(self) -> tuple[str, int, str]:
        """What changes when its holder is alive."""
        return self.holder, self.epoch, self.renewed


@dataclass(frozen=True, slots=True)
class Take:
    """Begin to lead in this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Go on leading."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else leads, or has led until just now."""


@dataclass(frozen=True, slots=True)
class Lost:
    """We lead no more."""

    why: str


Decision = Take | Renew | Wait | Lost


def decide(identity: str, seen: LeaseRecord | None, mine: int | None, silent_s: float, highest: int = 0) -> Decision:
    """Say what to do about the Lease.

    ``seen`` is None when there is no Lease; ``mine`` is the epoch in which we lead, None if we do not; ``silent_s``
    says for how long we have seen the record unchanged, ``highest`` which epochs we have seen at all.
    """
    if mine is not None:
        if seen is None:
            return Lost("the Lease was deleted")
        if seen.holder != identity:
            return Lost(f"{seen.holder or 'nobody'} holds the Lease")
        return Renew() if seen.epoch == mine else Lost("another process with our identity has taken the Lease")
    if seen is None:
        return Take(highest + 1)
    if seen.holder in {"", identity} or silent_s >= seen.duration_s:
        return Take(max(seen.epoch, highest) + 1)
    return Wait()
