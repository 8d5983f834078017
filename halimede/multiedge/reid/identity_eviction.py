"""The identities of a gallery in their order of eviction: first those seen only a few times, each group by age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from halimede.messages import Sighting, Track


@dataclass(frozen=True, slots=True)
class EvictionLimits:
    """Limits of a gallery.

    Attributes:
        identities: number of identities.
        vectors: of each identity, from different sides.
        ttl_s: seconds (of running time) after which an identity that was not seen is deleted.
        confirm: an identity that was seen less often is deleted after ``passing_s``.
        novelty: a vector that is nearer than this to another one of its identity is not stored.
        sightings: stored ones, of all identities together.
        every_s: least seconds between two stored sightings of one identity by one camera.

    """

    identities: int = 10_000
    vectors: int = 4
    ttl_s: float = 86_400.0
    confirm: int = 2
    passing_s: float = 60.0
    novelty: float = 0.95
    sightings: int = 100_000
    every_s: float = 0.5


@dataclass(slots=True, eq=False)
class IdentityRecord:
    """One identity.

    Attributes:
        clock: when it was last seen, in seconds of the gallery's running time.
        first, last: when it was seen by the cameras' clocks, for display.
        keys: of its vectors.

    """

    id: str
    clock: float = 0.0
    count: int = 0
    first: float = 0.0
    last: float = 0.0
    cameras: tuple[str, ...] = ()
    keys: tuple[int, ...] = ()

    def track(self, sighting: Sighting, *, embedding: bytes = b"", new: bool = False) -> Track:
        """Return the message about a sighting of it."""
        names = list(self.cameras)
        return Track(identity=self.id, sighting=sighting, new=new, count=self.count, cameras=names, embedding=embedding)


class Identities:
    """Identities by id."""

    def __init__(self, limits: EvictionLimits) -> None:
        self._limits = limits
        self._settled: OrderedDict[str, IdentityRecord] = OrderedDict()
        self._passing: OrderedDict[str, IdentityRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._settled) + len(self._passing)

    def __iter__(self) -> Iterator[IdentityRecord]:
        return chain(self._passing.values(), self._settled.values())

    def get(self, id_: str) -> IdentityRecord | None:
        """Return an identity, or None."""
        return self._settled.get(id_) or self._passing.get(id_)

    def put(self, identity: IdentityRecord) -> None:
        """Add an identity as the most recent one: it is new, or was just seen."""
        if identity.count >= self._limits.confirm:
            self._passing.pop(identity.id, None)
            group = self._settled
        else:
            group = self._passing
        group[identity.id] = identity
        group.move_to_end(identity.id)

    def remove(self, identity: IdentityRecord) -> None:
        """Remove an identity."""
        self._settled.pop(identity.id, None)
        self._passing.pop(identity.id, None)

    def too_many(self, more: int) -> IdentityRecord | None:
        """Return the identity to evict before ``more`` are added; None: the limit is not reached."""
        return next(iter(self)) if len(self) + more > self._limits.identities else None

    def too_old(self, clock: float) -> IdentityRecord | None:
        """Return an identity that was not seen for too long, or None."""
        lives = ((self._passing, min(self._limits.passing_s, self._limits.ttl_s)), (self._settled, self._limits.ttl_s))
        for group, life in lives:
            oldest = next(iter(group.values()), None)
            if oldest and oldest.clock < clock - life:
                return oldest
        return None

    def clear(self) -> None:
        """Drop all identities."""
        self._settled.clear()
        self._passing.clear()
