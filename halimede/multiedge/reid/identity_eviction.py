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
class IdentityEviction:
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

    def track(self, seen: Sighting, *, embedding: bytes = b"", new: bool = False) -> Track:
        """Return the message about a sighting of it."""
        cameras = list(self.cameras)
        return Track(identity=self.id, sighting=seen, new=new, count=self.count, cameras=cameras, embedding=embedding)


class Identities:
    """Identities by id."""

    def __init__(self, limits: EvictionLimits) -> None:
        self._limits = limits
        self._settled: OrderedDict[str, IdentityEviction] = OrderedDict()
        self._passing: OrderedDict[str, IdentityEviction] = OrderedDict()

    def __len__(self) -> int:
        return len(self._settled) + len(self._passing)

    def __iter__(self) -> Iterator[IdentityEviction]:
        return chain(self._passing.values(), self._settled.values())

    def get(self, id_: str) -> IdentityEviction | None:
        """Return an identity, or None."""
        return self._settled.get(id_) or self._passing.get(id_)

    def put(self, known: IdentityEviction) -> None:
        """Add an identity as the most recent one: it is new, or was just seen."""
        if known.count >= self._limits.confirm:
            self._passing.pop(known.id, None)
            shelf = self._settled
        else:
            shelf = self._passing
        shelf[known.id] = known
        shelf.move_to_end(known.id)

    def take(self, known: IdentityEviction) -> None:
        """Remove an identity."""
        self._settled.pop(known.id, None)
        self._passing.pop(known.id, None)

    def too_many(self, more: int) -> IdentityEviction | None:
        """Return the identity to evict before ``more`` are added; None: the limit is not reached."""
        return next(iter(self)) if len(self) + more > self._limits.identities else None

    def too_old(self, clock: float) -> IdentityEviction | None:
        """Return an identity that was not seen for too long, or None."""
        lives = ((self._passing, min(self._limits.passing_s, self._limits.ttl_s)), (self._settled, self._limits.ttl_s))
        for shelf, life in lives:
            oldest = next(iter(shelf.values()), None)
            if oldest and oldest.clock < clock - life:
                return oldest
        return None

    def clear(self) -> None:
        """Drop all identities."""
        self._settled.clear()
        self._passing.clear()
