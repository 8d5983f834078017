"""What to do, given what is held, what is ready and what runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.api import neptune, parse
from halimede.api.base import NEPTUNE, kind_of
from halimede.messages import ModelOutput
from halimede.names import Key
from services.lc.credentials import NodeCredentials
from services.lc.models import lookup
from services.lc.models.lookup import ParsedResources
from services.lc.paths import NodePaths, Worker
from services.lc.planning import process_planner, template_process
from services.lc.planning.plan import ObservedWorker, Plan, plan
from services.lc.planning.process_planner import ProcessPlanner
from services.lc.planning.resource_state import Preparation
from services.lc.planning.template_process import Host
from services.lc.store import NodeResource
from tests.integration.inference_models import inference_model
from tests.integration.lc_world import CLOUD, EDGE, HELMET, SMALL, model, service
from tests.unit.gm.workloads.world import neptune_form

HOST = Host("python", "/app", 1, 1)
NODE = ProcessPlanner("edge0", {}, NodePaths(Path("/home"), "edge0"), "127.0.0.1:1883", HOST)


def decide(
    *bodies: dict[str, Any],
    ready: Any = True,
    running: Any = (),
    node: ProcessPlanner = NODE,
    complete: bool = True,
    deleted: Any = (),
) -> Plan:
    """Plan for these resources. ``ready``: True, False, or preparations as they are."""
    held = {}
    for body in bodies:
        meta = body["metadata"]
        key = Key(kind_of(body["kind"]).plural, meta["namespace"], meta["name"])
        held[key] = NodeResource(key, meta["uid"], meta["generation"], body)
    items = ParsedResources().read(held)
    wanted = plan(items, {}, {}, node).prepare
    here = {key: Preparation(want, "Ready", path=Path(f"/cache/{key.name}")) for key, want in wanted.items()}
    preparations = here if ready is True else ready or {}
    observed = {r.worker: r for r in running}
    return plan(items, preparations, observed, node, complete=complete, is_deleted=lambda uid: uid in deleted)


def runs(
    spec_hash: str = "", uid: str = "u1", worker: Worker = EDGE, service: Key = HELMET, **fields: Any
) -> ObservedWorker:
    return ObservedWorker(worker, service, uid, spec_hash, **fields)


@pytest.fixture
def digest() -> str:
    """That of the edge worker of the service as it is."""
    return decide(model(), service()).start[0].spec.digest


def test_a_worker_starts_once_its_model_is_ready() -> None:
    decided = decide(model(), service())
    assert [(s.worker, s.service, s.uid, s.role) for s in decided.start] == [(EDGE, HELMET, "u1", "edge")]
    env = decided.start[0].spec.env
    assert (env["MODEL_URL"], env["HALIMEDE_BROKER"]) == ("/cache/small", "127.0.0.1:1883")
    assert env["HALIMEDE_STATE"] == "/home/nodes/edge0/workers/default/helmet-edge-edge0"
    mining = [{"key": "threshold_margin", "value": "0.2"}]
    assert (env["HEM_NAME"], json.loads(env["HEM_PARAMETERS"])) == ("Margin", mining)
    assert (env["DEADLINE_MS"], env["GRACE_S"], env["SERVICE_UID"], env["NODE_NAME"]) == ("2000", "10", "u1", "edge0")
    assert "SOURCE" not in env


def test_an_edge_worker_waits_for_its_detector_and_is_told_which_boxes_are_cropped() -> None:
    detecting = service(detector={"name": "finder", "maxBoxes": 7})
    waiting = decide(model(), detecting)
    assert not waiting.start
    assert "finder" in waiting.states[HELMET].lacks[EDGE].message
    env = decide(model(), model("finder"), detecting).start[0].spec.env
    assert (env["DETECTOR_URL"], json.loads(env["DETECTOR"])) == ("/cache/finder", {"name": "finder", "maxBoxes": 7})
    assert "finder" in env["DETECTOR_SPEC"]


def test_a_worker_is_told_its_credentials_whatever_the_template_says() -> None:
    guarded = replace(NODE, credentials=NodeCredentials(Path("/site/nodes/edge0")))
    own = [{"name": "HALIMEDE_CREDENTIALS", "value": ""}, {"name": "MINE", "value": "1"}]
    for env in ([], own):
        told = decide(model(), service(edge={"env": env}), node=guarded).start[0].spec.env
        assert told["HALIMEDE_CREDENTIALS"] == "/site/nodes/edge0/edge-worker"
        assert "/lc" not in str(told)
    assert told["MINE"] == "1"
    assert "HALIMEDE_CREDENTIALS" not in decide(model(), service()).start[0].spec.env


@pytest.mark.parametrize("source", [{"url": "rtsp://127.0.0.1/1"}, {"cameras": ["cam0"]}])
def test_which_addresses_a_camera_may_have_is_the_nodes_to_say(source: dict[str, Any]) -> None:
    env = [{"name": "HALIMEDE_FETCH_ALLOW", "value": "loopback"}]
    bodies = model(), service(edge={"env": env}, source=source)
    for allowed in ("", "10.0.0.0/8"):
        (start,) = decide(*bodies, node=replace(NODE, fetch_allow=allowed)).start
        assert start.spec.env["HALIMEDE_FETCH_ALLOW"] == allowed


def test_the_model_is_described_without_where_it_came_from() -> None:
    bodies = model(url="https://u:secret@host/m?token=secret", labels=["a"], credentialName="key"), service()
    decided = decide(*bodies)
    assert "secret" not in str(decided.start[0].spec)
    described = {"url": "/cache/small", "format": "onnx", "labels": ["a"]}
    assert json.loads(decided.start[0].spec.env["MODEL_SPEC"]) == described
    assert decided.states[SMALL].models == (ModelOutput(format="onnx", url="https://***@host/m?***"),)


def test_the_source_goes_down_as_it_stands() -> None:
    env = decide(model(), service(source={"cameras": ["cam0"]})).start[0].spec.env
    assert json.loads(env["SOURCE"]) == {"cameras": ["cam0"]}


def test_a_cloud_worker_is_told_nothing_of_mining() -> None:
    decided = decide(model("big"), service(edge_node="edge9", cloud_node="edge0"))
    assert decided.start[0].worker == CLOUD
    assert not {"HEM_NAME", "SOURCE", "DEADLINE_MS"} & set(decided.start[0].spec.env)


FAILED = {SMALL: Preparation(decide(model()).prepare[SMALL], "Failed", "NotFound", "/m does not exist")}


@pytest.mark.parametrize(
    ("bodies", "ready", "expected", "message"),
    [
        ((service(),), True, ("Pending", "ModelNotFound"), "Model small is not yet on node edge0"),
        ((model(), service()), False, ("Pending", "ModelNotReady"), "Model small: waiting for its download"),
        ((model(), service()), FAILED, ("Failed", "ModelNotReady"), "Model small: /m does not exist"),
    ],
    ids=["is not there", "is being prepared", "failed"],
)
def test_a_service_waits_and_says_why_if_its_model(bodies: Any, ready: Any, expected: Any, message: str) -> None:
    decided = decide(*bodies, ready=ready)
    assert decided.start == ()
    lack = decided.states[HELMET].lacks[EDGE]
    assert (lack.phase, lack.reason) == expected
    assert lack.message == message
    if SMALL in decided.states:
        assert decided.states[SMALL].settled.phase == lack.phase


def test_the_same_again_changes_nothing(digest: str) -> None:
    decided = decide(model(), service(), running=[runs(digest)])
    assert (decided.start, decided.stop) == ((), ())


def test_an_adopted_worker_that_is_still_right_is_asked_for_and_not_stopped(digest: str) -> None:
    decided = decide(model(), service(), running=[runs(digest, confirmed=False)])
    assert [s.worker for s in decided.start] == [EDGE]
    assert decided.stop == ()


@pytest.mark.parametrize(
    "changed",
    [
        service(generation=2, deadlineMs=1),
        service(generation=2, source={"path": "/frames"}),
        service(generation=2, edge={"args": ["--new"]}),
        service(generation=2, edge={"resources": {"limits": {"memory": "1Gi"}}}),
        service(uid="u2"),
    ],
)
def test_a_changed_spec_replaces_the_worker(digest: str, changed: dict[str, Any]) -> None:
    decided = decide(model(), changed, running=[runs(digest)])
    assert (decided.stop, decided.start) == ((EDGE,), ())
    assert [s.worker for s in decide(model(), changed).start] == [EDGE]


def changed_model(ready: Any = True, **fields: Any) -> Plan:
    """Plan for a worker that runs an earlier model than is asked for."""
    before = decide(model(), service()).start[0]
    new = model(generation=2, url="/new.onnx", labels=["a"])
    return decide(new, service(), ready=ready, running=[runs(before.spec.digest, model=before.desired_model, **fields)])


@pytest.mark.parametrize(("swaps", "stop"), [(False, (EDGE,)), (None, ())], ids=["is replaced", "has not reported"])
def test_a_worker_that_does_not_take_a_changed_model_is_replaced_once_it_says_so(
    swaps: bool | None, stop: tuple[Worker, ...]
) -> None:
    decided = changed_model(swaps=swaps)
    assert (decided.start, decided.stop, decided.swap) == ((), stop, ())


def test_a_changed_model_is_given_to_a_worker_that_takes_it_while_it_runs() -> None:
    decided = changed_model(swaps=True)
    assert (decided.start, decided.stop) == ((), ())
    (swap,) = decided.swap
    assert (swap.worker, swap.desired_model.spec["labels"]) == (EDGE, ["a"])


@pytest.mark.parametrize("swaps", [True, False])
def test_a_changed_model_is_nothing_to_the_worker_before_it_is_there(swaps: bool) -> None:
    old_preparation = {SMALL: Preparation(decide(model()).prepare[SMALL], "Ready", path=Path("/cache/small"))}
    waiting = changed_model(old_preparation, swaps=swaps)
    assert (waiting.start, waiting.stop, waiting.swap) == ((), (), ())


def test_what_only_describes_a_model_concerns_no_worker() -> None:
    before = decide(model(), service()).start[0]
    described = {"metrics": [{"key": "accuracy", "value": "0.9"}], "metadata": {"site": "north"}, "nodeName": "edge0"}
    about = model(generation=2, task="classification", **described)
    for swaps in (True, False):
        running = [runs(before.spec.digest, model=before.desired_model, swaps=swaps)]
        decided = decide(about, service(), running=running)
        assert (decided.start, decided.stop, decided.swap) == ((), (), ())


@pytest.mark.parametrize(
    "about", [{"metadata": {"site": "north"}}, {"nodeName": "edge0"}, {"nodeSelector": {"a": "b"}}]
)
def test_what_is_about_a_model_concerns_neither_its_trial_nor_a_script(about: dict[str, Any]) -> None:
    plain, named = decide(model(), service()), decide(model(**about), service())
    assert named.prepare[SMALL].spec == plain.prepare[SMALL].spec
    assert named.start[0].spec.env["MODEL_SPEC"] == plain.start[0].spec.env["MODEL_SPEC"]


def test_a_share_of_the_samples_is_asked_for_without_a_new_start() -> None:
    before = decide(model(), service()).start[0]
    part = model(generation=2, rollout={"canaryPercent": 10})
    swapping = decide(part, service(), running=[runs(before.spec.digest, model=before.desired_model, swaps=True)])
    assert [s.desired_model and s.desired_model.canary_percent for s in swapping.swap] == [10]
    fixed = decide(part, service(), running=[runs(before.spec.digest, model=before.desired_model, swaps=False)])
    assert (fixed.stop, fixed.swap) == ((), ())


def test_of_a_stopped_worker_the_plan_has_how_it_starts_again(digest: str) -> None:
    edited = decide(model(), service(generation=2, edge={"args": ["x"]}), running=[runs(digest)])
    assert [(s.worker, s.spec.argv[-1]) for s in edited.successors] == [(EDGE, "x")]
    assert decide(model(), running=[runs(digest)]).successors == ()
    assert decide(model(), service(), running=[runs(digest)]).successors == ()


def test_a_change_that_does_not_concern_the_worker_leaves_it_alone(digest: str) -> None:
    changed = service(generation=2, cloud={"args": ["x"]})
    assert decide(model(), changed, running=[runs(digest)]).stop == ()


def test_the_old_worker_serves_on_when_the_new_template_is_refused(digest: str) -> None:
    decided = decide(model(), service(generation=2, edge={"image": "nginx"}), running=[runs(digest)])
    assert (decided.start, decided.stop) == ((), ())
    assert decided.states[HELMET].lacks[EDGE].reason == "UnsupportedTemplate"
    assert decided.states[HELMET].generation == 2


def test_the_worker_of_an_earlier_uid_does_not_serve_on() -> None:
    assert decide(service(uid="u2"), running=[runs(uid="u1")]).stop == (EDGE,)


@pytest.mark.parametrize("bodies", [(), (model(),)])
def test_a_worker_whose_service_is_gone_stops(bodies: Any) -> None:
    assert decide(*bodies, running=[runs()]).stop == (EDGE,)


def test_a_worker_that_has_no_place_here_any_more_stops() -> None:
    moved = service(generation=2, edge_node="edge1", cloud_node="edge0")
    decided = decide(model(), model("big"), moved, running=[runs()])
    assert decided.stop == (EDGE,)
    assert [s.worker for s in decided.start] == [CLOUD]


def test_while_the_store_is_not_complete_nothing_unknown_is_stopped() -> None:
    assert decide(running=[runs()], complete=False).stop == ()
    assert decide(model(), service(uid="u2"), running=[runs()], complete=False).stop == (EDGE,)


def test_while_the_store_is_not_complete_workers_of_a_deleted_service_are_stopped() -> None:
    lost = runs(uid="u2", worker=CLOUD, service=Key(HELMET.plural, "default", "lost"))
    assert decide(running=[runs(), lost], complete=False, deleted={"u1"}).stop == (EDGE,)


def test_labels_of_the_node_decide_where_a_selector_matches() -> None:
    body = service(template={"spec": {"nodeSelector": {"role": "edge"}, "containers": [{}]}})
    assert decide(model(), body).start == ()
    standing = decide(model(), body).states[HELMET]
    assert standing.settled.reason == "NoPlacement"
    labelled = ProcessPlanner("edge0", {"role": "edge"}, NODE.folders, NODE.broker, HOST)
    assert [s.worker for s in decide(model(), body, node=labelled).start] == [EDGE]


def test_a_name_that_leaves_no_room_for_the_workers_is_a_condition() -> None:
    body = service("h" * 250)
    decided = decide(model(), body)
    (lack,) = decided.states[Key("jointinferenceservices", "default", "h" * 250)].lacks.values()
    assert lack.reason == "NameTooLong"


def test_a_resource_that_cannot_be_read_is_reported_and_the_others_go_on() -> None:
    decided = decide(model(), service(), service("other", unheardOf=1))
    assert [s.worker for s in decided.start] == [EDGE]
    settled = decided.states[Key("jointinferenceservices", "default", "other")].settled
    assert (settled.phase, settled.reason) == ("Failed", "InvalidResource")
    assert "unheardOf" in settled.message


def lacking(*bodies: dict[str, Any]) -> Plan:
    """Plan where the model's file is present and its package is not."""
    (want,) = decide(*bodies).prepare.values()
    here = Preparation(want, "Ready", "NotInstalled", "run pip install 'halimede[tflite]'", Path("/cache/small"))
    return decide(*bodies, ready={SMALL: here})


