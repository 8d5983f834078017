"""Nearest-neighbor search of vectors: the only module that imports usearch.

A graph (HNSW) finds near vectors in about a millisecond, however many there are, but it may miss the nearest. So a
small index is searched exhaustively. A large one is searched exhaustively only when the graph finds nothing near
enough: an object counts as new only after an exact search. Slots of removed vectors are reused, so memory depends on
the most vectors at a time; keys are never reused.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence, Set
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# isort: off
# before usearch: both carry a C++ library of their own, and ONNX Runtime crashes at import when usearch's came first
import halimede.inference.runtimes.onnx  # noqa: F401
from usearch.index import Index as _Usearch
from usearch.index import Matches
# isort: on

Floats = NDArray[np.float32]
Keys = NDArray[np.uint64]

#: numbers (vectors times their length) that are searched exhaustively in about half a millisecond
EXACT = 4_000_000
#: edges of a node in the graph, and the width of the search when a vector is added and when one is searched
CONNECTIVITY, ADD, SEARCH = 16, 96, 256
SUFFIX = ".usearch"
#: vectors that are added in one call
BLOCK = 2000


class VectorIndex:
    """Unit vectors of one length, by key."""

    def __init__(self, length: int, *, exact: int = EXACT) -> None:
        self.length = length
        self._exact = exact
        self._index = _Usearch(
            ndim=length,
            metric="cos",
            dtype="f16",
            connectivity=CONNECTIVITY,
            expansion_add=ADD,
            expansion_search=SEARCH,
        )

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, key: int) -> bool:
        return bool(self._index.contains(key))

    @property
    def memory(self) -> int:
        """The bytes of the graph and its vectors."""
        return int(self._index.memory_usage)

    @property
    def keys(self) -> Keys:
        """All keys, unordered."""
        return np.asarray(self._index.keys[:], np.uint64) if len(self) else np.zeros(0, np.uint64)

    def add(self, keys: Sequence[int] | Keys, vectors: Floats, *, threads: int = 1) -> None:
        """Add vectors with new keys."""
        if len(keys):
            self._index.add(np.asarray(keys, np.uint64), vectors, threads=threads)

    def remove(self, keys: Sequence[int] | Keys) -> None:
        """Remove vectors; missing ones are ignored."""
        if len(keys):
            self._index.remove(np.asarray(keys, np.uint64), threads=1)

    def get(self, keys: Sequence[int]) -> Floats:
        """Return the vectors of existing keys: ``[keys, length]``."""
        if not keys:
            return np.zeros((0, self.length), np.float32)
        return np.asarray(self._index.get(np.asarray(keys, np.uint64), dtype="f32"), np.float32)

    def nearest(self, vectors: Floats, count: int, floor: float) -> list[tuple[Keys, Floats]]:
        """Return for each vector the keys nearest to it and their cosine similarities, the nearest first.

        Exact if no vector has at least the similarity ``floor``; otherwise the graph may miss a vector.
        """
        if not len(self) or not len(vectors):
            return [(np.zeros(0, np.uint64), np.zeros(0, np.float32)) for _ in vectors]
        if len(self) * self.length <= self._exact:
            return self._search(vectors, count, exact=True)
        results = self._search(vectors, count, exact=False)
        distant = [i for i, (_, near) in enumerate(results) if not len(near) or near[0] < floor]
        if distant:
            for i, exact in zip(distant, self._search(vectors[distant], count, exact=True), strict=True):
                results[i] = exact
        return results

    def reconcile(self, keys: Set[int], vectors: Callable[[Sequence[int]], Floats]) -> int:
        """Change the index to exactly these keys; return how many were added, with all processors."""
        present = set(self.keys.tolist())
        self.remove(sorted(present - keys))
        missing = sorted(keys - present)
        for start in range(0, len(missing), BLOCK):
            block = missing[start : start + BLOCK]
            self.add(block, vectors(block), threads=0)
        return len(missing)

    def save(self, folder: Path) -> None:
        """Write the graph next to the earlier file; the name has the digest of the content."""
        part = folder / f"index.part{SUFFIX}"
        self._index.save(str(part))
        path = folder / f"index-{_digest(part)}{SUFFIX}"
        part.replace(path)
        sweep(folder, path)

    def load(self, folder: Path) -> bool:
        """Load a saved graph; return False, and load nothing, if it is missing, damaged or of another length.

        The library parses files in native code, so it receives only files that it has written itself.
        """
        for path in sorted(folder.glob(f"index-*{SUFFIX}")):
            if path.name != f"index-{_digest(path)}{SUFFIX}":
                continue
            with contextlib.suppress(RuntimeError):  # written by another version of the library
                meta = _Usearch.metadata(str(path)) or {}
                if meta.get("dimensions") == self.length and str(meta.get("kind_scalar")) == str(self._index.dtype):
                    self._index.load(str(path))
                    return True
        return False

    def _search(self, vectors: Floats, count: int, *, exact: bool) -> list[tuple[Keys, Floats]]:
        result = self._index.search(np.ascontiguousarray(vectors), min(count, len(self)), exact=exact, threads=1)
        matches = [result] if isinstance(result, Matches) else [result[i] for i in range(len(result))]
        return [(np.asarray(match.keys, np.uint64), 1.0 - np.asarray(match.distances, np.float32)) for match in matches]


def sweep(folder: Path, keep: Path | None = None) -> None:
    """Remove all saved files except one."""
    for path in folder.glob(f"index*{SUFFIX}"):
        if path != keep:
            with contextlib.suppress(OSError):
                path.unlink()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
