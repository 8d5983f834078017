"""What an insert or a delete means for what is held."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.lc import gm_channel
from services.lc.gm_channel import DeleteDecision, InsertDecision
from services.lc.store import ResourceVersion

HELD = ResourceVersion("u1", 3)


@pytest.mark.parametrize(
    ("held", "new", "buried", "decision"),
    [
        (None, ResourceVersion("u1", 1), None, InsertDecision.STORE),
        (HELD, ResourceVersion("u1", 4), None, InsertDecision.STORE),
        (HELD, ResourceVersion("u1", 3), None, InsertDecision.SAME),
        (HELD, ResourceVersion("u1", 2), None, InsertDecision.STALE),
        (HELD, ResourceVersion("u2", 1), None, InsertDecision.REPLACE),
        (HELD, ResourceVersion("u0", 9), 9, InsertDecision.BURIED),
        (None, ResourceVersion("u1", 3), 3, InsertDecision.BURIED),
        (None, ResourceVersion("u1", 2), 3, InsertDecision.BURIED),
        (None, ResourceVersion("u1", 4), 3, InsertDecision.STORE),
        (HELD, ResourceVersion("u1", 4), 3, InsertDecision.STORE),
    ],
)
def test_an_insert(held: Any, new: ResourceVersion, buried: int | None, decision: InsertDecision) -> None:
    assert gm_channel.on_insert(held, new, buried) is decision


@pytest.mark.parametrize(
    ("held", "uid", "decision"),
    [(HELD, "u1", DeleteDecision.DROP), (HELD, "u2", DeleteDecision.FOREIGN), (None, "u1", DeleteDecision.ABSENT)],
)
def test_a_delete(held: ResourceVersion | None, uid: str, decision: DeleteDecision) -> None:
    assert gm_channel.on_delete(held, uid) is decision


@given(st.lists(st.builds(ResourceVersion, st.sampled_from(["u1", "u2"]), st.integers(1, 5)), max_size=20))
def test_in_any_order_with_any_repeats_the_generation_of_a_uid_never_falls(inserts: list[ResourceVersion]) -> None:
    held: ResourceVersion | None = None
    buried: dict[str, int] = {}
    for new in inserts:
        before = held
        what = gm_channel.on_insert(held, new, buried.get(new.uid))
        if what is InsertDecision.REPLACE:
            buried[held.uid] = 2**63
        if what in {InsertDecision.STORE, InsertDecision.REPLACE}:
            held = new
        if before and held and before.uid == held.uid:
            assert held.generation >= before.generation
        again = gm_channel.on_insert(held, new, buried.get(new.uid))
        assert again in {InsertDecision.SAME, InsertDecision.STALE, InsertDecision.BURIED}