def test_our_worker_does_not_start_without_the_package_of_its_models_format() -> None:
    decided = lacking(model(format="tflite"), service())
    assert not decided.start
    lack = decided.states[HELMET].lacks[EDGE]
    assert (lack.phase, lack.reason) == ("Failed", "NotInstalled")
    assert lack.message == "Model small: run pip install 'halimede[tflite]'"


@pytest.mark.parametrize(
    "container", [{"env": [{"name": "ESTIMATOR", "value": "mine:Detector"}]}, {"command": ["python", "mine.py"]}]
)
def test_a_users_own_code_starts_whatever_the_format_of_its_model_needs(container: dict[str, Any]) -> None:
    bodies = model(format="tflite"), service(edge=container)
    assert [start.worker for start in lacking(*bodies).start] == [EDGE]


def test_a_service_whose_model_cannot_be_read_says_so() -> None:
    decided = decide({**model(), "spec": {"url": "gopher://x", "format": "onnx"}}, service())
    assert decided.states[HELMET].lacks[EDGE].phase == "Failed"
    assert "gopher" in decided.states[HELMET].lacks[EDGE].message


def test_the_neptune_form_is_for_gm_to_translate_and_then_runs_the_users_script() -> None:
    form = service() | {"apiVersion": NEPTUNE, "spec": neptune_form()["spec"]}
    refused = decide(model(), form).states[HELMET].settled
    assert refused.reason == "InvalidResource"
    spec = decide(model(), neptune.to_sedna(parse(form))).start[0].spec
    assert (spec.argv, spec.cwd) == (("python", "run.py"), "/data/code")
    assert (spec.env["PYTHONPATH"], spec.env["nms_threshold"], spec.env["HEM_NAME"]) == ("/data/code", "0.6", "IBT")
    assert [path.path for path in spec.paths] == ["/data/code"]


