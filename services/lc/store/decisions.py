"""What an insert or a delete from GM means for what this node holds. Pure: the same input twice changes nothing.

Order is the generation and the uid, never arrival. A tombstone says up to which generation of a uid this node was told
to forget: what comes later with no higher generation is a message that was overtaken. GM names the last generation of
a resource that is deleted, and one less where the resource only has no place on this node: that one may come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class ResourceVersion:
    """One state of one resource: the uid for its life, the generation for its spec."""

    uid: str
    generation: int


class InsertDecision(Enum):
    """What to do with an insert."""

    STORE = auto()
    #: another uid of the same name: the old one is buried for good, and its workers belong to nobody
    REPLACE = auto()
    #: held already: acknowledge it again, change nothing
    SAME = auto()
    #: overtaken by a newer generation
    STALE = auto()
    #: overtaken by a delete
    BURIED = auto()


class DeleteDecision(Enum):
    """What to do with a delete."""

    DROP = auto()
    #: nothing of that name is held: acknowledge it again
    ABSENT = auto()
    #: a resource of the same name but another uid is held: it stays
    FOREIGN = auto()


def on_insert(held: ResourceVersion | None, new: ResourceVersion, buried: int | None) -> InsertDecision:
    """Decide on an insert. ``buried`` is the generation on the tombstone of the new uid, None without one."""
    if buried is not None and new.generation <= buried:
        return InsertDecision.BURIED
    if held is None:
        return InsertDecision.STORE
    if held.uid != new.uid:
        return InsertDecision.REPLACE
    if new.generation == held.generation:
        return InsertDecision.SAME
    return InsertDecision.STORE if new.generation > held.generation else InsertDecision.STALE


def on_delete(held: ResourceVersion | None, uid: str) -> DeleteDecision:
    """Decide on a delete. The uid gets its tombstone in every case."""
    if held is None:
        return DeleteDecision.ABSENT
    return DeleteDecision.DROP if held.uid == uid else DeleteDecision.FOREIGN
