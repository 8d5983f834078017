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
from halimede.names import Key
from services.gm.workloads import pod_history
from tests.integration.gm_world import DATASETS, MODELS, MULTI_EDGE, SERVICES, dataset, model, multi_edge
from tests.integration.inference_models import PLURAL as SERVED
from tests.integration.inference_models import inference_model
from tests.kubernetes.apiserver import Api, User, on_double
from tests.kubernetes.double.access import Access, Rule
from tests.kubernetes.podstates import running
from tests.kubernetes.recorded import left
from tests.kubernetes.test_joint_inference_groups import neptune
from tests.kubernetes.test_training_model import training
from tests.kubernetes.world import PATIENCE, World, gm_rules, world
from tests.simulated import eventually

pytestmark = pytest.mark.slow

CLOUD, NETWORK = "helmet-deployment-cloud", "helmet-cloud"
HPA = f"hpa-{CLOUD}"
MADE = {"Deployment": CLOUD, "Service": NETWORK, "HorizontalPodAutoscaler": HPA, "Ingress": "faces"}
#: asked of no request's own, but by an admission plugin about requests that name an owner
BY_PLUGIN = {
    ("sedna.io", "jointinferenceservices/finalizers", "update"),
    ("neptune.io", "jointinferenceservices/finalizers", "update"),
    ("sedna.io", "multiedgeinferenceservices/finalizers", "update"),
    ("sedna.io", "inferencemodels/finalizers", "update"),
    ("ai.kubeedge.io", "inferencemodels/finalizers", "update"),
    ("sedna.io", "trainingmodels/finalizers", "update"),
    ("ai.kubeedge.io", "trainingmodels/finalizers", "update"),
    ("sedna.io", "federatedlearningjobs/finalizers", "update"),
    ("sedna.io", "incrementallearningjobs/finalizers", "update"),
}
Right = tuple[str, str, str]


def rights(namespace: str) -> Iterator[dict[str, Any]]:
    """The role's rules, each cut down to one verb on one kind."""
    for rule in gm_rules(namespace):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield {**rule, "apiGroups": [group], "resources": [resource], "verbs": [verb]}


def right_of(rule: dict[str, Any]) -> Right:
    """Name a rule of one verb."""
    return rule["apiGroups"][0], rule["resources"][0], rule["verbs"][0]


NAMES = sorted({right_of(rule) for rule in rights("any")})


async def whole_life(w: World, user: User) -> None:
    """Have GM do everything that it ever does."""
    api = w.api
    async with w.node(w.cloud), w.gm(user=user) as gm:
        async with w.node(w.edge) as edge:
            await api.client.create("Secret", w.namespace, {"metadata": {"name": "s3"}})
            small = model("small", url="s3://bucket/small.onnx", credentialName="s3")
            body = w.service(dataset={"name": "frames"})
            body["spec"]["cloudWorker"]["hpa"] = {"minReplicas": 1, "maxReplicas": 3}
            exposed = inference_model(ingress={"host": "faces.example"})
            other = {**inference_model("other"), "apiVersion": KUBEEDGE}
            several = multi_edge(north=w.edge, south=w.edge)
            w.player.behave(left("pod-initializing"), "crossing")
            await w.apply(small, model("big"), dataset("frames"), body, neptune(w, "seed"), exposed, other)
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
            await changed_by_hand(w)
            await adopted(w)
            del body["spec"]["cloudWorker"]["hpa"]
            body["spec"]["edgeWorker"]["deadlineMs"] = 500
            await w.apply(body)
            await w.reaches("Running", generation=2)
            await eventually(lambda: _gone(w, "HorizontalPodAutoscaler", HPA), PATIENCE)
            await w.apply(inference_model())
            await eventually(lambda: _gone(w, "Ingress", "faces"), PATIENCE)
            await w.apply(multi_edge(north=w.edge))
            await eventually(lambda: _gone(w, "Deployment", "crossing-deployment-south"), PATIENCE)
            await w.delete()
            await eventually(lambda: _without_service(w), PATIENCE)
            await eventually(lambda: Key(SERVICES, w.namespace, "helmet") not in edge.holds, PATIENCE)
        # the same once more is told by raising the count of an event
        for times in (1, 2):
            async with w.node(w.edge):
                await eventually(lambda times=times: _told(w, times), PATIENCE)
        assert gm.lost == 0


async def trained(w: World) -> None:
    """Apply a training of each kind and group."""
    samples = dataset("samples")
    samples["spec"] |= {"url": "/data/samples", "nodeName": w.edge}
    await w.apply(samples)
    spec = training(w)["spec"]
    aggregator, trainer = spec["aggregator"]["template"], spec["trainers"][0]["template"]
    spec["trainers"][0]["dataset"]["name"] = "samples"
    federated = {
        "aggregationWorker": {"model": {"name": "small"}, "template": aggregator},
        "trainingWorkers": [{"dataset": {"name": "samples"}, "template": trainer}],
    }
    always = {"operator": ">=", "threshold": 0, "metric": "num_of_samples"}
    incremental = {
        "initialModel": {"name": "small"},
        "dataset": {"name": "samples", "trainProb": 0.8},
        "trainSpec": {"template": trainer, "trigger": {"condition": always}},
        "evalSpec": {"template": aggregator},
        "deploySpec": {
            "model": {"name": "small"},
            "trigger": {"condition": {**always, "metric": "accuracy_delta"}},
            "template": trainer,
        },
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


async def changed_by_hand(w: World) -> None:
    """Change what GM has made; it is changed back."""
    await _patched(w, {"metadata": {"annotations": {"halimede.io/digest": "x"}}}, "annotations")


async def adopted(w: World) -> None:
    """Take off the label by which GM finds what it has made; it finds that by its name."""
    await _patched(w, {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}}, "labels")


async def _patched(w: World, patch: dict[str, Any], what: str) -> None:
    for kind, name in MADE.items():
        await w.api.client.patch(kind, w.namespace, name, patch)
    for kind, name in MADE.items():
        await eventually(lambda kind=kind, name=name: _again(w, kind, name, what), PATIENCE)


async def _again(w: World, kind: str, name: str, what: str) -> bool:
    found = await w.object(kind, name)
    assert found is not None
    marks = found["metadata"].get(what) or {}
    digest, manager = marks.get("halimede.io/digest", "x"), marks.get("app.kubernetes.io/managed-by")
    return bool(manager if what == "labels" else digest != "x")


async def _gone(w: World, kind: str, name: str) -> bool:
    return await w.object(kind, name) is None


async def _without_service(w: World) -> bool:
    return await w.find() is None


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
