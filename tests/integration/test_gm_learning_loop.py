"""A learning loop in a whole GM: where its user sees it, and what a restart leaves of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from halimede.blobs.uris import GM, url
from halimede.cli.commands.loop import find, line, state_of
from halimede.messages import ModelInUse, TaskInfo, WorkerReport
from halimede.names import Key
from services.gm.cluster.port import NotAcceptedError
from services.gm.controllers.base import Edit
from services.gm.reconciler import TROUBLE_PATIENCE, _Outcome
from tests.integration.gm_world import MODELS, model, resource, service, template, world
from tests.integration.test_observed_gm import shown
from tests.scraping import scrape, value
from tests.simulated import eventually

PLURAL = "trainingmodels"
USING = WorkerReport(name="helmet", role="edge", phase="Running", model=ModelInUse(digest="a" * 64, version="first"))


def training(**loop: Any) -> dict[str, Any]:
    trainers = [{"name": "edge0", "hardSamples": {"service": "helmet"}, "template": template("edge0")}]
    spec = {"model": {"name": "small"}, "aggregator": {"template": template("cloud0")}, "trainers": trainers}
    return resource("TrainingModel", "again", **spec, loop={"service": {"name": "helmet"}, **loop})


class Listing:
    """The resources of a GM, as the command line lists them."""

    def __init__(self, w: Any) -> None:
        self._w = w

    async def list(self, plural: str, namespace: str) -> tuple[list[dict[str, Any]], bool]:
        reply = await self._w.ask("list", plural=plural, namespace=namespace, limit=100)
        return reply.items, False


async def test_the_state_of_a_loop_is_in_the_status_the_metrics_and_on_the_page(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0"), w.node("cloud0"), shown(w) as (session, url):
        await w.apply(model("small"), training())
        await w.reaches("Pending", "ServiceNotFound", name="again", plural=PLURAL)
        await w.apply(model("big"), service())
        await w.reaches("Collecting", "WaitingForTrigger", name="again", plural=PLURAL)
        found = await scrape(session, url)
        labels = {"namespace": "default", "training_model": "again", "service": "helmet"}
        assert value(found, "halimede_loop_state", **labels, state="Collecting") == 1
        assert value(found, "halimede_loop_state", **labels, state="Canary") == 0
        assert value(found, "halimede_loop_rounds", **labels) == 0
        (row,) = w.manager.feed.sections()["loops"]
        assert (row["name"], row["service"], row["phase"], row["round"]) == ("again", "helmet", "Collecting", 0)
        body = await find(Listing(w), "helmet", "default")  # type: ignore[arg-type]
        assert (state_of(body).state, line(body)) == ("Collecting", "round 0 Collecting WaitingForTrigger")
        events = await w.ask("events", limit=100)
        assert "Collecting" in {event.reason for event in events.events}


async def test_a_state_survives_a_restart_of_gm(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0"), w.node("cloud0"):
        async with w.gm():
            await w.apply(model("small"), model("big"), service(), training())
            before = await w.reaches("Collecting", name="again", plural=PLURAL)
        async with w.gm():
            await eventually(lambda: w.status("again", PLURAL) is not None)
            status = await w.reaches("Collecting", name="again", plural=PLURAL)
            assert status.loop["sinceS"] == before.loop["sinceS"]


@pytest.mark.simulated
async def test_an_edit_of_the_model_that_is_refused_is_in_the_status_and_the_loop_can_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise NotAcceptedError("a policy forbids it")

    async with world(tmp_path) as w, w.gm() as cluster, w.node("edge0") as edge, w.node("cloud0"):
        edge.overrides["edge"] = USING
        edit = cluster.edit
        monkeypatch.setattr(cluster, "edit", refuse)
        await w.apply(model("small"), model("big"), service(), training(command=1))
        status = await w.reaches("Pending", "EditNotAccepted", name="again", plural=PLURAL)
        assert "models/small cannot be edited: a policy forbids it" in status.conditions[-1].message
        monkeypatch.setattr(cluster, "edit", edit)
        await w.reaches("Labelling", name="again", plural=PLURAL)
        monkeypatch.setattr(cluster, "edit", refuse)  # the loop cannot take back its share of audits
        await w.ask("delete", plural=PLURAL, namespace="default", name="again")
        await eventually(lambda: cluster.get(Key(PLURAL, "default", "again")) is None)
        assert cluster.get(Key(MODELS, "default", "small")) is not None
        events = await w.ask("events", limit=100)
        assert "EditNotAccepted" in {event.reason for event in events.events if event.type == "Warning"}


@pytest.mark.simulated
async def test_an_edit_of_the_model_that_is_refused_waits_however_often_nodes_report_but_not_for_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []
    now = asyncio.get_running_loop().time

    async def refuse(*_: object) -> None:
        tried.append(now())
        raise NotAcceptedError("a policy forbids it")

    async def report_for(seconds: float) -> None:
        """Report more labels each second, so that GM reconciles the loop each time."""
        end, key = now() + seconds, Key("jointinferenceservices", "default", "helmet")
        while now() < end:
            await asyncio.sleep(1)
            edge.counts[key] = TaskInfo(labelled=len(tried) + int(now()))
            edge.report(key)

    async with world(tmp_path) as w, w.gm() as cluster, w.node("edge0") as edge, w.node("cloud0"):
        edge.overrides["edge"] = USING
        monkeypatch.setattr(cluster, "edit", refuse)
        await w.apply(model("small"), model("big"), service(), training(command=1))
        await w.reaches("Pending", "EditNotAccepted", name="again", plural=PLURAL)
        del tried[:]
        await report_for(60)
        assert 5 <= len(tried) <= 7, tried
        await report_for(TROUBLE_PATIENCE / 2 - (now() - tried[-1]) % TROUBLE_PATIENCE)
        before = len(tried)
        await w.apply(model("small", metadata={"owner": "vision"}))
        await report_for(2)
        assert len(tried) == before + 1, "its user may have ended the cause"
        status = await w.reaches("Pending", "EditNotAccepted", name="again", plural=PLURAL)
        assert "a policy forbids it" in status.conditions[-1].message


@pytest.mark.simulated
async def test_the_file_of_a_candidate_that_leaves_the_model_leaves_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []

    async def drop(digest: str) -> None:
        dropped.append(digest)

    def version(name: str, digest: str) -> dict[str, str]:
        return {"version": name, "url": url(GM, digest), "sha256": digest}

    versions = [{"version": "first", "url": "/a"}, version("again-new", "b" * 64), version("again-x", "c" * 64)]
    async with world(tmp_path) as w, w.gm() as cluster, w.node("edge0"), w.node("cloud0"):
        monkeypatch.setattr(w.manager._plane.files, "drop", drop)
        await w.apply(model("small", versions=versions, targetVersion="first"), model("big"), service())
        await w.apply(model("other", versions=versions[2:]))
        small = cluster.get(Key(MODELS, "default", "small"))
        assert small is not None
        await w.manager._plane.reconciler._edit(Edit(small, {"versions": versions[:1]}), small.key, _Outcome())
        assert dropped == ["b" * 64]  # another Model has the other one
