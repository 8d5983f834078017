"""Who leads is decided without looking at any clock but the own one."""

from __future__ import annotations

import pytest

from services.gm.cluster.kubernetes.leader_election import (
    DURATION,
    MAX_DURATION,
    LeaseRecord,
    Lost,
    Renew,
    Take,
    Wait,
    decide,
)


def record(holder: str = "other", epoch: int = 7, duration_s: float = 9.0) -> LeaseRecord:
    return LeaseRecord(holder, epoch, duration_s, "2026-01-01T00:00:00.000000Z", "1", "u")


def test_a_lease_that_is_not_there_is_taken_in_a_first_epoch() -> None:
    assert decide("me", None, None, 0.0) == Take(1)


def test_a_lease_that_was_deleted_is_taken_above_all_epochs_that_were_seen() -> None:
    assert decide("me", None, None, 0.0, highest=12) == Take(13)


@pytest.mark.parametrize("holder", ["", "me"])
def test_a_free_lease_and_one_of_our_own_earlier_life_are_taken_at_once_in_a_new_epoch(holder: str) -> None:
    assert decide("me", record(holder), None, 0.0) == Take(8)


@pytest.mark.parametrize(("silent_s", "expected"), [(0.0, Wait()), (8.9, Wait()), (9.0, Take(8)), (100.0, Take(8))])
def test_another_ones_lease_is_taken_when_it_has_not_changed_for_its_duration(
    silent_s: float, expected: object
) -> None:
    assert decide("me", record(), None, silent_s) == expected


def test_the_duration_is_the_holders_own() -> None:
    assert decide("me", record(duration_s=30.0), None, 20.0) == Wait()


def test_a_leader_goes_on_as_long_as_the_record_is_its_own() -> None:
    assert decide("me", record("me", 7), 7, 0.0) == Renew()


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
    decision = decide("me", seen, 7, 0.0)
    assert isinstance(decision, Lost)
    assert why in decision.why


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": None, "leaseDurationSeconds": None}])
def test_a_lease_that_says_nothing_is_free(spec: object) -> None:
    read = LeaseRecord.of({"metadata": {"uid": "u", "resourceVersion": "3"}, "spec": spec})
    assert (read.holder, read.epoch, read.duration_s) == ("", 0, DURATION)


def test_a_lease_cannot_ask_for_ever() -> None:
    assert LeaseRecord.of({"metadata": {}, "spec": {"leaseDurationSeconds": 10**6}}).duration_s == MAX_DURATION
