"""Sedna's jobs that train in GM: when their workers run, and when the Model gets their result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halimede.api import Resource
from halimede.api.trainingmodel import run_of
from halimede.messages import DatasetFacts, NodeStatus, Status, TensorFile, TrainingProgress, WorkerReport
from halimede.names import Key
from services.gm.cluster.port import NodeReport, StoredResource
from services.gm.controllers import CONTROLLERS, Observed, plan
from services.gm.controllers.base import Edit, Pull, Send
from services.gm.controllers.worker_service import roles_of
from tests.unit.api.samples import SAMPLES
from tests.unit.api.test_resources import put
from tests.unit.gm.test_plan import deliveries, reported, seen_where, stored, verdict, written
from tests.unit.gm.test_training_model import resource

FEDERATED, INCREMENTAL = SAMPLES["a federated job of Sedna's"], SAMPLES["an incremental job of Sedna's"]
FILE = TensorFile(digest="e" * 64, size=10)


NAMED = [
    resource("Model", "first-weights", "tensors"), resource("Model", "helmets"), resource("Model", "defects"),
    resource("Dataset", "helmets", "images"), resource("Dataset", "defects-0", "images"),
    resource("Dataset", "defects-1", "images"),
]  # fmt: skip


def seen(asked: Resource[Any], samples: int = 100, done: Any = None, **changes: Any) -> tuple[Resource[Any], Observed]:
    """Return a job in the form of the controller, and what GM knows of it; ``done``: what its aggregator reports."""
    entry = CONTROLLERS[asked.kind.plural].entry(asked)
    placed: dict[str, frozenset[str]] = {}
    for role in entry.roles:
        placed[role.pod.node_name] = placed.get(role.pod.node_name, frozenset()) | {role.name}
    facts = DatasetFacts(number_of_samples=samples)
    counted = {"edge0": NodeReport(NAMED[3].key, "edge0", NodeStatus(phase="Ready", uid="u", dataset=facts))}
    watched = {key: counted if key.plural == "datasets" else None for key in entry.watches}
    edited = {key: StoredResource(each) for key in entry.edits for each in NAMED if each.key == key}
    reports = {} if done is None else of_aggregator(entry.resource, **done)
    fresh = {"original": asked, "edited": edited, "watched": watched, "reports": reports}
    return entry.resource, seen_where(placed, *NAMED, **{**fresh, **changes})


def of_aggregator(desired: Resource[Any], **progress: Any) -> dict[str, NodeReport]:
    run = f"{desired.metadata.uid}.{run_of(desired.spec)}"
    told = {"run": run, "rounds": desired.spec.rounds, "state": "done", "reason": "RoundsDone", "model": FILE}
    training = TrainingProgress(**{**told, **progress})
    worker = WorkerReport(name="a", role="cloud", part="aggregator", phase="Running", training=training)
    node = next(role.pod.node_name for role in roles_of(desired) if role.name == "aggregator")
    return {node: reported(desired, node, worker)}


def status(desired: Resource[Any], observed: Observed) -> Status:
    return written(plan(desired, observed))


def test_nodes_get_a_federated_job_as_its_user_wrote_it() -> None:
    asked = stored(FEDERATED)
    desired, observed = seen(asked)
    sent = {action.resource.key: action for action in deliveries(desired, observed) if isinstance(action, Send)}
    assert sent[asked.key].resource.body == asked.body
    assert NAMED[4].key in sent


def test_the_model_of_a_federated_job_gets_a_version() -> None:
    desired, observed = seen(stored(FEDERATED), done={}, pulled={FILE.digest: ""})
    [edit] = [action for action in plan(desired, observed) if isinstance(action, Edit)]
    assert edit.stored.key == Key("models", "default", "defects")
    assert edit.fields["targetVersion"] == "defects-eeeeeeeeeeee"


def test_what_scripts_of_sedna_train_is_no_version_and_the_job_is_done() -> None:
    body = FEDERATED
    for path in ("aggregationWorker", "trainingWorkers.0", "trainingWorkers.1"):
        body = put(body, f"spec.{path}.template.spec.containers.0.command", ["python", "script.py"])
    desired, observed = seen(stored(body), done={"rounds": 3})
    assert not [action for action in plan(desired, observed) if isinstance(action, Pull | Edit)]
    found = status(desired, observed)
    assert verdict(found) == ("Done", "NotAdded")
    assert "script" in found.conditions[-1].message
    after = replace(observed, status=found, holders=frozenset({"cloud0"}))
    assert not [action for action in deliveries(desired, after) if isinstance(action, Send)]


def test_an_incremental_job_trains_once_there_are_samples_enough() -> None:
    asked = stored(INCREMENTAL)
    desired, observed = seen(asked, samples=50)
    assert not [action for action in deliveries(desired, observed) if isinstance(action, Send)]
    found = status(desired, observed)
    assert verdict(found) == ("Pending", "TooFewSamples")
    assert "50 samples" in found.conditions[-1].message
    desired, observed = seen(asked, samples=51)
    assert Send("edge0", desired) in deliveries(desired, observed)
    # once it has begun it goes on, whatever happens to the samples
    begun = status(*seen(asked, samples=51, done={"state": "open", "round": 1, "model": None}))
    desired, observed = seen(asked, samples=10, status=begun)
    assert Send("edge0", desired) in deliveries(desired, observed)


@pytest.mark.parametrize(
    ("accuracy", "before", "added"), [(0.95, "0.8", True), (0.85, "0.8", False), (0.2, None, True)]
)
def test_a_version_must_gain_what_the_job_asks_for(accuracy: float, before: str | None, added: bool) -> None:
    metrics = [{"key": "accuracy", "value": before}] if before else []
    model = StoredResource(resource("Model", "helmets", metrics=metrics))
    told = {"pulled": {FILE.digest: ""}, "edited": {model.key: model}}
    desired, observed = seen(stored(INCREMENTAL), done={"metrics": {"accuracy": accuracy}}, **told)
    edits = [action for action in plan(desired, observed) if isinstance(action, Edit)]
    assert bool(edits) is added
    if not added:
        found = status(desired, observed)
        assert verdict(found) == ("Done", "NotAdded")
        assert "accuracy_delta is 0.05, and must be > 0.1" in found.conditions[-1].message


def test_a_metric_that_the_trainer_does_not_have_is_named() -> None:
    asked = stored(put(INCREMENTAL, "spec.deploySpec.trigger.condition.metric", "precision_delta"))
    found = status(*seen(asked, done={"metrics": {"accuracy": 0.9}}, pulled={FILE.digest: ""}))
    assert "no metric precision for precision_delta: it has accuracy" in found.conditions[-1].message


def test_a_job_waits_for_a_training_of_the_same_name() -> None:
    desired, observed = seen(stored(FEDERATED))
    rival = Key("trainingmodels", "default", "defects")
    assert rival in observed.watched
    there = replace(observed, watched={rival: {}})
    assert not [action for action in deliveries(desired, there) if isinstance(action, Send)]
    assert verdict(status(desired, there)) == ("Pending", "NameConflict")
