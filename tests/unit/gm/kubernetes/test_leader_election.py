"""Electors on one Lease in simulated time: never two leaders, never long without one, an epoch for each term."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from structlog.testing import capture_logs

from services.gm.cluster.kubernetes import leader_election
from services.gm.cluster.kubernetes.client import ForbiddenError
from services.gm.cluster.kubernetes.leader_election import LeaderElection, LeadershipLostError
from services.gm.leader import waiting_health
from tests.simulated import eventually
from tests.unit.gm.kubernetes.shelf import Shelf

pytestmark = pytest.mark.simulated

LEASE = ("halimede", "halimede-gm")


class Candidate:
    """One GM: notes when it worked."""

    def __init__(self, shelf: Shelf, name: str) -> None:
        self.elector = LeaderElection(shelf, "halimede", name)
        self.working = False
        self.epochs: list[int] = []
        self.lost: list[str] = []
        self.ends_in_s = 0.0

    async def work(self) -> None:
        self.working = True
        self.epochs.append(self.elector.epoch)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(self.ends_in_s)
            self.working = False

    async def run(self) -> None:
        while True:
            try:
                await self.elector.lead(self.work)
            except LeadershipLostError as error:
                self.lost.append(str(error))


@contextlib.asynccontextmanager
async def candidates(shelf: Shelf, *names: str) -> AsyncIterator[list[Candidate]]:
    made = [Candidate(shelf, name) for name in names]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in made]
        for each, task in zip(made, tasks, strict=True):
            each.task = task  # type: ignore[attr-defined]
        yield made
        for task in tasks:
            task.cancel()


def now() -> float:
    return asyncio.get_running_loop().time()


def one_of(made: list[Candidate]) -> Callable[[], bool]:
    return lambda: sum(each.working for each in made) == 1


@pytest.fixture
async def a(shelf: Shelf) -> AsyncIterator[Candidate]:
    """A candidate that leads."""
    async with candidates(shelf, "a") as (made,):
        await eventually(lambda: made.working)
        yield made


@pytest.fixture
async def both(shelf: Shelf) -> AsyncIterator[list[Candidate]]:
    async with candidates(shelf, "a", "b") as pair:
        await eventually(one_of(pair))
        yield sorted(pair, key=lambda each: not each.working)


async def test_one_of_two_leads_and_the_other_waits(shelf: Shelf) -> None:
    async with candidates(shelf, "a", "b") as (a, b):
        await eventually(one_of([a, b]))
        for _ in range(600):
            await asyncio.sleep(0.1)
            assert a.working + b.working == 1
            assert a.elector.leading + b.elector.leading == 1
    assert a.epochs + b.epochs == [1]
    assert a.elector.uid == b.elector.uid == shelf.objects[LEASE]["metadata"]["uid"]


async def test_a_leader_that_stops_lets_go_and_the_next_takes_over_at_once(both: list[Candidate]) -> None:
    leader, other = both
    leader.ends_in_s = 3.0
    leader.task.cancel()  # type: ignore[attr-defined]
    stopped = now()
    while leader.working:
        assert not other.working, "it works on, so it holds the Lease"
        await asyncio.sleep(0.1)
    assert now() - stopped >= 3.0
    await eventually(lambda: other.working, timeout_s=2.0)
    assert other.epochs == [2]


async def test_a_leader_that_stops_during_a_renewal_lets_go_as_well(both: list[Candidate], shelf: Shelf) -> None:
    leader, other = both
    shelf.late_s, patches = 0.5, shelf.calls.count("patch")
    await eventually(lambda: shelf.calls.count("patch") > patches)
    await asyncio.sleep(0.1)
    leader.task.cancel()  # type: ignore[attr-defined]
    await asyncio.sleep(0.01)
    shelf.late_s = 0.0
    await eventually(lambda: other.working, timeout_s=3.0)
    assert other.epochs == [2]


async def test_a_leader_that_stops_takes_no_lease_from_another(a: Candidate, shelf: Shelf) -> None:
    shelf.objects[LEASE]["spec"] |= {"holderIdentity": "b", "leaseTransitions": 7}
    shelf.objects[LEASE]["metadata"]["resourceVersion"] = "999"
    a.task.cancel()  # type: ignore[attr-defined]
    await asyncio.sleep(5)
    assert shelf.objects[LEASE]["spec"]["holderIdentity"] == "b"


async def test_a_leader_that_dies_is_followed_within_12_seconds(shelf: Shelf) -> None:
    lease = {"holderIdentity": "dead", "leaseTransitions": 4, "leaseDurationSeconds": 9, "renewTime": "x"}
    metadata = {"name": LEASE[1], "namespace": LEASE[0], "uid": "u", "resourceVersion": "1"}
    shelf.objects[LEASE] = {"metadata": metadata, "spec": lease}
    async with candidates(shelf, "a") as (a,):
        await asyncio.sleep(8.5)
        assert not a.working, "it may live: its clock need not be ours"
        await eventually(lambda: a.working, timeout_s=3.5)
        assert a.epochs == [5]


async def test_the_same_identity_leads_at_once_after_a_restart_in_a_new_epoch(a: Candidate, shelf: Shelf) -> None:
    shelf.down = True  # it cannot let go
    a.task.cancel()  # type: ignore[attr-defined]
    await eventually(lambda: not a.working)
    shelf.down = False
    async with candidates(shelf, "a") as (again,):
        await eventually(lambda: again.working, timeout_s=1.0)
        assert again.epochs == [2]


@pytest.mark.parametrize("fault", ["down", "hangs"])
async def test_leadership_is_lost_when_the_server_does_not_answer_before_anybody_else_can_have_it(
    a: Candidate, shelf: Shelf, fault: str
) -> None:
    other = Shelf()
    await asyncio.sleep(10)
    # b sees the same Lease and is not cut off from it
    other.objects, other.version = shelf.objects, 1000
    async with candidates(other, "b") as (b,):
        await asyncio.sleep(2.0)
        setattr(shelf, fault, True)
        cut = now()
        await eventually(lambda: not a.elector.leading, timeout_s=7.0)
        assert not b.elector.leading
        await eventually(lambda: not a.working)
        await eventually(lambda: b.working, timeout_s=6.0)
        assert now() - cut < 12.0
        assert b.epochs == [2]
        assert "could not be renewed in time" in a.lost[0]
        setattr(shelf, fault, False)
        await asyncio.sleep(60)
        assert b.working
        assert not a.working


async def test_a_leader_that_was_stopped_writes_nothing_when_it_goes_on(shelf: Shelf) -> None:
    elector = LeaderElection(shelf, "halimede", "a")
    seen: list[bool] = []

    async def work() -> None:
        seen.append(elector.leading)
        elector._deadline = now() - 1  # as after SIGSTOP: time has passed, and no timer has fired yet
        seen.append(elector.leading)

    await elector.lead(work)
    assert seen == [True, False]
    assert shelf.objects[LEASE]["spec"]["holderIdentity"] == "a", "it may be another one's by now"


async def test_a_leader_goes_on_when_somebody_edits_the_leases_labels_or_an_answer_was_lost(
    a: Candidate, shelf: Shelf
) -> None:
    for _ in range(10):
        shelf._keep("MODIFIED", {**shelf.objects[LEASE], "labels": {"by": "hand"}})
        await asyncio.sleep(1.7)
    assert a.working
    assert a.epochs == [1]


@pytest.mark.parametrize("what", ["deleted", "taken", "taken by our identity"])
async def test_a_leader_whose_lease_was_taken_away_stops_at_its_next_renewal(
    a: Candidate, shelf: Shelf, what: str
) -> None:
    if what == "deleted":
        del shelf.objects[LEASE]
    else:
        holder = "b" if what == "taken" else "a"
        spec = {**shelf.objects[LEASE]["spec"], "holderIdentity": holder, "leaseTransitions": 6}
        shelf._keep("MODIFIED", {**shelf.objects[LEASE], "spec": spec})
    await eventually(lambda: a.lost, timeout_s=2.0)
    await eventually(lambda: len(a.epochs) == 2, timeout_s=12.0)
    assert a.epochs[1] == (2 if what == "deleted" else 7)


async def test_an_epoch_that_nodes_follow_is_overtaken_by_the_leader_alone(both: list[Candidate], shelf: Shelf) -> None:
    leader, other = both
    assert await leader.elector.overtake(40)
    assert leader.elector.epoch == shelf.objects[LEASE]["spec"]["leaseTransitions"] == 41
    assert not await other.elector.overtake(50)
    await asyncio.sleep(30)
    assert leader.working, "its own higher epoch is no other leader's"
    assert await leader.elector.overtake(7), "we are above that already"
    assert leader.elector.epoch == 41


async def test_an_epoch_beyond_what_a_lease_can_hold_is_refused(a: Candidate, shelf: Shelf) -> None:
    assert not await a.elector.overtake(leader_election.MAX_EPOCH)
    assert not await a.elector.overtake(2**40)
    assert await a.elector.overtake(leader_election.MAX_EPOCH - 1)
    assert shelf.objects[LEASE]["spec"]["leaseTransitions"] == leader_election.MAX_EPOCH


async def test_an_old_leader_does_not_overtake_the_new_one(a: Candidate, shelf: Shelf) -> None:
    spec = {**shelf.objects[LEASE]["spec"], "holderIdentity": "b", "leaseTransitions": 2}
    shelf._keep("MODIFIED", {**shelf.objects[LEASE], "spec": spec})
    assert not await a.elector.overtake(2)
    assert not a.elector.leading
    assert shelf.objects[LEASE]["spec"]["leaseTransitions"] == 2


async def test_what_work_raises_is_raised_and_the_lease_is_let_go(shelf: Shelf) -> None:
    async def work() -> None:
        raise ForbiddenError("x", 403, "no right to do that")

    with pytest.raises(ForbiddenError, match="no right"):
        await LeaderElection(shelf, "halimede", "a").lead(work)
    assert shelf.objects[LEASE]["spec"]["holderIdentity"] == ""


async def test_a_candidate_outlasts_a_server_that_is_away(shelf: Shelf) -> None:
    shelf.down = True
    async with candidates(shelf, "a") as (a,):
        await asyncio.sleep(120)
        shelf.down = False
        await eventually(lambda: a.working, timeout_s=2.0)


async def test_a_candidate_says_why_it_cannot_try_and_for_how_long_but_not_that_another_leads(
    a: Candidate, shelf: Shelf
) -> None:
    async with candidates(shelf, "b") as (b,):
        with capture_logs() as logs:
            await asyncio.sleep(60)
        assert (b.elector.trouble, b.elector.troubled_s) == ("", 0.0)
        assert [(each["log_level"], each["why"]) for each in logs] == [("info", "a leads")]
        health = waiting_health(b.elector)
        assert health.report(readiness=True)[0]
        shelf.errors = [ForbiddenError("GET leases x/y", 403, "no right")] * 1000
        with capture_logs() as logs:
            await asyncio.sleep(20)
        told = [each for each in logs if each["event"] == "leadership not acquired" and each["identity"] == "b"]
        assert [(each["log_level"], each["why"]) for each in told] == [("warning", "GET leases x/y: no right (403)")]
        assert b.elector.trouble == "GET leases x/y: no right (403)"
        assert health.report(readiness=True)[0], "an API server may start anew"
        await asyncio.sleep(15)
        assert 30.0 <= b.elector.troubled_s <= 40.0
        well, checks = health.report(readiness=True)
        assert (well, checks["lease"]) == (False, b.elector.trouble)
        assert health.report(readiness=False)[0], "starting it again would not help"
        shelf.errors = []
        await eventually(lambda: not b.elector.trouble, timeout_s=3.0)
        assert health.report(readiness=True)[0]
