"""The vectors of a gallery's identities: whose they are, which of them to store, and which are near to a new one.

A graph in memory (``VectorIndex``) finds near vectors; a copy of it is saved. The vectors are also in a file
(``GalleryStore``): if the copy of the graph disagrees with the file, the file is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import structlog

from halimede.inference import pack, unit, unpack
from halimede.multiedge.reid.identity_eviction import EvictionLimits, IdentityRecord
from halimede.multiedge.reid.store import Changes, GalleryStore
from halimede.multiedge.reid.vector_index import Floats, VectorIndex, remove_saved

log = structlog.get_logger()


class EmbeddingBank:
    """Unit vectors of one length, a few for each identity. The first vector sets the length.

    ``folder``: where the copy of the graph is saved. ``limits``: only ``vectors``, the most vectors of an identity, and
    ``novelty``, the cosine similarity from which a vector is too similar to be added, count here.

    Attributes:
        next_key: the key of the next vector; no key is used twice.

    """

    def __init__(self, folder: Path, limits: EvictionLimits) -> None:
        self.next_key = 0
        self._folder = folder
        self._limits = limits
        self._index: VectorIndex | None = None
        self._owner: dict[int, IdentityRecord] = {}
        #: vectors that were added or removed since the graph was last saved
        self._unsaved_changes = 0

    def __len__(self) -> int:
        return len(self._index) if self._index else 0

    @property
    def length(self) -> int:
        """The numbers in each vector; 0 before there is one."""
        return self._index.length if self._index else 0

    @property
    def memory(self) -> int:
        """The bytes of the graph and its vectors."""
        return self._index.memory if self._index else 0

    def read(self, store: GalleryStore, find: Callable[[str], IdentityRecord | None]) -> None:
        """Load the stored vectors, and make the graph agree with them. ``find``: returns the identity with an id.

        Raises what a damaged file causes: sqlite3.Error, SampleError, ValueError, TypeError.
        """
        self.next_key = int(store.number("key") or 0)
        for key, id_ in store.vectors():
            owner = find(id_)
            if owner:
                self._owner[key] = owner
                owner.keys = (*owner.keys, key)
                self.next_key = max(self.next_key, key + 1)
        length = int(store.number("length") or 0)
        if length:
            self._index = VectorIndex(length)
            self._index.load(self._folder)
            self._unsaved_changes = self._index.reconcile(self._owner.keys(), lambda keys: _stored_vectors(store, keys))

    def save(self, least: int = 1) -> bool:
        """Save the graph if at least ``least`` vectors have changed since the last attempt; return False if it failed.

        Call it only after the changes are in the file: keys that are only in the graph would be used twice. If the
        disk is full, the graph is built again from the file at the next start.
        """
        if self._index is None or self._unsaved_changes < least:
            return True
        self._unsaved_changes = 0
        try:
            self._index.save(self._folder)
        except (OSError, RuntimeError) as error:  # the graph is then built from the file
            log.warning("gallery index not written", error=str(error))
            return False
        return True

    def clear(self) -> None:
        """Remove all vectors, and the copy of the graph."""
        remove_saved(self._folder)
        self._owner.clear()
        self._index = None

    # --- looking up ----------------------------------------------------------------------------------------------

    def nearest(self, vectors: Floats, count: int, floor: float) -> list[dict[IdentityRecord, float]]:
        """Return for each unit vector the ``count`` nearest identities with their cosine similarity, the nearest first.

        ``vectors``: ``(n, length) float32``. The similarity (-1..1) of an identity is that of its nearest vector.
        ``floor``: the similarity that is near enough. In a large gallery, a fast search comes first, which may miss
        identities. If it finds none with at least ``floor``, all vectors are searched: a ``floor`` over 1 makes each
        search complete. Raises ValueError for vectors of another length.
        """
        if self._index is None:
            return [{} for _ in vectors]
        if vectors.shape[1] != self._index.length:
            raise ValueError(f"vectors have {vectors.shape[1]} numbers, the gallery's {self._index.length}")
        results: list[dict[IdentityRecord, float]] = []
        for keys, near in self._index.nearest(vectors, count * self._limits.vectors, floor):
            identities: dict[IdentityRecord, float] = {}
            for key, similarity in zip(keys.tolist(), near.tolist(), strict=True):
                if len(identities) == count:
                    break
                identities.setdefault(self._owner[key], similarity)
            results.append(identities)
        return results

    def similarities(self, identity: IdentityRecord, vectors: Floats) -> Floats:
        """Return the similarity of an identity to each of ``(n, length)`` unit vectors; -1 if it has no vectors."""
        if self._index is None or not identity.keys:
            return np.full(len(vectors), -1.0, np.float32)
        return np.asarray((vectors @ self._index.get(identity.keys).T).max(axis=1), np.float32)

    def mean(self, identity: IdentityRecord) -> bytes:
        """Return the mean of an identity's vectors, scaled to length 1, as float16 bytes; empty without vectors."""
        if self._index is None or not identity.keys:
            return b""
        return pack(unit(self._index.get(identity.keys).mean(axis=0)))

    # --- learning ------------------------------------------------------------------------------------------------

    def learn(self, identity: IdentityRecord, vector: Floats, changes: Changes) -> bool:
        """Add a unit vector to an identity if it differs enough from its stored ones; return whether it was added.

        At the limit it replaces the most redundant one. What is to be written is added to ``changes``.
        """
        if self._index is None:
            self._index = VectorIndex(vector.size)
        if identity.keys:
            vectors = self._index.get(identity.keys)
            near = vectors @ vector
            if near.max() >= self._limits.novelty:
                return False
            if len(identity.keys) >= self._limits.vectors:
                self._drop(self._index, identity, _most_like_another(vectors, near), changes)
        self._add(self._index, identity, vector, changes)
        return True

    def forget(self, identity: IdentityRecord, changes: Changes) -> None:
        """Remove all vectors of an identity. What is to be written is added to ``changes``."""
        if self._index is not None:
            for at in reversed(range(len(identity.keys))):
                self._drop(self._index, identity, at, changes)

    def _add(self, index: VectorIndex, identity: IdentityRecord, vector: Floats, changes: Changes) -> None:
        """Add a vector to an identity under a new key."""
        key = self.next_key
        self.next_key += 1
        index.add([key], vector[np.newaxis])
        self._owner[key] = identity
        identity.keys = (*identity.keys, key)
        changes.vectors[key] = (identity.id, pack(vector))
        self._unsaved_changes += 1

    def _drop(self, index: VectorIndex, identity: IdentityRecord, at: int, changes: Changes) -> None:
        """Remove the vector of an identity whose key has the index ``at``."""
        key = identity.keys[at]
        index.remove([key])
        del self._owner[key]
        identity.keys = identity.keys[:at] + identity.keys[at + 1 :]
        if changes.vectors.pop(key, None) is None:
            changes.dropped.add(key)
        self._unsaved_changes += 1


def _stored_vectors(store: GalleryStore, keys: Sequence[int]) -> Floats:
    """Return the stored vectors of keys, ``(keys, length)``. Raises SampleError for a missing or damaged vector."""
    return np.concatenate([unpack(store.vector(key), 1) for key in keys])


def _most_like_another(vectors: Floats, near: Floats) -> int:
    """Return the index of the most redundant vector: the nearest to another one, or to a new one.

    ``near``: the similarity of each vector to the new one.
    """
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, -1.0)
    return int(np.argmax(np.maximum(alike.max(axis=1), near)))
