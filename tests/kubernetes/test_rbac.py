"""The role that the manifests give GM: all that it needs, and nothing else.

The whole life of a service is played by a GM under that role; then again by one that begins without any right and is
given each when it is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from halimede.api.base import SEDNA
from halimede.api.inferencemodel import KUBEEDGE
from services.gm.cluster.kubernetes.leader_election import DURATION, GIVE_UP
from services.gm.workloads import pod_history
from tests.integration.gm_world import DATASETS, MODELS, MULTI_EDGE, dataset, model, multi_edge
from tests.integration.inference_models import PLURAL as SERVED
from tests.integration.inference_models import inference_model
from tests.kubernetes.apiserver import Api, User, on_double
from tests.kubernetes.client import Body
from tests.kubernetes.double.access import Access, Rule
from tests.kubernetes.podstates import running
from tests.kubernetes.recorded import left
from tests.kubernetes.trainings import training
from tests.kubernetes.world import CLOUD, PATIENCE, World, gm_rules, world
from tests.seeds.samples import service as seed_service
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.slow

HPA = f"hpa-{CLOUD}"
MADE = {"Deployment": CLOUD, "Service": "helmet-cloud", "HorizontalPodAutoscaler": HPA, "Ingress": "faces"}
OWNERS = {
    "jointinferenceservices": ("sedna.io", "neptune.io"),
    "multiedgeinferenceservices": ("sedna.io",),
    "inferencemodels": ("sedna.io", "ai.kubeedge.io"),
    "trainingmodels": ("sedna.io", "ai.kubeedge.io"),
    "federatedlearningjobs": ("sedna.io",),
    "incrementallearningjobs": ("sedna.io",),
}
#: asked of no request's own, but by an admission plugin about requests that name an owner
BY_PLUGIN = {(group, f"{plural}/finalizers", "update") for plural, groups in OWNERS.items() for group in groups}
MANAGED_BY = "app.kubernetes.io/managed-by"
Right = tuple[str, str, str]


def rights(namespace: str) -> Iterator[dict[str, Any]]:
    """The role's rules, each cut down to one verb on one kind."""
    for rule in gm_rules(namespace):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield {**rule, "apiGroups": [group], "resources": [resource], "verbs": [verb]}


def right_of(rule: dict[str, Any]) -> Right:
    return rule["apiGroups"][0], rule["resources"][0], rule["verbs"][0]


NAMES = sorted({right_of(rule) for rule in rights("any")})


async def whole_life(w: World, user: User) -> None:
    """Have GM do everything that it ever does."""
    api = w.api
    w.timing = {"duration_s": patience(DURATION), "give_up_s": patience(GIVE_UP)}  # of a busy machine as well
    async with w.node(w.cloud), w.gm(user=user) as gm:
        async with w.node(w.edge) as edge:
            await api.client.create("Secret", w.namespace, {"metadata": {"name": "s3"}})
            small = model("small", url="s3://bucket/small.onnx", credentialName="s3")
            body = w.service(dataset={"name": "frames"})
            body["spec"]["cloudWorker"]["hpa"] = {"minReplicas": 1, "maxReplicas": 3}
            exposed = inference_model(ingress={"host": "faces.example"})
            other = {**inference_model("other"), "apiVersion": KUBEEDGE}
            seed = seed_service("seed", w.edge, w.cloud, models=("small", "big"))
            several = multi_edge(north=w.edge, south=w.edge)
            w.player.behave(left("pod-initializing"), "crossing")
            await w.apply(small, model("big"), dataset("frames"), body, seed, exposed, other)
            await w.reaches("Running", name="faces", plural=SERVED)
            with mock.patch.object(pod_history, "LATE_S", 0.1):  # it looks for the events of a pod that takes long
                await w.apply(several)
                await w.reaches("Pending", name="crossing", plural=MULTI_EDGE)
                await eventually(lambda: _events_read(w), 2 * PATIENCE)
            w.player.behave(running, "crossing")
            await w.reaches("Running", name="crossing", plural=MULTI_EDGE)
            await w.reaches("Running", name="other", plural=SERVED, version=KUBEEDGE)
            await w.reaches("Running")
            await w.reaches("Running", name="seed", version="neptune.io/v1alpha1")
            await w.reaches("Ready", name="small", plural=MODELS)
            await w.reaches("Ready", name="frames", plural=DATASETS)
            await trained(w)
            await patched(w, {"annotations": {"halimede.io/digest": "x"}}, "halimede.io/digest")  # it is changed back
            # by this label GM finds what it has made; now it finds that by its name
            await patched(w, {"labels": {MANAGED_BY: None}}, MANAGED_BY)
            del body["spec"]["cloudWorker"]["hpa"]
            body["spec"]["edgeWorker"]["deadlineMs"] = 500
            await w.apply(body)
            await w.reaches("Running", generation=2)
            await api.until_gone("HorizontalPodAutoscaler", HPA)
            await w.apply(inference_model())
            await api.until_gone("Ingress", "faces")
            await w.apply(multi_edge(north=w.edge))
            await api.until_gone("Deployment", "crossing-deployment-south")
            await w.delete()
            await w.until_gone()
            await eventually(lambda: w.key() not in edge.holds, PATIENCE)
        # the same once more is told by raising the count of an event
        for times in (1, 2):
            async with w.node(w.edge):
                await eventually(lambda times=times: _told(w, times), PATIENCE)
        assert gm.lost == 0


