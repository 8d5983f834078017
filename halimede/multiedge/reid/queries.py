"""Answers where somebody was seen: by identity, by features, or everybody of a camera and time."""

from __future__ import annotations

from halimede.inference import SampleError, unit, unpack
from halimede.messages import Identity, IdentityQuery
from halimede.multiedge.reid.gallery import Gallery
from halimede.multiedge.reid.identity_eviction import IdentityEviction

#: sightings of each, where several identities are asked for
FEW = 5
FOREVER = 1e15
#: how many are looked up by features at most
NEAREST = 200


def answer(gallery: Gallery, query: IdentityQuery) -> list[Identity]:
    """Return who fits, the latest first; by features the most alike first. Raises SampleError, ValueError."""
    gallery.flush()
    if query.identity:
        known = gallery.get(query.identity)
        return [_identity(gallery, known, query, query.limit)] if known else []
    if query.embedding:
        return _like(gallery, query)
    until = query.until or FOREVER
    known_ = (gallery.get(id_) for id_ in gallery.store.seen(query.camera, query.since, until, query.limit))
    return [_identity(gallery, known, query, FEW) for known in known_ if known]


def _like(gallery: Gallery, query: IdentityQuery) -> list[Identity]:
    vector = unit(unpack(query.embedding, 1)[0])
    if not vector.any():
        raise SampleError("the features are all zero")
    (near,) = gallery.nearest(vector[None], min(query.limit, NEAREST), 2.0)
    found = (_identity(gallery, known, query, FEW, similarity) for known, similarity in near.items())
    asked = bool(query.camera or query.since or query.until)
    return [identity for identity in found if identity.sightings or not asked]


def _identity(
    gallery: Gallery, known: IdentityEviction, query: IdentityQuery, limit: int, similarity: float | None = None
) -> Identity:
    sightings = gallery.store.sightings(known.id, query.camera, query.since, query.until or FOREVER, limit)
    return Identity(
        identity=known.id,
        count=known.count,
        cameras=list(known.cameras),
        first=known.first,
        last=known.last,
        similarity=None if similarity is None else round(similarity, 4),
        sightings=sightings,
    )