FIELDS = sorted(
    template_process.POD_ACCEPTED | template_process.CONTAINER_ACCEPTED
    | {"runAsUser", "limits", "memory", "cpu", "hostPath", "mountPath", "path"}
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
    | st.sampled_from(["Always", "100E", "9e99", "512Mi", "$(A)", "/data", "python", "edge0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
PARTS = st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4)


@settings(deadline=None)
@given(PARTS, PARTS)
def test_no_template_whatsoever_ends_the_plan(pod: dict[str, Any], container: dict[str, Any]) -> None:
    spec = {"nodeName": "edge0", "containers": [{"image": "halimede/worker", **container}], **pod}
    decided = decide(model(), service(), service("other", uid="u2", template={"spec": spec}))
    assert HELMET in {start.service for start in decided.start}
    standing = decided.states[Key("jointinferenceservices", "default", "other")]
    assert "Internal" not in str(standing)
    for start in decided.start:
        assert start.spec.digest
        assert (start.spec.memory_bytes or 0) < 2**63


def broken(*_: Any, **__: Any) -> Any:
    raise AttributeError("hunter2")


@pytest.mark.parametrize("where", ["to_process", "placements", "redact"])
def test_a_mistake_of_ours_is_a_condition_and_stops_no_worker(
    digest: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup if where == "redact" else process_planner, where, broken)
    decided = decide(model(), service(), running=[runs(digest)])
    assert (decided.start, decided.stop) == ((), ())
    lacks = [lack for s in decided.states.values() for lack in (s.settled, *s.lacks.values()) if lack]
    assert ("Failed", "Internal") in {(lack.phase, lack.reason) for lack in lacks}
    assert "hunter2" not in str(lacks)


def test_a_mistake_of_ours_with_one_worker_leaves_the_other_of_its_service_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken_at_the_edge(body: Any, program: str, *rest: Any, at: str) -> Any:
        return broken() if program == "edge" else template_process.to_process(body, program, *rest, at=at)  # type: ignore[arg-type]

    monkeypatch.setattr(process_planner, "to_process", broken_at_the_edge)
    decided = decide(model(), model("big"), service(cloud_node="edge0"))
    assert [start.worker for start in decided.start] == [CLOUD]
    assert decided.states[HELMET].lacks[EDGE].reason == "Internal"


def test_a_resource_whose_reading_breaks_is_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "parse", broken)
    settled = decide(service()).states[HELMET].settled
    assert (settled.phase, settled.reason) == ("Failed", "Internal")
    assert "hunter2" not in settled.message


def test_datasets_are_wanted_too() -> None:
    body = {**model("images"), "kind": "Dataset", "spec": {"url": "/data/images", "format": "txt"}}
    decided = decide(body, ready=False)
    assert [want.url for want in decided.prepare.values()] == ["/data/images"]
    assert decided.states[Key("datasets", "default", "images")].models == ()


@pytest.mark.parametrize(
    ("http", "served"),
    [("127.0.0.1:0", "127.0.0.1:8501"), ("[::1]:0", "[::1]:8501"), (":0", ":8501"), ("off", "127.0.0.1:8501")],
)
def test_a_model_is_served_where_its_node_shows_itself_and_never_further(http: str, served: str) -> None:
    manifest = [{"version": "1", "downloadURL": "/models/face.onnx"}]
    body = inference_model("face", deployToLayer="edge", nodeName="edge0", manifest=manifest, servingPort=8501)
    node = replace(NODE, http=http)
    held = NodeResource(Key("inferencemodels", "default", "face"), "u1", 1, body)
    want = node.served_file(held, parse(body))
    _, starts = node.server(held, parse(body), Preparation(want, "Ready", path=Path("/cache/face.onnx")))
    (start,) = starts.values()
    argv = start.spec.argv
    assert argv[argv.index("--http") + 1] == served
