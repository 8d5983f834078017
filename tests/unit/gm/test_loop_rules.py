"""A TrainingModel with a loop in GM: what nodes receive in each state, what GM fetches and edits, and the status."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from halimede import api
from halimede.api.model import RolloutSpec
from halimede.api.trainingmodel import run_of
from halimede.errors import InvalidFieldError
from halimede.learning_loop.states import LoopState
from halimede.messages import ModelInUse, NodeStatus, Output, Status, TaskInfo, TrainingProgress, WorkerReport
from halimede.names import Key
from services.gm.cluster.port import NodeReport
from services.gm.controllers import CONTROLLERS, Observed, plan
from services.gm.controllers.base import Edit, Finalize, Forget, Pull, RecordEvent, Send, WriteStatus
from services.gm.controllers.loop_rules import state_of
from services.gm.nodes import Nodes
from services.gm.reconciler import SnapshotReader
from services.gm.reference_index import ReferenceIndex
from services.gm.service_status import Readiness, conclude
from services.gm.worker_file_store import FULL
from tests.unit.api.samples import SAMPLES
from tests.unit.api.test_resources import put
from tests.unit.gm.test_plan import node, reported, stored, verdict, written
from tests.unit.gm.test_training_model import FILE, MODEL, PLACED, as_stored
from tests.unit.gm.test_training_model import seen as seen_of_training

ROOT = Path(__file__).parents[3]
NOW = "2026-01-01T00:00:00Z"
SERVICE = Key("jointinferenceservices", "default", "digits")
LOOP = {"service": {"name": "digits"}, "command": 1, "labelled": 10, "easy": 0, "leastStratum": 0}
VERSIONS = [{"version": "aaaaaaaaaaaa", "url": "/a"}, {"version": "digits-new", "url": "/b", "sha256": "b" * 64}]


def body(service: str = "digits", **loop: Any) -> dict[str, Any]:
    found = put(put(SAMPLES["a training"], "spec.minClients", 1), "spec.clientsPerRound", 0)
    for i in (0, 1):
        found = put(found, f"spec.trainers.{i}.hardSamples", {"service": service})
    found = put(found, "spec.trainers.1.template.spec.nodeName", "edge1")
    return put(found, "spec.loop", {**LOOP, "service": {"name": service}, **loop})


TRAINING = stored(body())
STARTED = LoopState(
    state="Training",
    round=3,
    base="aaaaaaaaaaaa",
    begins_s=5.0,
    since_s=1_767_225_590.0,
    served=1,
    reason="Drift",
    trigger="Drift",
)
JUDGING = msgspec.structs.replace(STARTED, state="Judging", version=f"digits-{FILE.digest[:12]}")
CANARY = msgspec.structs.replace(STARTED, state="Canary", version="digits-new")
WITH_BOTH = {MODEL.key: as_stored(MODEL, versions=VERSIONS, targetVersion="aaaaaaaaaaaa")}


def entry(loop: LoopState | None) -> Any:
    return CONTROLLERS["trainingmodels"].entry(TRAINING, status_of(loop))


def status_of(loop: LoopState | None) -> Status | None:
    if loop is None:
        return None
    return conclude(Status(loop=msgspec.to_builtins(loop)), Readiness(loop.state, "Drift", ""), None, 1, NOW)


def edge(version: str = "aaaaaaaaaaaa", on: str = "edge0", **info: Any) -> dict[str, NodeReport]:
    worker = WorkerReport(name="w", role="edge", phase="Running", model=ModelInUse(digest="a", version=version))
    output = Output(task_info=TaskInfo(inference_number=100, **info))
    return {on: NodeReport(SERVICE, on, NodeStatus(phase="Running", output=output, workers=[worker]), edge=True)}


def reports(loop: LoopState, *, done: bool, compared: bool = False, reason: str = "") -> dict[str, NodeReport]:
    run = f"{TRAINING.metadata.uid}.{run_of(entry(loop).resource.spec)}"
    end = {"state": "done", "model": FILE} if done else {}
    evidence = {"compared": FILE.digest, "evidence": '{"error": "no"}', "samples": 3} if compared else {}
    parts: Any = {"cloud0": ("aggregator", "cloud", end)}
    parts |= {name: (name, "edge", {"reason": reason, **evidence}) for name in ("edge0", "edge1")}
    workers = {
        on: WorkerReport(
            name=part, role=role, part=part, phase="Running", training=TrainingProgress(run=run, rounds=30, **progress)
        )
        for on, (part, role, progress) in parts.items()
    }
    return {on: reported(TRAINING, on, worker, observed_generation=99) for on, worker in workers.items()}


def seen(loop: LoopState | None, **changes: Any) -> Observed:
    fresh = {"status": status_of(loop), "holders": frozenset(PLACED), "watched": {SERVICE: edge()}}
    return seen_of_training(**{**fresh, **changes})


def actions(loop: LoopState | None, **changes: Any) -> list[Any]:
    return plan(entry(loop).resource, seen(loop, **changes))


@pytest.mark.parametrize("state", ["Collecting", "Labelling", "Canary", "RolledOut", "Withdrawn"])
def test_nodes_hold_nothing_of_a_loop_that_trains_nothing(state: Any) -> None:
    found = actions(msgspec.structs.replace(STARTED, state=state))
    assert not [each for each in found if isinstance(each, Send)]
    assert {each.node for each in found if isinstance(each, Forget)} == set(PLACED)


@pytest.mark.parametrize("state", ["Training", "Judging"])
def test_nodes_receive_the_round_with_a_generation_that_grows_with_it(state: Any) -> None:
    found = actions(msgspec.structs.replace(STARTED, state=state))
    sent = {each.node: each.resource for each in found if isinstance(each, Send) and each.resource.key == TRAINING.key}
    assert set(sent) == set(PLACED)
    resource = sent["edge0"]
    assert resource.metadata.generation == TRAINING.metadata.generation + 3
    assert (resource.spec.loop.run.round, resource.spec.loop.run.since_s) == (3, 5.0)
    assert run_of(resource.spec).endswith("r3")
    later = entry(msgspec.structs.replace(STARTED, round=4)).resource
    assert later.metadata.generation > resource.metadata.generation
    assert run_of(later.spec) != run_of(resource.spec)


def test_a_command_begins_a_round_and_the_phase_is_the_state() -> None:
    status = written(actions(None))
    assert (status.phase, status.conditions[-1].reason) == ("Labelling", "Command")
    assert state_of(status).round == 1
    assert [each for each in actions(None) if isinstance(each, RecordEvent) and each.reason == "Labelling"]


def test_labels_of_the_service_lead_to_a_training() -> None:
    loop = state_of(written(actions(None)))
    waiting = written(actions(loop, watched={SERVICE: edge(labelled=9)}))
    condition = (waiting.phase, waiting.conditions[-1].message)
    assert condition == ("Labelling", "9 of 10 labelled samples, 0 of 0 audited easy ones")
    assert written(actions(loop, watched={SERVICE: edge(labelled=12)})).phase == "Training"


USED = stored(put(SAMPLES["a service of Sedna's"], "metadata.name", "digits"))
MANY = [{"version": f"v{i}", "url": "/a"} for i in range(64)]


@pytest.mark.parametrize(
    ("changes", "reason", "text"),
    [
        ({"watched": {SERVICE: None}}, "ServiceNotFound", "digits"),
        ({"related": {SERVICE: USED}}, "ModelNotUsed", USED.spec.edge_worker.model.name),
        ({"edited": {MODEL.key: as_stored(MODEL, versions=MANY, targetVersion="v0")}}, "TooManyVersions", ""),
        ({"watched": {SERVICE: edge() | edge("b" * 12, "edge1")}}, "VersionsDiffer", "aaaaaaaaaaaa, bbbbbbbbbbbb"),
    ],
    ids=["the service is missing", "it uses another model", "the model has no room", "versions of workers differ"],
)
def test_no_round_begins_and_the_condition_says_why_if(changes: dict[str, Any], reason: str, text: str) -> None:
    status = written(actions(None, **changes))
    assert verdict(status) == ("Pending", reason)
    assert text in status.conditions[-1].message
    assert state_of(status).round == 0


def test_an_earlier_candidate_gives_its_room_to_the_next_one() -> None:
    versions = [*MANY[:-1], {"version": "digits-old", "url": "/a"}]
    model = as_stored(MODEL, versions=versions, targetVersion="v0")
    assert written(actions(None, edited={MODEL.key: model})).phase == "Labelling"


def test_where_workers_are_pods_a_canary_is_the_version_of_all_samples() -> None:
    found = actions(CANARY, edited=WITH_BOTH, as_pods=True)
    assert [each.fields for each in found if isinstance(each, Edit)] == [{"targetVersion": "digits-new"}]
    assert written(found).phase == "Canary"


def test_a_pod_of_the_service_that_cannot_run_ends_a_canary_where_workers_are_pods() -> None:
    model = as_stored(MODEL, versions=VERSIONS, targetVersion="digits-new")
    fails = conclude(Status(failed=1), Readiness("Degraded", "CrashLoopBackOff", "no model"), None, 1, NOW)
    told: dict[str, Any] = {"statuses": {SERVICE: fails}, "edited": {MODEL.key: model}}
    status = written(actions(CANARY, **told, as_pods=True))
    assert (status.phase, status.conditions[-1].reason) == ("Withdrawn", "CanaryFailed")
    assert status.conditions[-1].message == "CrashLoopBackOff: no model"
    assert written(actions(CANARY, **told)).phase == "Canary"


def test_the_manifests_of_the_documentation_are_valid() -> None:
    text = (ROOT / "docs" / "learning-loop.md").read_text()
    found = [api.admit(yaml.safe_load(block)) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    assert [each.kind.kind for each in found] == ["JointInferenceService", "TrainingModel"]
    assert found[1].spec.loop.service.name == found[0].metadata.name


def test_the_model_is_fetched_while_the_aggregator_has_it_then_judged() -> None:
    told = reports(STARTED, done=True)
    assert [each.file.digest for each in actions(STARTED, reports=told) if isinstance(each, Pull)] == [FILE.digest]
    found = actions(STARTED, reports=told, pulled={FILE.digest: ""})
    assert not [each for each in found if isinstance(each, Pull)]
    status = written(found)
    assert (status.phase, state_of(status).version) == ("Judging", f"digits-{FILE.digest[:12]}")


def test_a_candidate_is_a_version_before_it_is_judged_and_gone_after_a_refusal() -> None:
    told = reports(JUDGING, done=True, compared=True)
    model = as_stored(MODEL, versions=[{"version": "aaaaaaaaaaaa", "url": "/a"}], targetVersion="aaaaaaaaaaaa")
    changes: dict[str, Any] = {"reports": told, "pulled": {FILE.digest: ""}, "edited": {MODEL.key: model}}
    found = actions(JUDGING, **changes)
    [edit] = [each for each in found if isinstance(each, Edit)]
    assert list(edit.fields) == ["rollout", "versions"]
    assert [each["version"] for each in edit.fields["versions"]] == ["aaaaaaaaaaaa", JUDGING.version]
    assert written(found).phase == "Judging"  # the evidence counts once the Model has the version
    model = as_stored(MODEL, versions=edit.fields["versions"], targetVersion="aaaaaaaaaaaa")
    status = written(actions(JUDGING, **{**changes, "edited": {MODEL.key: model}}))
    assert (status.phase, status.conditions[-1].reason) == ("Withdrawn", "CandidateNotLoaded")
    [edit] = [each for each in actions(state_of(status), edited={MODEL.key: model}) if isinstance(each, Edit)]
    assert [each["version"] for each in edit.fields["versions"]] == ["aaaaaaaaaaaa"]


@pytest.mark.parametrize(
    ("reason", "of_round"),
    [*((each, "TrainingFailed") for each in ("OutOfMemory", "TrainerInvalid", "TrainerFails", "DatasetOneClass")),
     ("LabelsContested", "LabelsContested")],
)  # fmt: skip
def test_trainers_that_cannot_train_end_the_round_with_their_reason(reason: str, of_round: str) -> None:
    status = written(actions(STARTED, reports=reports(STARTED, done=False, reason=reason)))
    assert (status.phase, status.conditions[-1].reason) == ("Withdrawn", of_round)
    assert reason == of_round or reason in status.conditions[-1].message


def test_a_canary_is_an_edit_of_the_model_with_its_percentage() -> None:
    [edit] = [each for each in actions(CANARY, edited=WITH_BOTH) if isinstance(each, Edit)]
    assert edit.fields == {"rollout": {"canaryPercent": 20, "auditShare": 0.2}, "targetVersion": "digits-new"}


def test_the_canary_of_a_loop_that_is_deleted_is_withdrawn_before_the_loop_is_gone() -> None:
    canary = msgspec.structs.replace(CANARY, restore=RolloutSpec())
    rollout = {"canaryPercent": 20, "auditShare": 0.2}
    leaving = stored(put(body(), "metadata.deletionTimestamp", NOW))
    fields: dict[str, Any] = {"versions": VERSIONS, "targetVersion": "digits-new", "rollout": rollout}
    for expected in (["rollout", "targetVersion"], ["versions"]):
        model = as_stored(MODEL, **fields)
        found = plan(leaving, seen(canary, holders=frozenset(), edited={MODEL.key: model}))
        [edit] = [each for each in found if isinstance(each, Edit)]
        assert sorted(edit.fields) == expected
        assert not [each for each in found if isinstance(each, Finalize)]
        fields |= edit.fields
    assert (fields["targetVersion"], fields["rollout"]) == ("aaaaaaaaaaaa", None)
    assert [each["version"] for each in fields["versions"]] == ["aaaaaaaaaaaa"]
    found = plan(leaving, seen(canary, holders=frozenset(), edited={MODEL.key: as_stored(MODEL, **fields)}))
    assert [each for each in found if isinstance(each, Finalize)]


@pytest.mark.parametrize(
    "change",
    [{"loop": None}, {"model": {"name": "digits-other"}}, body("other")["spec"]],
    ids=["no loop", "another model", "another service"],
)
def test_a_loop_that_leaves_its_model_in_a_round_takes_the_canary_back_and_counts_its_rounds_on(change: Any) -> None:
    canary = msgspec.structs.replace(CANARY, model="digits-small", service="digits")
    made, fields = body(), {"versions": VERSIONS, "targetVersion": "digits-new", "rollout": {"canaryPercent": 20}}
    made["spec"] = {**made["spec"], **change}
    status = status_of(canary)
    for expected in (["rollout", "targetVersion"], ["versions"], []):
        held = CONTROLLERS["trainingmodels"].entry(stored(made, generation=2), status)
        assert MODEL.key in held.edits
        assert held.resource.metadata.generation == 5
        edited = {MODEL.key: as_stored(MODEL, **fields)}
        found = plan(held.resource, seen(None, status=status, edited=edited, original=stored(made, generation=2)))
        edits = [each for each in found if isinstance(each, Edit)]
        assert [sorted(each.fields) for each in edits] == ([expected] if expected else [])
        for each in edits:
            fields |= each.fields
        status = next((each.status for each in found if isinstance(each, WriteStatus)), status)
        assert state_of(status).round == 3
    assert (fields["targetVersion"], [each["version"] for each in fields["versions"]]) == (
        "aaaaaaaaaaaa", ["aaaaaaaaaaaa"],
    )  # fmt: skip
    assert (state_of(status).state, state_of(status).model) == ("Collecting", "")


def of_service(name: str) -> Any:
    return CONTROLLERS["trainingmodels"].entry(stored(body(name, command=2), generation=2)).resource


def test_the_first_round_of_another_service_begins_with_the_counts_of_that_service() -> None:
    """Given a loop that has left its service, when the next one has fewer labels than that, they all count."""
    left = msgspec.structs.replace(
        STARTED, state="Collecting", base="", service="digits", used=500, begins=400, refusals=3, drifted=True
    )
    other = Key("jointinferenceservices", "default", "other")
    for labelled, state in ((9, "Labelling"), (12, "Training")):
        found = plan(of_service("other"), seen(left, watched={other: edge(labelled=labelled)}))
        loop = state_of(written(found))
        assert (loop.service, loop.round, loop.begins_s, loop.used) == ("other", 4, 0.0, 0)
        found = plan(of_service("other"), seen(loop, watched={other: edge(labelled=labelled)}))
        assert state_of(next((each.status for each in found if isinstance(each, WriteStatus)), None)).state == state
    assert state_of(written(actions(left))).used == 500, "its own service counts on"


def related(name: str) -> dict[str, Any]:
    other = CONTROLLERS["trainingmodels"].entry(stored(put(body(), "metadata.name", name))).resource
    return {"related": {other.key: other}}


def test_of_two_loops_of_one_model_only_the_first_by_name_edits_it() -> None:
    canary = msgspec.structs.replace(CANARY, model="digits-small")
    found = actions(canary, edited=WITH_BOTH, **related("cats"))
    [edit] = [each for each in found if isinstance(each, Edit)]
    assert [each["version"] for each in edit.fields["versions"]] == ["aaaaaaaaaaaa"], "its candidate is gone"
    status = written(found)
    assert (status.phase, status.conditions[-1].reason) == ("Pending", "LoopConflict")
    assert "trainingmodels/cats" in status.conditions[-1].message
    waiting = actions(None, **related("cats"))
    assert state_of(written(waiting)).state == "Collecting"
    assert not [each for each in waiting if isinstance(each, Edit)]
    assert written(actions(None, **related("zebra"))).phase == "Labelling"


def test_loops_of_one_model_know_each_other() -> None:
    index = ReferenceIndex(Nodes())
    other = CONTROLLERS["trainingmodels"].entry(stored(put(body(), "metadata.name", "eyes")))
    index.put(TRAINING.key, entry(None))
    index.put(other.resource.key, other)
    nothing: Any = None
    reader = SnapshotReader(nothing, nothing, nothing, index, nothing, pods=False, files=nothing)
    assert reader.related_resources(entry(None)) == {other.resource.key: other.resource}


def test_a_state_that_cannot_be_read_is_the_first_one() -> None:
    assert state_of(Status(loop={"state": "Dreaming"})) == LoopState()
    assert state_of(None) == LoopState()


def test_reports_on_the_service_concern_the_training() -> None:
    index = ReferenceIndex(Nodes())
    index.put(TRAINING.key, entry(None))
    assert set(index.watchers(SERVICE)) == {TRAINING.key}
    index.put(TRAINING.key, None)
    assert set(index.watchers(SERVICE)) == set()


@pytest.mark.parametrize(
    ("path", "value", "field", "fix"),
    [
        ("spec.loop.service.name", "other", "spec.trainers[0].hardSamples.service", "name that service"),
        ("spec.trainers.1.hardSamples", None, "spec.trainers[1]", "hardSamples"),
        ("spec.loop.run", {"round": 1}, "spec.loop.run", "GM sets it"),
        ("spec.loop.canary.percent", 100, "spec.loop.canary.percent", "to 99"),
        ("spec.loop.canary.percents", 10, "spec.loop.canary.percents", "did you mean percent"),
        ("spec.loop.labelled", 0, "spec.loop.labelled", "of 1 or more"),
        ("spec.loop.service", None, "spec.loop.service", "required"),
    ],
)
def test_a_mistake_in_a_loop_is_an_error_that_names_the_field(path: str, value: Any, field: str, fix: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        api.admit(put(put(body(), "spec.loop.canary", {}), path, value))
    assert caught.value.field == field
    assert fix in str(caught.value)


def added(loop: LoopState, **changes: Any) -> list[str]:
    """Return the versions that the Model gets."""
    model = as_stored(MODEL, versions=[{"version": loop.base, "url": "/a"}], targetVersion=loop.base)
    found = actions(loop, edited={MODEL.key: model}, pulled={FILE.digest: ""}, **changes)
    edits = [each.fields for each in found if isinstance(each, Edit)]
    return [each["version"] for fields in edits for each in fields.get("versions", ())]


def test_a_trainer_whose_node_is_offline_does_not_hold_up_the_judgement() -> None:
    told = reports(JUDGING, done=True, compared=True) | {"edge1": reports(JUDGING, done=True)["edge1"]}
    away = {name: replace(node(name), online=name != "edge1") for name in PLACED}
    assert added(JUDGING, reports=told) == []
    assert added(JUDGING, reports=told, nodes=away) == [JUDGING.base, JUDGING.version]


def test_a_comparison_of_a_trainer_that_cannot_train_does_not_count_for_another_one() -> None:
    unable = reports(JUDGING, done=True, compared=True, reason="DatasetTooSmall")["edge0"]
    assert added(JUDGING, reports=reports(JUDGING, done=True) | {"edge0": unable}) == []


def test_only_versions_between_which_the_loop_chooses_keep_their_calibration() -> None:
    versions = [{"version": name, "url": "/a", "calibration": "{}"} for name in ("old", JUDGING.base)]
    model = as_stored(MODEL, versions=versions, targetVersion=JUDGING.base)
    told = reports(JUDGING, done=True, compared=True)
    found = actions(JUDGING, edited={MODEL.key: model}, pulled={FILE.digest: ""}, reports=told)
    [edit] = [each for each in found if isinstance(each, Edit)]
    assert [each.get("calibration", "") for each in edit.fields["versions"][:2]] == ["", "{}"]


def test_a_store_without_room_for_the_candidate_ends_the_round_with_that_reason() -> None:
    told = reports(STARTED, done=True)
    full = written(actions(STARTED, reports=told, pulled={FILE.digest: f"{FULL} (10 bytes)"}))
    assert (full.phase, full.conditions[-1].reason) == ("Withdrawn", "TrainingFailed")
    assert FULL in full.conditions[-1].message
    again = written(actions(STARTED, reports=told, pulled={FILE.digest: "the worker is not reached"}))
    assert state_of(again).state == "Training"


def test_a_loop_advances_by_a_step_and_not_by_a_look_at_the_status() -> None:
    resource, rules = entry(STARTED).resource, CONTROLLERS["trainingmodels"]
    observed = seen(STARTED, reports=reports(STARTED, done=True), pulled={FILE.digest: ""})
    status = rules.status(resource, observed)
    assert (status.loop, status.phase) == (None, "Running")
    stepped = rules.step(resource, observed, status, None)
    assert (stepped.loop or {})["state"] == stepped.phase == "Judging"
