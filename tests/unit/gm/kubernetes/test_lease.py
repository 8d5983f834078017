"""Who leads is decided without looking at any clock but the own one."""

from __future__ import annotations

import pytest

from services.gm.cluster.kubernetes import leader_election
from services.gm.cluster.kubernetes.leader_election import LeaseRecord, Take, Wait


def record(holder: str = "other", epoch: int = 7, duration_s: float = 9.0) -> LeaseRecord:
    return LeaseRecord(holder, epoch, duration_s, "2026-01-01T00:00:00.000000Z", "1", "u")


@pytest.mark.parametrize(
    ("seen", "ours", "silent_s", "expected"),
    [
        (None, None, 0.0, Take(1)),
        (record(""), None, 0.0, Take(8)),
        (record("me"), None, 0.0, Take(8)),
        (record(), None, 0.0, Wait()),
        (record(), None, 8.9, Wait()),
        (record(), None, 9.0, Take(8)),
        (record(), None, 100.0, Take(8)),
        (record(duration_s=30.0), None, 20.0, Wait()),
        (record("me", 7), 7, 0.0, leader_election.Renew()),
    ],
    ids=[
        "a first one", "free", "of our earlier life", "another one's", "just not silent for its duration",
        "silent for its duration", "silent for long", "of a longer duration", "our own",
    ],
)  # fmt: skip
def test_a_lease_is_taken_if_nobody_has_it_or_its_holder_is_silent(
    seen: LeaseRecord | None, ours: int | None, silent_s: float, expected: object
) -> None:
    assert leader_election.decide("me", seen, ours, silent_s) == expected


def test_a_lease_that_was_deleted_is_taken_above_all_epochs_that_were_seen() -> None:
    assert leader_election.decide("me", None, None, 0.0, highest=12) == Take(13)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (None, "deleted"),
        (record("other", 8), "other holds"),
        (record("", 7), "no one holds"),
        (record("me", 8), "another process"),
    ],
)
def test_a_leader_has_lost_when_the_record_is_not_its_own_any_more(seen: LeaseRecord | None, why: str) -> None:
    decision = leader_election.decide("me", seen, 7, 0.0)
    assert isinstance(decision, leader_election.Lost)
    assert why in decision.why


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": None, "leaseDurationSeconds": None}])
def test_a_lease_that_says_nothing_is_free_and_none_can_ask_for_ever(spec: object) -> None:
    read = LeaseRecord.of({"metadata": {"uid": "u", "resourceVersion": "3"}, "spec": spec})
    assert (read.holder, read.epoch, read.duration_s) == ("", 0, leader_election.DURATION)
    assert (
        LeaseRecord.of({"metadata": {}, "spec": {"leaseDurationSeconds": 10**6}}).duration_s
        == leader_election.MAX_DURATION
    )
