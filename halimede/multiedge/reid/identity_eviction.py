"""The identities of a gallery in their order of eviction, and its limits.

Passing identities, which were seen only a few times, are evicted before settled ones; within each group, the
least recently seen one is evicted first.
"""

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
        identities: the most identities.
        vectors: the most vectors of an identity, which show it from different sides.
        ttl_s: seconds of running time after which an identity that was not seen is deleted.
        confirm: number of sightings from which an identity is settled; before, it is passing.
        passing_s: seconds of running time after which a passing identity that was not seen is deleted.
        novelty: cosine similarity; a vector that is as similar to another one of its identity is not stored.
        sightings: the most stored sightings, of all identities together.
        every_s: the least seconds between two stored sightings of one identity by one camera.

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
        id: its name for users: 16 hexadecimal digits.
        clock: when it was last seen, in seconds of the gallery's running time.
        count: the number of its sightings.
        first: when it was first seen by a camera's clock, in seconds since 1970, for display.
        last: when it was last seen by a camera's clock, in seconds since 1970.
        cameras: those that saw it, in the order of their first sighting.
        keys: the keys of its vectors.

    """

    id: str
    clock: float = 0.0
    count: int = 0
    first: float = 0.0
    last: float = 0.0
    cameras: tuple[str, ...] = ()
    keys: tuple[int, ...] = ()

    def track(self, sighting: Sighting, *, embedding: bytes = b"", new: bool = False) -> Track:
        """Return the message about a sighting of this identity.

        ``embedding``: the mean of its vectors as float16 bytes, if it has changed; ``new``: it was unknown before.
        """
        names = list(self.cameras)
        return Track(identity=self.id, sighting=sighting, new=new, count=self.count, cameras=names, embedding=embedding)


class Identities:
    """Identities by id. Iterating yields them in their order of eviction."""

    def __init__(self, limits: EvictionLimits) -> None:
        self._limits = limits
        self._settled: OrderedDict[str, IdentityRecord] = OrderedDict()
        self._passing: OrderedDict[str, IdentityRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._settled) + len(self._passing)

    def __iter__(self) -> Iterator[IdentityRecord]:
        return chain(self._passing.values(), self._settled.values())

    def get(self, id_: str) -> IdentityRecord | None:
        """Return the identity with this id; None if it is unknown."""
        return self._settled.get(id_) or self._passing.get(id_)

    def put(self, identity: IdentityRecord) -> None:
        """Add an identity that is new or was just seen: it becomes the most recent one of its group."""
        if identity.count >= self._limits.confirm:
            self._passing.pop(identity.id, None)
            group = self._settled
        else:
            group = self._passing
        group[identity.id] = identity
        group.move_to_end(identity.id)

    def remove(self, identity: IdentityRecord) -> None:
        """Remove an identity, if it is there."""
        self._settled.pop(identity.id, None)
        self._passing.pop(identity.id, None)

    def evictable(self, added: int) -> IdentityRecord | None:
        """Return the identity to evict before ``added`` new ones are added; None: there is space for them."""
        return next(iter(self)) if len(self) + added > self._limits.identities else None

    def oldest_expired(self, clock: float) -> IdentityRecord | None:
        """Return an identity that was not seen for too long at the running time ``clock``; None without one."""
        lives = ((self._passing, min(self._limits.passing_s, self._limits.ttl_s)), (self._settled, self._limits.ttl_s))
        for group, life in lives:
            oldest = next(iter(group.values()), None)
            if oldest and oldest.clock < clock - life:
                return oldest
        return None

    def clear(self) -> None:
        """Remove all identities."""
        self._settled.clear()
        self._passing.clear()
