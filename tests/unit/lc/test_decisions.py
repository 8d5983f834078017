"""What an insert or a delete means for what is held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.lc.store.decisions import Delete, Identity, Insert, on_delete, on_insert

HELD = Identity("u1", 3)


@pytest.mark.parametrize(
    ("held", "new", "buried", "decision"),
    [
        (None, Identity("u1", 1), None, Insert.STORE),
        (HELD, Identity("u1", 4), None, Insert.STORE),
        (HELD, Identity("u1", 3), None, Insert.SAME),
        (HELD, Identity("u1", 2), None, Insert.STALE),
        (HELD, Identity("u2", 1), None, Insert.REPLACE),
        (HELD, Identity("u0", 9), 9, Insert.BURIED),
        (None, Identity("u1", 3), 3, Insert.BURIED),
        (None, Identity("u1", 2), 3, Insert.BURIED),
        (None, Identity("u1", 4), 3, Insert.STORE),
        (HELD, Identity("u1", 4), 3, Insert.STORE),
    ],
)
def test_an_insert(held: Identity | None, new: Identity, buried: int | None, decision: Insert) -> None:
    assert on_insert(held, new, buried) is decision


@pytest.mark.parametrize(
    ("held", "uid", "decision"),
    [(HELD, "u1", Delete.DROP), (HELD, "u2", Delete.FOREIGN), (None, "u1", Delete.ABSENT)],
)
def test_a_delete(held: Identity | None, uid: str, decision: Delete) -> None:
    assert on_delete(held, uid) is decision


identities = st.builds(Identity, st.sampled_from(["u1", "u2"]), st.integers(1, 5))


@given(st.lists(identities, max_size=20))
def test_in_any_order_with_any_repeats_the_generation_of_a_uid_never_falls(inserts: list[Identity]) -> None:
    held: Identity | None = None
    buried: dict[str, int] = {}
    for new in inserts:
        before = held
        what = on_insert(held, new, buried.get(new.uid))
        if what is Insert.REPLACE:
            assert held
            buried[held.uid] = 2**63
        if what in {Insert.STORE, Insert.REPLACE}:
            held = new
        if before and held and before.uid == held.uid:
            assert held.generation >= before.generation
        again = on_insert(held, new, buried.get(new.uid))
        assert again in {Insert.SAME, Insert.STALE, Insert.BURIED}
