"""Which versions of a model have been served, the latest first: what a rollback can go back to."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.messages import ServedVersion

#: as many as a status has room for
MOST_VERSIONS = 10


def remembered(versions: Sequence[ServedVersion], now: ServedVersion) -> list[ServedVersion]:
    """Return the list with what is served now in front; one that is served again moves there, and stands once."""
    if versions and _same(versions[0], now):
        return list(versions)
    return [now, *(each for each in versions if not _same(each, now))][:MOST_VERSIONS]


def _same(one: ServedVersion, other: ServedVersion) -> bool:
    return (one.version, one.digest) == (other.version, other.digest)