async def trained(w: World) -> None:
    """Apply a training of each kind and group."""
    await w.apply(dataset("samples", nodeName=w.edge))
    spec = training(w, trainer={"dataset": {"name": "samples"}})["spec"]
    aggregator, trainer = spec["aggregator"]["template"], spec["trainers"][0]["template"]
    small = {"name": "small"}
    federated = {
        "aggregationWorker": {"model": small, "template": aggregator},
        "trainingWorkers": [{"dataset": {"name": "samples"}, "template": trainer}],
    }
    always = {"operator": ">=", "threshold": 0, "metric": "num_of_samples"}
    better = always | {"metric": "accuracy_delta"}
    incremental = {
        "initialModel": small,
        "dataset": {"name": "samples", "trainProb": 0.8},
        "trainSpec": {"template": trainer, "trigger": {"condition": always}},
        "evalSpec": {"template": aggregator},
        "deploySpec": {"model": small, "trigger": {"condition": better}, "template": trainer},
    }
    for group, kind, name, plural, body in (
        (SEDNA, "TrainingModel", "train-one", "trainingmodels", spec),
        (KUBEEDGE, "TrainingModel", "train-two", "trainingmodels", spec),
        (SEDNA, "FederatedLearningJob", "federated", "federatedlearningjobs", federated),
        (SEDNA, "IncrementalLearningJob", "incremental", "incrementallearningjobs", incremental),
    ):
        await w.apply({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": body})
        await w.reaches("Running", name=name, plural=plural, version=group)


def _events_read(w: World) -> bool:
    """Whether GM has looked for events; nobody tells that of a real server."""
    return w.api.double is None or any((r.resource, r.verb) == ("events", "list") for r in w.api.control.log)


async def patched(w: World, meta: Body, key: str) -> None:
    """Patch all that GM has made, and wait until it has its key again."""
    for kind, name in MADE.items():
        await w.api.client.patch(kind, w.namespace, name, {"metadata": meta})
    for kind, name in MADE.items():
        await w.becomes(kind, name, lambda body: _mark(body["metadata"], key) not in {"", "x"})


def _mark(meta: Body, key: str) -> str:
    return str((meta.get("labels", {}) | meta.get("annotations", {})).get(key, ""))


async def _told(w: World, times: int) -> bool:
    events = (await w.api.client.list("Event", "default"))["items"]
    return any(e["involvedObject"].get("name") == w.edge and e["count"] >= times for e in events)


async def test_everything_that_gm_does_is_allowed_and_all_that_is_allowed_is_done(api: Api) -> None:
    async with world(api) as w:
        user = await w.user()
        await whole_life(w, user)
        if api.double is None:
            return  # nobody tells what was asked of a real server; that it has not stood in the way is shown
        control = api.control
        assert control.forbidden == []
        asked = [r for r in control.log if r.user == user.name and r.resource]
        done = {(r.group, f"{r.resource}/{r.subresource}".rstrip("/"), r.verb) for r in asked}
        assert done | BY_PLUGIN == set(NAMES)
        assert all(r.name in {"", "halimede-gm"} for r in asked if r.resource == "leases")


async def gives_what_is_missed(access: Access, user: User, withheld: dict[Right, dict[str, Any]]) -> None:
    """Give a right as soon as something was forbidden for want of it."""
    while True:
        for refusal in access.forbidden:
            rule = withheld.pop((refusal.act.group, refusal.act.resource, refusal.act.verb), None)
            if rule is not None:
                access.grant(user.token, Rule.read(rule))
        await asyncio.sleep(0.01)


@pytest.mark.timeout(300)
async def test_without_any_one_of_its_rights_something_is_forbidden(tmp_path: Path) -> None:
    """One life shows it for all rights: each is withheld until it is missed, and nothing else is missed."""
    async with on_double(tmp_path) as api, world(api) as w:
        withheld = {right_of(rule): rule for rule in rights(w.namespace)}
        user, access = await api.user("gm", []), api.control.access
        giver = asyncio.create_task(gives_what_is_missed(access, user, withheld))
        try:
            await whole_life(w, user)
        finally:
            giver.cancel()
            await asyncio.wait([giver])
        missed = {(each.act.group, each.act.resource, each.act.verb) for each in access.forbidden}
        assert missed == set(NAMES)
