"""Who is known: identities with a few vectors each, bounded in number and memory, forgotten after a time.

What is decided upon is in memory (``EmbeddingBank``, and some words of each identity); what was said of an identity
lives in the file (``GalleryStore``). Beyond the bound the one goes that was seen longest ago, those first that were
hardly ever seen: noise does not drive out people. Used from one thread.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
import structlog

from halimede.inference import SampleError, unit, unpack
from halimede.messages import Sighting, Track
from halimede.multiedge.reid.embedding_bank import EmbeddingBank
from halimede.multiedge.reid.identity_eviction import EvictionLimits, Identities, IdentityEviction
from halimede.multiedge.reid.store import Changes, GalleryStore
from halimede.multiedge.reid.vector_index import Floats

log = structlog.get_logger()

FILE = "gallery.db"
MOST_CAMERAS = 64
#: vectors that change between two copies of the graph: what is added again after a kill, in about a second
SAVE_EVERY = 2000
#: when an identity's sighting by a camera was last kept
KEPT = 20_000
DAMAGE = (sqlite3.DatabaseError, msgspec.DecodeError, SampleError, ValueError, TypeError, AttributeError, RuntimeError)


class Gallery:
    """Identities and their vectors. The caller passes the time (``at``).

    Attributes:
        unsaved: writes that had no room; what they held is written later.
        evicted: identities that went because there were too many.
        expired: identities that went because they were not seen.
        features: the name of the space that vectors are of, as the user says; another one begins anew.

    """

    def __init__(self, folder: Path, limits: EvictionLimits, features: str = "") -> None:
        self.limits = limits
        self.features = features
        self.unsaved = self.evicted = self.expired = 0
        self._folder = folder
        self.store = GalleryStore(folder / FILE, limits.sightings)
        self.bank = EmbeddingBank(folder, limits)
        self._shelf = Identities(limits)
        self._changes = Changes()
        self._kept: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._clock = 0.0
        self._now: float | None = None

    def __len__(self) -> int:
        return len(self._shelf)

    def open(self) -> None:
        """Read what is kept. What cannot be read, or is of other features, is put aside or forgotten."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.store.open()
        kept = self.store.number("features")
        if kept is not None and kept != self.features:
            self.begin_anew(f"the features were {kept!r} and are {self.features!r}")
            return
        try:
            self._read()
        except DAMAGE as error:
            self.begin_anew(f"damaged: {error}")

    def close(self) -> None:
        """Write everything down."""
        if self.flush():
            self.unsaved += not self.bank.save()
        self.store.close()

    def begin_anew(self, reason: str) -> None:
        """Forget everybody. The file is put aside."""
        self.store.reset(reason)
        self.bank.clear()
        self._shelf.clear()
        self._kept.clear()
        self._changes = Changes()

    def at(self, now: float) -> None:
        """Say what time it is, in monotonic seconds. Seconds that the gallery runs are counted, over restarts."""
        if self._now is not None:
            self._clock += max(0.0, now - self._now)
        self._now = now

    # --- looking up ----------------------------------------------------------------------------------------------

    def get(self, id_: str) -> IdentityEviction | None:
        """Return an identity, or None."""
        return self._shelf.get(id_)

    def snapshot(self) -> Iterator[Track]:
        """Yield all identities as tracks, the one that was seen longest ago first."""
        self.flush()
        for id_ in [known.id for known in self._shelf]:
            known, row = self.get(id_), next(self.store.rows(id_), None)
            if known and row and row[1]:
                yield known.track(msgspec.json.decode(row[1], type=Sighting), embedding=self.bank.mean(known))

    # --- learning ------------------------------------------------------------------------------------------------

    def create(self, id_: str = "") -> IdentityEviction:
        """Make room for a new identity and return it."""
        self._evict(1)
        known = IdentityEviction(id_ or secrets.token_hex(8))
        self._shelf.put(known)
        return known

    def see(self, known: IdentityEviction, seen: Sighting, *, count: int = 0, cameras: Collection[str] = ()) -> None:
        """Note that an identity was seen, and how often in all (0: once more)."""
        if self.get(known.id) is not known:
            return
        known.first = min(known.first, seen.time) if known.count else seen.time
        known.last = max(known.last, seen.time) if known.count else seen.time
        known.clock, known.count = self._clock, count or known.count + 1
        for camera in (seen.camera, *cameras):
            if camera not in known.cameras and len(known.cameras) < MOST_CAMERAS:
                known.cameras = (*known.cameras, camera)
        self._shelf.put(known)
        at = (known.id, seen.camera)
        if self._clock - self._kept.get(at, -self.limits.every_s) >= self.limits.every_s:
            self._kept[at] = self._clock
            self._changes.sightings.append((known.id, seen))
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._changes.rows[known.id] = known, msgspec.json.encode(seen)

    def learn(self, known: IdentityEviction, vector: Floats) -> bool:
        """Add a unit vector to those of an identity, if it tells something new; return whether it did."""
        return self.get(known.id) is known and self.bank.learn(known, vector, self._changes)

    def follow(self, track: Track) -> bool:
        """Learn what another gallery has decided; return False for what is known already or cannot be used."""
        known = self.get(track.identity)
        if known and track.count <= known.count:
            return False
        vector = unit(unpack(track.embedding, 1)[0]) if track.embedding else None
        if vector is not None and (not vector.any() or self.bank.length not in {0, vector.size}):
            return False
        if known is None:
            if vector is None:
                return False
            known = self.create(track.identity)
        self.see(known, track.sighting, count=track.count, cameras=track.cameras)
        if vector is not None:
            self.learn(known, vector)
        return True

    # --- keeping -------------------------------------------------------------------------------------------------

    def tend(self, now: float) -> None:
        """Forget whom nobody has seen, and write down what has changed."""
        self.at(now)
        while (oldest := self._shelf.too_old(self._clock)) is not None:
            self._forget(oldest)
            self.expired += 1
        if self.flush():
            self.unsaved += not self.bank.save(SAVE_EVERY)

    def flush(self) -> bool:
        """Write down what has changed. False where there is no room: it waits, bounded, for the next time."""
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

    def _forget(self, known: IdentityEviction) -> None:
        self.bank.forget(known, self._changes)
        self._shelf.take(known)
        self._changes.forget(known.id)

    def _evict(self, more: int) -> None:
        while (oldest := self._shelf.too_many(more)) is not None:
            self._forget(oldest)
            self.evicted += 1

    def _read(self) -> None:
        self._clock = float(self.store.number("clock") or 0.0)
        for known, _ in self.store.rows():
            self._shelf.put(known)
        self.bank.read(self.store, self.get)
        self._evict(0)
