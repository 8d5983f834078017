"""The gallery: identities with a few vectors each, bounded in number and memory, deleted after a time.

The data for decisions is in memory (``EmbeddingBank``, and a record of each identity); sightings are in the file
(``GalleryStore``). At the limit the least recently seen identity is evicted, first among those that were seen only a
few times, so that noise does not displace people. Used from one thread.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import structlog

from halimede.inference import SampleError, unit, unpack
from halimede.messages import Sighting, Track
from halimede.multiedge.reid.embedding_bank import EmbeddingBank
from halimede.multiedge.reid.identity_eviction import EvictionLimits, Identities, IdentityRecord
from halimede.multiedge.reid.store import Changes, GalleryStore
from halimede.multiedge.reid.vector_index import Floats

log = structlog.get_logger()

FILE = "gallery.db"
MOST_CAMERAS = 64
#: changed vectors between two copies of the graph: after a kill they are added again, in about a second
SAVE_EVERY = 2000
#: times of the last stored sightings in memory, by identity and camera
MAX_STORED_TIMES = 20_000
DAMAGE = (sqlite3.DatabaseError, msgspec.DecodeError, SampleError, ValueError, TypeError, AttributeError, RuntimeError)


class Gallery:
    """Identities and their vectors. The caller passes the time (``at``).

    Attributes:
        unsaved: writes that failed on a full disk; their content is written later.
        evicted: identities that were deleted at the limit.
        expired: identities that were deleted because they were not seen.
        features: the user's name for the feature space of the vectors; another name begins a new gallery.

    """

    def __init__(self, folder: Path, limits: EvictionLimits, features: str = "") -> None:
        self.limits = limits
        self.features = features
        self.unsaved = self.evicted = self.expired = 0
        self._folder = folder
        self.store = GalleryStore(folder / FILE, limits.sightings)
        self.bank = EmbeddingBank(folder, limits)
        self._identities = Identities(limits)
        self._changes = Changes()
        self._stored_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._clock = 0.0
        self._now: float | None = None

    def __len__(self) -> int:
        return len(self._identities)

    def open(self) -> None:
        """Load the stored gallery. An unreadable file is moved aside; a gallery of other features is dropped."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.store.open()
        features = self.store.number("features")
        if features is not None and features != self.features:
            self.begin_anew(f"the features were {features!r} and are {self.features!r}")
            return
        try:
            self._read()
        except DAMAGE as error:
            self.begin_anew(f"damaged: {error}")

    def close(self) -> None:
        """Store everything."""
        if self.flush():
            self.unsaved += not self.bank.save()
        self.store.close()

    def begin_anew(self, reason: str) -> None:
        """Drop all identities. The file is moved aside."""
        self.store.reset(reason)
        self.bank.clear()
        self._identities.clear()
        self._stored_at.clear()
        self._changes = Changes()

    def at(self, now: float) -> None:
        """Set the time in monotonic seconds. The running time of the gallery is counted across restarts."""
        if self._now is not None:
            self._clock += max(0.0, now - self._now)
        self._now = now

    # --- looking up ----------------------------------------------------------------------------------------------

    def get(self, id_: str) -> IdentityRecord | None:
        """Return an identity, or None."""
        return self._identities.get(id_)

    def snapshot(self) -> Iterator[Track]:
        """Yield all identities as tracks, the least recently seen first."""
        self.flush()
        for id_ in [identity.id for identity in self._identities]:
            identity, row = self.get(id_), next(self.store.rows(id_), None)
            if identity and row and row[1]:
                yield identity.track(msgspec.json.decode(row[1], type=Sighting), embedding=self.bank.mean(identity))

    # --- learning ------------------------------------------------------------------------------------------------

    def create(self, id_: str = "") -> IdentityRecord:
        """Add a new identity and return it; at the limit, evict another."""
        self._evict(1)
        identity = IdentityRecord(id_ or secrets.token_hex(8))
        self._identities.put(identity)
        return identity

    def see(self, identity: IdentityRecord, sighting: Sighting, *, count: int = 0, cameras: Iterable[str] = ()) -> None:
        """Record a sighting of an identity, and the number of its sightings (0: one more)."""
        if self.get(identity.id) is not identity:
            return
        identity.first = min(identity.first, sighting.time) if identity.count else sighting.time
        identity.last = max(identity.last, sighting.time) if identity.count else sighting.time
        identity.clock, identity.count = self._clock, count or identity.count + 1
        for camera in (sighting.camera, *cameras):
            if camera not in identity.cameras and len(identity.cameras) < MOST_CAMERAS:
                identity.cameras = (*identity.cameras, camera)
        self._identities.put(identity)
        at = (identity.id, sighting.camera)
        if self._clock - self._stored_at.get(at, -self.limits.every_s) >= self.limits.every_s:
            self._stored_at[at] = self._clock
            self._changes.sightings.append((identity.id, sighting))
            if len(self._stored_at) > MAX_STORED_TIMES:
                self._stored_at.popitem(last=False)
        self._changes.rows[identity.id] = identity, msgspec.json.encode(sighting)

    def learn(self, identity: IdentityRecord, vector: Floats) -> bool:
        """Add a unit vector to an identity if it differs enough from the others; return whether it was added."""
        return self.get(identity.id) is identity and self.bank.learn(identity, vector, self._changes)

    def follow(self, track: Track) -> bool:
        """Apply a decision of another gallery; return False if it was applied before or is invalid."""
        identity = self.get(track.identity)
        if identity and track.count <= identity.count:
            return False
        vector = unit(unpack(track.embedding, 1)[0]) if track.embedding else None
        if vector is not None and (not vector.any() or self.bank.length not in {0, vector.size}):
            return False
        if identity is None:
            if vector is None:
                return False
            identity = self.create(track.identity)
        self.see(identity, track.sighting, count=track.count, cameras=track.cameras)
        if vector is not None:
            self.learn(identity, vector)
        return True

    # --- keeping -------------------------------------------------------------------------------------------------

    def tend(self, now: float) -> None:
        """Delete expired identities, and store the changes."""
        self.at(now)
        while (oldest := self._identities.too_old(self._clock)) is not None:
            self._forget(oldest)
            self.expired += 1
        if self.flush():
            self.unsaved += not self.bank.save(SAVE_EVERY)

    def flush(self) -> bool:
        """Store the changes; return False on a full disk: the changes wait, bounded, for the next call."""
        numbers: dict[str, int | float | str] = {
            "clock": self._clock,
            "key": self.bank.next_key,
            "length": self.bank.length,
            "features": self.features,
        }
        self._changes.numbers = numbers
        try:
            self.store.write(self._changes)
        except sqlite3.Error as error:
            self.unsaved += 1
            log.warning("gallery not written", error=str(error), rows=len(self._changes.rows))
            return False
        self._changes = Changes()
        return True

    def _forget(self, identity: IdentityRecord) -> None:
        self.bank.forget(identity, self._changes)
        self._identities.remove(identity)
        self._changes.forget(identity.id)

    def _evict(self, more: int) -> None:
        while (oldest := self._identities.too_many(more)) is not None:
            self._forget(oldest)
            self.evicted += 1

    def _read(self) -> None:
        self._clock = float(self.store.number("clock") or 0.0)
        for identity, _ in self.store.rows():
            self._identities.put(identity)
        self.bank.read(self.store, self.get)
        self._evict(0)
