"""The gallery: the known identities with a few vectors each, bounded in number, and deleted after a time.

The data for decisions is in memory (``EmbeddingBank``, and a record of each identity); sightings are in a file
(``GalleryStore``). At the limit the least recently seen identity is evicted, first among those that were seen only a
few times, so that noise does not displace people. A gallery is used from one thread.
"""

from __future__ import annotations

import secrets
import sqlite3
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
from halimede.system.lru import LruCache

log = structlog.get_logger()

#: the file, in the gallery's folder
FILE_NAME = "gallery.db"
#: cameras that an identity remembers
MAX_CAMERAS = 64
#: changed vectors between two copies of the graph: after a kill they are added again, in about a second
SAVE_CHANGES = 2000
#: times of the last stored sightings in memory, by identity and camera
MAX_STORED_TIMES = 20_000
#: errors that mean a damaged file when it is read
DAMAGE = (sqlite3.DatabaseError, msgspec.DecodeError, SampleError, ValueError, TypeError, AttributeError, RuntimeError)


class Gallery:
    """The known identities and their vectors, in a folder. Call ``open`` first, and ``set_time`` before changes.

    Attributes:
        limits: numbers and times at which identities are deleted.
        features: the user's name for the feature space of the vectors; another name begins a new gallery.
        unsaved: writes that failed, as on a full disk; their content is written later.
        evicted: identities that were deleted at the limit of their number.
        expired: identities that were deleted because they were not seen for long.
        store: the file.
        bank: the vectors.

    """

    def __init__(self, folder: Path, limits: EvictionLimits, features: str = "") -> None:
        self.limits = limits
        self.features = features
        self.unsaved = self.evicted = self.expired = 0
        self._folder = folder
        self.store = GalleryStore(folder / FILE_NAME, limits.sightings)
        self.bank = EmbeddingBank(folder, limits)
        self._identities = Identities(limits)
        self._changes = Changes()
        self._stored_at: LruCache[tuple[str, str], float] = LruCache(MAX_STORED_TIMES)
        #: seconds that galleries of this file have run; and the last ``set_time``, None before the first
        self._clock = 0.0
        self._now: float | None = None

    def __len__(self) -> int:
        return len(self._identities)

    def open(self) -> None:
        """Load the stored gallery. A damaged file, or one with other ``features``, is moved aside.

        Raises OSError, or sqlite3.OperationalError, if the file cannot be opened.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self.store.open()
        features = self.store.number("features")
        if features is not None and features != self.features:
            self.begin_anew(f"the features were {features!r} and are {self.features!r}")
            return
        try:
            self._read_stored()
        except DAMAGE as error:
            self.begin_anew(f"damaged: {error}")

    def close(self) -> None:
        """Store the changes and the graph, and close the file."""
        if self.flush():
            self.unsaved += not self.bank.save()
        self.store.close()

    def begin_anew(self, reason: str) -> None:
        """Delete all identities, and move the file aside. ``reason``: for the log. Raises the errors of ``open``."""
        self.store.reset(reason)
        self.bank.clear()
        self._identities.clear()
        self._stored_at = LruCache(MAX_STORED_TIMES)
        self._changes = Changes()

    def set_time(self, now: float) -> None:
        """Set the time, in monotonic seconds. The gallery counts the seconds that it runs, across restarts."""
        if self._now is not None:
            self._clock += max(0.0, now - self._now)
        self._now = now

    # --- looking up ----------------------------------------------------------------------------------------------

    def get(self, id_: str) -> IdentityRecord | None:
        """Return the identity with this id; None if it is unknown."""
        return self._identities.get(id_)

    def snapshot(self) -> Iterator[Track]:
        """Yield all identities as tracks with their latest sighting, in their order of eviction.

        Raises sqlite3.Error, msgspec.DecodeError if the file cannot be read.
        """
        self.flush()
        for id_ in [identity.id for identity in self._identities]:
            identity, row = self.get(id_), next(self.store.rows(id_), None)
            if identity and row and row[1]:
                yield identity.track(msgspec.json.decode(row[1], type=Sighting), embedding=self.bank.mean(identity))

    # --- learning ------------------------------------------------------------------------------------------------

    def create(self, id_: str = "") -> IdentityRecord:
        """Add a new identity and return it; at the limit, evict another one. Empty ``id_``: a random id."""
        self._evict(1)
        identity = IdentityRecord(id_ or secrets.token_hex(8))
        self._identities.put(identity)
        return identity

    def record(
        self, identity: IdentityRecord, sighting: Sighting, *, count: int = 0, cameras: Iterable[str] = ()
    ) -> None:
        """Record a sighting of an identity, unless the identity was evicted.

        ``count``: the number of its sightings; 0: one more than before. ``cameras``: further cameras that saw it.
        """
        if self.get(identity.id) is not identity:
            return
        identity.first = min(identity.first, sighting.time) if identity.count else sighting.time
        identity.last = max(identity.last, sighting.time) if identity.count else sighting.time
        identity.clock, identity.count = self._clock, count or identity.count + 1
        for camera in (sighting.camera, *cameras):
            if camera not in identity.cameras and len(identity.cameras) < MAX_CAMERAS:
                identity.cameras = (*identity.cameras, camera)
        self._identities.put(identity)
        key = (identity.id, sighting.camera)
        stored_at = self._stored_at.get(key)
        if stored_at is None or self._clock - stored_at >= self.limits.every_s:
            self._stored_at.put(key, self._clock)
            self._changes.sightings.append((identity.id, sighting))
        self._changes.rows[identity.id] = identity, msgspec.json.encode(sighting)

    def learn(self, identity: IdentityRecord, vector: Floats) -> bool:
        """Add a unit vector to an identity if it differs enough from its others; return whether it was added."""
        return self.get(identity.id) is identity and self.bank.learn(identity, vector, self._changes)

    def follow(self, track: Track) -> bool:
        """Apply a decision of another worker's gallery; return whether it was applied.

        It is not if it was applied before, if its features are zero or have another length, or if it has none and the
        identity is unknown. Raises SampleError for features that cannot be decoded.
        """
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
        self.record(identity, track.sighting, count=track.count, cameras=track.cameras)
        if vector is not None:
            self.learn(identity, vector)
        return True

    # --- keeping -------------------------------------------------------------------------------------------------

    def delete_and_store(self, now: float) -> None:
        """Delete expired identities at ``now`` (monotonic seconds), and store the changes."""
        self.set_time(now)
        while (oldest := self._identities.oldest_expired(self._clock)) is not None:
            self._forget(oldest)
            self.expired += 1
        if self.flush():
            self.unsaved += not self.bank.save(SAVE_CHANGES)

    def flush(self) -> bool:
        """Store the changes; return False if that failed, as on a full disk: they wait, bounded, for the next call."""
        self._changes.numbers = {
            "clock": self._clock,
            "key": self.bank.next_key,
            "length": self.bank.length,
            "features": self.features,
        }
        try:
            self.store.write(self._changes)
        except sqlite3.Error as error:
            self.unsaved += 1
            log.warning("gallery not written", error=str(error), rows=len(self._changes.rows))
            return False
        self._changes = Changes()
        return True

    def _forget(self, identity: IdentityRecord) -> None:
        """Delete an identity from memory, and from the file at the next ``flush``."""
        self.bank.forget(identity, self._changes)
        self._identities.remove(identity)
        self._changes.forget(identity.id)

    def _evict(self, added: int) -> None:
        """Delete identities until ``added`` new ones are within the limit."""
        while (oldest := self._identities.evictable(added)) is not None:
            self._forget(oldest)
            self.evicted += 1

    def _read_stored(self) -> None:
        """Load the content of the file. Raises the errors of DAMAGE."""
        self._clock = float(self.store.number("clock") or 0.0)
        for identity, _ in self.store.rows():
            self._identities.put(identity)
        self.bank.read(self.store, self.get)
        self._evict(0)
