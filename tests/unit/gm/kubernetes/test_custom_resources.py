"""Who has a name, and what is written of it: by the custom resources' versions as they are known here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from halimede.messages import Status
from halimede.names import Key
from services.gm.cluster.kubernetes.api_paths import Object
from services.gm.cluster.kubernetes.client import ForbiddenError
from services.gm.cluster.kubernetes.conversion import Custom
from services.gm.cluster.kubernetes.custom_resources import CustomResources
from services.gm.cluster.port import ConflictError, NotAcceptedError, StoredResource
from tests.integration.gm_world import SERVICES, service
from tests.simulated import eventually
from tests.unit.gm.kubernetes.shelf import Shelf

pytestmark = pytest.mark.simulated


SEDNA, NEPTUNE = "sedna.io/v1alpha1", "neptune.io/v1alpha1"
KEY = Key(SERVICES, "default", "helmet")


class Resources:
    """Services of both groups, each group on a shelf of its own."""

    def __init__(self) -> None:
        self.shelves = {SEDNA: Shelf(), NEPTUNE: Shelf()}
        self.announced: list[Key] = []
        self.told: list[tuple[str, str]] = []
        leader: Any = SimpleNamespace(leading=True)
        self.customs = CustomResources(self, leader, self.announced.append, self._tell)  # type: ignore[arg-type]

    def _tell(self, reason: str, of: Custom, message: str) -> None:
        self.told.append((reason, of.uid))

    def __getattr__(self, call: str) -> object:
        """As the client: by the group."""
        return lambda api, *args, **options: getattr(self.shelves[api.version], call)(api, *args, **options)

    def put(self, group: str, created: str, **spec: object) -> Object:
        """A service that can be read, unless ``spec`` says otherwise."""
        body = service("helmet")
        metadata = {"creationTimestamp": f"2026-01-01T00:00:{created}Z", "generation": 1}
        return self.shelves[group].put("helmet", metadata=metadata, spec={**body["spec"], **spec})

    def status(self, group: str) -> tuple[str, str]:
        """Phase and reason."""
        status = self.shelves[group].objects["default", "helmet"].get("status") or {}
        current = (status.get("conditions") or [{}])[-1]
        return status.get("phase", ""), current.get("reason", "")


@asynccontextmanager
async def resources(made: Resources, *groups: str) -> AsyncIterator[CustomResources]:
    customs = made.customs
    chosen = [each for each in customs.informers if each.api.plural == SERVICES and each.api.version in groups]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in chosen]
        tasks.append(group.create_task(customs.unhandled.run()))
        for each in chosen:
            await each.synced.wait()
        yield customs
        for task in tasks:
            task.cancel()


def stored(customs: CustomResources) -> StoredResource:
    return customs.claims.get(KEY)


@pytest.fixture
def r() -> Resources:
    return Resources()


async def test_what_cannot_be_read_has_its_name_nevertheless(r: Resources) -> None:
    younger = r.put(NEPTUNE, "05", edgeWorker=None)["metadata"]["uid"]
    older = r.put(SEDNA, "01", edgeWorker=5)["metadata"]["uid"]
    async with resources(r, SEDNA, NEPTUNE) as customs:
        claims = customs.claims
        assert claims.get(KEY) is None
        assert claims.first(KEY).uid == older  # type: ignore[union-attr]
        assert {uid for uid in (older, younger, "x") if claims.find(KEY, uid)} == {older, younger}
        assert list(claims.all()) == []
        await eventually(lambda: r.status(SEDNA) == ("Failed", "Invalid"))
        await eventually(lambda: r.status(NEPTUNE) == ("Failed", "Invalid"))
        r.put(SEDNA, "01")
        await eventually(lambda: claims.get(KEY))
        assert stored(customs).uid == older


async def test_whoever_waits_behind_what_cannot_be_read_is_told_so_and_takes_over_when_it_goes(r: Resources) -> None:
    older = r.put(NEPTUNE, "01", edgeWorker=5)["metadata"]["uid"]
    younger = r.put(SEDNA, "05")["metadata"]["uid"]
    async with resources(r, SEDNA, NEPTUNE) as customs:
        await eventually(lambda: r.status(SEDNA) == ("Failed", "NameConflict"))
        assert [each.uid for each in customs.claims.namesakes(KEY)] == [younger]
        assert sorted(r.told) == sorted([("Invalid", older), ("NameConflict", younger)])
        assert customs.claims.get(KEY) is None
        r.announced.clear()
        r.shelves[NEPTUNE].drop("helmet")
        await eventually(lambda: customs.claims.get(KEY))
        assert stored(customs).uid == younger
        assert KEY in r.announced


async def test_one_that_becomes_unreadable_keeps_its_name(r: Resources) -> None:
    older = r.put(SEDNA, "01")["metadata"]["uid"]
    async with resources(r, SEDNA) as customs:
        assert stored(customs).uid == older
        r.announced.clear()
        r.put(SEDNA, "01", edgeWorker=5)
        await eventually(lambda: r.status(SEDNA) == ("Failed", "Invalid"))
        assert customs.claims.get(KEY) is None
        assert customs.claims.find(KEY, older)
        assert KEY in r.announced


async def tries(customs: CustomResources, seconds: float) -> None:
    """Look again as often as the reconciler does, or a little more often."""
    ends = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < ends:
        with pytest.raises(ConflictError):
            await customs.write_status(stored(customs), Status(phase="Running"))
        await asyncio.sleep(0.1)


async def test_what_is_ahead_of_its_watch_is_tried_ever_less_often_until_the_watch_has_caught_up(r: Resources) -> None:
    r.put(SEDNA, "01")
    shelf = r.shelves[SEDNA]
    async with resources(r, SEDNA) as customs:
        shelf.silent = True
        shelf.put("helmet", metadata={"generation": 2})
        await tries(customs, 60)
        patches = shelf.calls.count("patch")
        assert 8 <= patches <= 13  # after 0.2, 0.4 ... 6.4 s, then every 8 s
        shelf.silent = False
        shelf.put("helmet", metadata={"labels": {"a": "b"}})
        await eventually(lambda: stored(customs).resource.metadata.labels)
        await customs.write_status(stored(customs), Status(phase="Running"))
        assert r.status(SEDNA)[0] == "Running"
        assert len(customs._pauses) == 0


async def test_others_are_not_held_up_and_a_success_ends_the_pause(r: Resources) -> None:
    r.put(SEDNA, "01")
    shelf = r.shelves[SEDNA]
    async with resources(r, SEDNA) as customs:
        shelf.silent = True
        shelf.put("helmet", metadata={"generation": 2})
        await tries(customs, 5)
        pauses = customs._pauses
        assert len(pauses) == 1
        assert not pauses.must_wait("another")
        await asyncio.sleep(8)
        shelf.objects["default", "helmet"]["metadata"]["resourceVersion"] = stored(customs).resource_version
        await customs.write_status(stored(customs), Status(phase="Running"))
        assert len(pauses) == 0


async def test_what_may_not_be_written_is_said_of_the_resource(r: Resources) -> None:
    r.put(SEDNA, "01")
    async with resources(r, SEDNA) as customs:
        await asyncio.sleep(1)  # it watches by then
        r.shelves[SEDNA].errors = [ForbiddenError("PATCH x", 403, "no right to patch")]
        with pytest.raises(NotAcceptedError) as caught:
            await customs.add_finalizer(KEY, stored(customs).uid)
        assert str(caught.value) == "JointInferenceService default/helmet: no right to patch"
