"""TrainingModels in GM: what nodes receive, what GM fetches and edits, and what the status says. Each step once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from halimede.api import Resource
from halimede.api.trainingmodel import run_of
from halimede.messages import Status, TensorFile, TrainingProgress, WorkerReport
from services.gm.candidate_version import MAX_SPEC_VERSIONS
from services.gm.cluster.port import NodeReport, StoredResource
from services.gm.controllers import CONTROLLERS, Observed, plan
from services.gm.controllers.base import Edit, Forget, Keep, Pull, Send, WriteStatus
from tests.integration import gm_world
from tests.unit.api.samples import SAMPLES
from tests.unit.api.test_resources import put
from tests.unit.gm.test_plan import deliveries, reported, seen_where, stored, verdict, written


def resource(kind: str, name: str, form: str = "onnx", **spec: Any) -> Resource[Any]:
    return stored(gm_world.resource(kind, name, url=f"/{name}", format=form, **spec))


MODEL, WEIGHTS = resource("Model", "digits-small"), resource("Model", "digits-weights", "tensors")
CODE, DATA = resource("Model", "digits-trainer", "python"), resource("Dataset", "digits-0", "images")
SPEC = put(put(SAMPLES["a training"], "spec.trainers.1.template.spec.nodeName", "edge1"), "spec.minClients", 1)
TRAINING = stored(put(SPEC, "spec.clientsPerRound", 0))
RUN = f"{TRAINING.metadata.uid}.{run_of(TRAINING.spec)}"
FILE = TensorFile(digest="d" * 64, size=1000)
PLACED = {"cloud0": frozenset({"aggregator"}), "edge0": frozenset({"edge0"}), "edge1": frozenset({"edge1"})}


def as_stored(model: Resource[Any], **fields: Any) -> StoredResource:
    return StoredResource(stored({**model.body, "spec": {**model.body["spec"], **fields}}))


def seen(**changes: Any) -> Observed:
    return seen_where(PLACED, MODEL, DATA, CODE, WEIGHTS, **{"edited": {MODEL.key: as_stored(MODEL)}, **changes})


def worker(part: str, phase: Any = "Running", reason: str = "", **progress: Any) -> WorkerReport:
    role: Any = "cloud" if part == "aggregator" else "edge"
    told = TrainingProgress(run=RUN, rounds=30, **progress)
    return WorkerReport(name=f"digits.{part}", role=role, part=part, phase=phase, reason=reason, training=told)


def reports(aggregator: WorkerReport, *trainers: WorkerReport) -> dict[str, NodeReport]:
    own = trainers or (worker("edge0", samples=10), worker("edge1", samples=20))
    return {on: reported(TRAINING, on, each) for on, each in zip(PLACED, (aggregator, *own), strict=True)}


def rounds(**progress: Any) -> WorkerReport:
    return worker("aggregator", state="open", round=3, metrics={"accuracy": 0.8}, evaluated=3, **progress)


def done() -> WorkerReport:
    end = {"state": "done", "reason": "RoundsDone", "round": 30, "metrics": {"accuracy": 0.9}, "evaluated": 31}
    training = TrainingProgress(run=RUN, rounds=30, model=FILE, bytes=5, **end)
    return msgspec.structs.replace(worker("aggregator"), training=training)


def status(resource: Resource[Any] = TRAINING, **changes: Any) -> Status:
    return written(plan(resource, seen(**changes)))


def steps(**changes: Any) -> list[Any]:
    return [action for action in plan(TRAINING, seen(**changes)) if isinstance(action, Pull | Edit)]


VERSION = {"version": "v", "url": "/v", "sha256": FILE.digest}
ADDED = {MODEL.key: as_stored(MODEL, versions=[VERSION], targetVersion="v")}
FINISHED = status(reports=reports(done()), edited=ADDED)


def test_each_node_gets_what_its_workers_need_before_the_training() -> None:
    assert deliveries(TRAINING, seen()) == [
        *(Send("cloud0", each) for each in (CODE, WEIGHTS, MODEL, TRAINING)),
        *(Send("edge0", each) for each in (CODE, MODEL, DATA, TRAINING)),
        *(Send("edge1", each) for each in (CODE, MODEL, TRAINING)),
    ]
    without = seen(references={MODEL.key: MODEL, DATA.key: None, CODE.key: CODE, WEIGHTS.key: WEIGHTS})
    assert Keep("edge0", TRAINING.key, TRAINING.metadata.uid) in deliveries(TRAINING, without)
    assert verdict(CONTROLLERS[TRAINING.key.plural].status(TRAINING, without)) == ("Pending", "DatasetNotFound")


def test_the_other_group_is_sent_to_nodes_in_the_one_form_that_they_read() -> None:
    other = stored(TRAINING.body | {"apiVersion": "ai.kubeedge.io/v1alpha1"})
    entry = CONTROLLERS[TRAINING.key.plural].entry(other)
    assert (entry.resource.kind.api_version, entry.edits) == ("sedna.io/v1alpha1", (MODEL.key,))


def test_the_progress_is_that_of_the_aggregator() -> None:
    found = status(reports=reports(rounds(dropped={"Late": 2}, bytes=700)))
    assert verdict(found) == ("Running", "Training")
    assert found.conditions[-1].message == "round 3 of 30, accuracy 0.8"
    assert found.training is not None
    assert msgspec.to_builtins(found.training) == {
        "run": run_of(TRAINING.spec), "state": "open", "round": 3, "rounds": 30, "trainers": 2, "samples": 30,
        "evaluated": 3, "metrics": [{"key": "accuracy", "value": "0.8"}], "dropped": [{"key": "Late", "value": "2"}],
        "bytes": 700,
    }  # fmt: skip
    nodes = {"aggregator": "cloud0", "edge0": "edge0", "edge1": "edge1"}
    assert {each.name: each.node for each in found.workers} == nodes


def test_reports_of_another_training_of_the_resource_do_not_count() -> None:
    old = msgspec.structs.replace(done(), training=TrainingProgress(run="uid-digits.0ld", state="done", model=FILE))
    assert steps(reports=reports(old)) == []
    assert status(reports=reports(old)).training == status().training


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        (worker("edge1", "Failed", "CrashLoopBackOff"), ("Degraded", "CrashLoopBackOff")),
        (worker("edge1", reason="DatasetEmpty"), ("Degraded", "DatasetEmpty")),
        (worker("edge1", reason="TrainerFails"), ("Degraded", "TrainerFails")),
        (worker("edge1", "Pending", "Starting"), ("Degraded", "WorkerNotUp")),
        (worker("edge1", reason="Starved"), ("Degraded", "Starved")),
    ],
)
def test_rounds_go_on_without_some_trainers(trainer: WorkerReport, expected: tuple[str, str]) -> None:
    assert verdict(status(reports=reports(rounds(), worker("edge0"), trainer))) == expected


def test_rounds_go_on_if_all_workers_are_starved() -> None:
    head = msgspec.structs.replace(rounds(), reason="Starved", message="it got 1 % of a core")
    trainers = [worker(name, reason="Starved") for name in ("edge0", "edge1")]
    assert verdict(status(reports=reports(head, *trainers))) == ("Degraded", "Starved")


@pytest.mark.parametrize(
    ("phase", "reason", "expected"),
    [
        ("Running", "DatasetOneClass", ("Pending", "DatasetOneClass")),
        ("Running", "OutsideHours", ("Pending", "OutsideHours")),
        ("Running", "TrainerInvalid", ("Failed", "TrainerInvalid")),
        ("Running", "OutOfMemory", ("Failed", "OutOfMemory")),
        ("Pending", "Starting", ("Pending", "WorkerNotUp")),
        ("Pending", "ContainerCreating", ("Pending", "WorkerNotUp")),
        ("Pending", "PodInitializing", ("Pending", "WorkerNotUp")),
    ],
)
def test_without_enough_trainers_it_waits_or_has_failed(phase: str, reason: str, expected: tuple[str, str]) -> None:
    trainers = worker("edge0", phase, reason), worker("edge1", phase, reason)
    assert verdict(status(reports=reports(rounds(), *trainers))) == expected


@pytest.mark.parametrize(
    ("phase", "reason"),
    [("Pending", "Restarting"), ("Pending", "ModelNotReady"), ("Running", "WorkerSilent"), ("Failed", "ModelMissing")],
)
def test_trainers_that_start_again_or_wait_have_not_failed(phase: str, reason: str) -> None:
    """A loop withdraws its candidate when a training has failed, so a restart after a crash must not be that."""
    trainers = worker("edge0", phase, reason), worker("edge1", phase, reason)
    assert verdict(status(reports=reports(rounds(), *trainers))) == ("Pending", reason)
    failed = worker("edge0", "Failed", "CrashLoopBackOff"), worker("edge1", phase, reason)
    assert status(reports=reports(rounds(), *failed)).phase == "Failed"


def test_an_aggregator_that_fails_fails_the_training() -> None:
    failed = worker("aggregator", "Failed", "Diverged")
    assert verdict(status(reports=reports(failed))) == ("Failed", "Diverged")


def test_a_trained_model_is_fetched_then_added_then_done() -> None:
    told = {"reports": reports(done())}
    [pull] = steps(**told)
    assert (pull.file.source, pull.file.digest) == ("digits.aggregator", FILE.digest)
    assert verdict(status(**told)) == ("Running", "AddingVersion")
    # GM is killed here or anywhere below: the next one decides the same by what is there
    failed = {**told, "pulled": {FILE.digest: "the worker is not reached"}}
    assert isinstance(steps(**failed)[0], Pull)
    assert verdict(status(**failed)) == ("Pending", "ModelNotFetched")
    there = {**told, "pulled": {FILE.digest: ""}}
    [edit] = steps(**there)
    version = "digits-dddddddddddd"
    assert edit.fields == {
        "versions": [{"version": version, "url": f"bus://gm/sha256/{FILE.digest}", "sha256": FILE.digest}],
        "targetVersion": version,
        "metrics": [{"key": "accuracy", "value": "0.9"}],
        "metadata": {"trainedBy": "default/digits", "trainedRound": "31"},
    }
    added = {**there, "edited": {MODEL.key: as_stored(MODEL, **edit.fields)}}
    assert steps(**added) == []
    found = status(**added)
    assert verdict(found) == ("Done", "RoundsDone")
    assert (found.training.version, found.training.digest) == (version, FILE.digest)
    assert found.conditions[-1].message == f"version {version} of Model digits-small after 30 rounds: accuracy 0.9"


def test_a_training_that_is_done_leaves_its_nodes_and_stays_done() -> None:
    later = {"status": FINISHED, "holders": frozenset(PLACED)}
    sent = deliveries(TRAINING, seen(**later))
    assert sent == [Forget(name, TRAINING.key, TRAINING.metadata.uid, 0) for name in sorted(PLACED)]
    assert [action for action in plan(TRAINING, seen(**later)) if isinstance(action, WriteStatus)] == []
    # somebody sets another version: that is theirs to decide
    other = {**later, "reports": reports(done()), "edited": {MODEL.key: as_stored(MODEL)}}
    assert steps(**other) == []


def test_an_edit_after_the_end_begins_a_training_again() -> None:
    more = stored(put(TRAINING.body, "spec.rounds", 40), generation=2)
    observed = seen(status=FINISHED, edited=ADDED)
    assert Send("cloud0", more) in deliveries(more, observed)
    again = CONTROLLERS[more.key.plural].status(more, observed)
    assert again.phase == "Pending"
    assert (again.training.state, again.training.version) == ("waiting", "")
    # the aggregator has not got the edit yet: that it is done with fewer rounds does not count
    late = replace(observed, reports=reports(done()))
    assert list(CONTROLLERS[more.key.plural].edits(more, late)) == []


def test_a_version_that_is_there_already_is_only_put_in_force() -> None:
    versions = [{"version": "mine", "url": "/mine"}, {"version": "old", "url": "/o", "sha256": FILE.digest}]
    model = as_stored(MODEL, versions=versions, targetVersion="mine")
    [edit] = steps(reports=reports(done()), edited={MODEL.key: model})
    assert edit.fields["targetVersion"] == "digits-dddddddddddd"
    assert [each["version"] for each in edit.fields["versions"]] == ["mine", "digits-dddddddddddd"]


def test_a_model_without_room_for_a_version_loses_none_of_its_users() -> None:
    users = [{"version": f"v{i}", "url": f"/v{i}"} for i in range(MAX_SPEC_VERSIONS)]
    full = {"reports": reports(done()), "pulled": {FILE.digest: ""}}
    model = {MODEL.key: as_stored(MODEL, versions=users)}
    assert steps(**full, edited=model) == []
    assert verdict(status(**full, edited=model)) == ("Pending", "TooManyVersions")
    own = [*users[1:], {"version": "digits-aaaa", "url": "/a"}]
    [edit] = steps(**full, edited={MODEL.key: as_stored(MODEL, versions=own)})
    left = [each["version"] for each in edit.fields["versions"]]
    assert "digits-aaaa" not in left
    assert len(left) == MAX_SPEC_VERSIONS


def test_a_model_with_all_the_metadata_that_it_can_have_gets_the_version_without_its_origin() -> None:
    metadata = {f"key{i}": "value" for i in range(64)}
    told = {"reports": reports(done()), "pulled": {FILE.digest: ""}}
    [edit] = steps(**told, edited={MODEL.key: as_stored(MODEL, metadata=metadata)})
    assert edit.fields["metadata"] == metadata


def test_users_metrics_and_metadata_of_the_model_stay() -> None:
    own = {"metrics": [{"key": "size", "value": "4"}, {"key": "accuracy", "value": "0.1"}], "metadata": {"site": "a"}}
    [edit] = steps(reports=reports(done()), pulled={FILE.digest: ""}, edited={MODEL.key: as_stored(MODEL, **own)})
    assert edit.fields["metrics"] == [{"key": "size", "value": "4"}, {"key": "accuracy", "value": "0.9"}]
    assert edit.fields["metadata"]["site"] == "a"


def test_only_the_node_where_the_aggregator_is_placed_reports_its_model() -> None:
    moved = {"edge0": PLACED["cloud0"] | PLACED["edge0"], "edge1": PLACED["edge1"]}
    assert steps(reports=reports(done()), placed=moved) == []  # the report of a node that it has left
    forged = replace(reports(done())["cloud0"], node="edge1")
    assert steps(reports={"edge1": forged}) == []
    assert status(reports={"edge1": forged}).training == status().training
    # of the placed one, the file is fetched from the worker that reports it
    old = msgspec.structs.replace(done(), name="old", training=TrainingProgress(run="uid.0ld", rounds=30))
    told = reports(done())["cloud0"]
    both = replace(told, status=msgspec.structs.replace(told.status, workers=[old, done()]))
    [pull] = steps(reports={"cloud0": both})
    assert pull.file.source == "digits.aggregator"
