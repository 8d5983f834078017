"""A learning loop where workers are pods: from a command to the roll-out of a candidate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from halimede.api import parse
from halimede.api.trainingmodel import run_of
from halimede.messages import ModelInUse, TaskInfo, TrainingProgress, WorkerReport
from tests.integration.gm_world import FakeNode, dataset, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body
from tests.kubernetes.trainings import FILE, PLURAL, report, store, training
from tests.kubernetes.world import EDGE, PATIENCE, World, world
from tests.simulated import eventually
from tests.unit.gm.test_loop_facts import GOOD, evidence

AGGREGATOR, TRAINER = (f"again-deployment-training-{name}" for name in ("aggregator", "edge0"))
BASE = "a" * 64
CANDIDATE = f"again-{FILE.digest[:12]}"
#: the share of audits that agree, by version
AGREES = {BASE[:12]: 0.6, CANDIDATE: 1.0}
LOOP = {
    "service": {"name": "helmet"}, "command": 1, "labelled": 50, "easy": 0, "leastStratum": 0, "afterAudits": 20,
    "gate": {"least": 50}, "triggers": {"drift": False},
}  # fmt: skip


def version_of(pod: Body) -> str:
    """The version of the model that a pod gets."""
    env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
    spec = msgspec.json.decode(env["MODEL_SPEC"])
    return str(spec.get("targetVersion") or spec["sha256"][:12])


class Reporter:
    """What local controllers report on the pods that run: the edge workers' counts, and a training's progress."""

    def __init__(self, w: World, edge: FakeNode, cloud: FakeNode) -> None:
        self.w, self.edge, self.cloud = w, edge, cloud
        self.service, self.training = w.key(), w.key("again", PLURAL)
        #: versions in use, in the order in which they were
        self.used: list[str] = []
        #: pods that trained, by worker
        self.trained: dict[str, set[str]] = {}
        #: whether the candidate's answers are audited: without audits it stays a canary
        self.audits_candidate = asyncio.Event()

    async def run(self) -> None:
        while True:
            pods = [each for each in (await self.w.api.client.list("Pod", self.w.namespace))["items"] if _answers(each)]
            self._serve([each for each in pods if "-deployment-edge-" in each["metadata"]["name"]])
            self._train([each for each in pods if "-training-" in each["metadata"]["name"]])
            await asyncio.sleep(0.1)

    def _serve(self, pods: list[Body]) -> None:
        if self.service not in self.edge.holds or not pods:
            return
        pod = pods[0]  # while an update replaces one, the player ends the old one at once
        version = version_of(pod)
        if self.used[-1:] != [version]:
            self.used.append(version)
        info = msgspec.structs.replace(self.edge.counts.get(self.service, TaskInfo()))
        info.inference_number += 40
        info.hard_example_number += 20
        if version != CANDIDATE or self.audits_candidate.is_set():
            info.audited += 10
            info.audit_agreed += round(10 * AGREES[version])
        info.labelled += 30
        self.edge.counts[self.service] = info
        digest = FILE.digest if version == CANDIDATE else BASE
        self.edge.overrides["edge"] = WorkerReport(
            name=pod["metadata"]["name"], role="edge", phase="Running", model=ModelInUse(digest=digest, version=version)
        )
        self.edge.report(self.service)

    def _train(self, pods: list[Body]) -> None:
        for node, part, role in ((self.cloud, "aggregator", "cloud"), (self.edge, "edge0", "edge")):
            own = [each for each in pods if f"-training-{part}-" in each["metadata"]["name"]]
            if self.training not in node.holds or not own:
                continue
            self.trained.setdefault(part, set()).update(each["metadata"]["uid"] for each in own)
            uid, _, body = node.holds[self.training]
            told = TrainingProgress(run=f"{uid}.{run_of(parse(body).spec)}", rounds=1, round=1)
            if part == "aggregator":
                told = msgspec.structs.replace(told, state="done", model=FILE, reason="RoundsDone")
            else:
                told = msgspec.structs.replace(told, compared=FILE.digest, evidence=evidence(GOOD), samples=50)
            report(node, self.training, part, role, told)


def _answers(pod: Body) -> bool:
    ready = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions") or []}
    return not pod["metadata"].get("deletionTimestamp") and ready.get("Ready") == "True"


@contextlib.asynccontextmanager
async def reported(w: World) -> AsyncIterator[Reporter]:
    """Two nodes whose controllers report, and the resources of a loop with a round by command."""
    async with w.node(w.edge) as edge, w.node(w.cloud) as cloud:
        made = Reporter(w, edge, cloud)
        task = asyncio.create_task(made.run())
        service = w.service()
        service["spec"]["edgeWorker"] |= {"keepHardSamples": {}, "auditShare": 0.2}
        again = training(w, "again", {"hardSamples": {"service": "helmet"}}, rounds=1, loop=LOOP)
        await w.apply(dataset("frames", nodeName=w.edge), model("small", sha256=BASE), model("big"), service, again)
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()


def has_ended(status: Body) -> bool:
    loop = status.get("loop") or {}
    return bool(loop.get("history")) and loop["state"] == "Collecting"


async def test_a_round_from_command_to_roll_out_replaces_the_pods_and_stands_restarts_of_gm(api: Api) -> None:
    async with world(api) as w, reported(w) as nodes:
        async with w.gm("gm-0"):  # it does not get the file, so the round waits in this state
            await w.reaches("Training", name="again", plural=PLURAL)
            await eventually(lambda: w.object("Deployment", TRAINER), PATIENCE)
            for name, volume in ((EDGE, "halimede-kept"), (TRAINER, "halimede-samples")):
                volumes = {each["name"]: each for each in (await w.pod_of(name))["volumes"]}
                kept = f"/var/lib/halimede/nodes/{w.edge}/kept/{w.namespace}/helmet"
                assert volumes[volume]["hostPath"]["path"] == kept
        async with w.gm("gm-1") as gm:
            store(gm)
            await w.reaches("Canary", name="again", plural=PLURAL)
        nodes.audits_candidate.set()
        async with w.gm("gm-2") as gm:
            store(gm)
            record = (await w.shows(has_ended, "again", PLURAL))["loop"]["history"][0]
            assert (record["outcome"], record["reason"]) == ("RolledOut", "CanaryAuditsHold"), record["message"]
            assert record["before"]["value"] < record["after"]["value"]
            small = await w.find("small", "models") or {}
            assert small["spec"]["targetVersion"] == CANDIDATE
            assert "rollout" not in small["spec"]
            assert nodes.used == [BASE[:12], CANDIDATE]
            await api.until_gone("Deployment", AGGREGATOR)
            # no edit of the Model in between has replaced a pod that trains
            assert {part: len(pods) for part, pods in nodes.trained.items()} == {"aggregator": 1, "edge0": 1}
