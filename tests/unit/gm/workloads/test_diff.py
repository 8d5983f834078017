"""What is written, and that nothing is written twice."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gm.cluster.port import Ref
from services.gm.workloads.deployments import Built
from services.gm.workloads.diff import Ensure, Remove, contains, differences, patch_for
from services.gm.workloads.object_names import DIGEST
from tests.kubernetes.double.patches import merge
from tests.unit.gm.workloads.builds import built
from tests.unit.gm.workloads.server import normalise
from tests.unit.gm.workloads.world import UID, container, neptune, service, template

HPA = {"maxReplicas": 3, "metrics": []}


def deployment(of: Built | None = None) -> dict[str, Any]:
    return next(b for b in (of or built()).objects if b["metadata"]["name"] == "helmet-deployment-edge")


def edge(first: dict[str, Any] | None = None, **of_pod: Any) -> dict[str, Any]:
    return deployment(built(service(edge=template(first, **of_pod))))


def stored(of: Built) -> dict[Ref, dict[str, Any]]:
    return {Ref.of(body): normalise(body) for body in of.objects}


quantities = st.sampled_from([
    "500m", "0.5", "1024Mi", "1Gi", "1", 1, 0.1, "1e3", "1E", "0", ".5", "1.", "0.0001", "9" * 19, "2Gi", "1500m", "+1",
])  # fmt: skip
names = st.sampled_from(["a", "b", "c"])
texts = st.sampled_from(["", "x", "0.5", "1Gi", "$(A)"])
amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage"]), quantities, max_size=3)
probes = st.fixed_dictionaries(
    {"httpGet": st.fixed_dictionaries({"port": st.just(1)}, optional={"path": texts})},
    optional={"periodSeconds": st.integers(0, 20)},
)
variables = st.fixed_dictionaries({"name": names}, optional={"value": texts})
beginnings = {
    "args": st.lists(texts, max_size=3),
    "env": st.lists(variables, max_size=4),
    "resources": st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts}),
    "ports": st.lists(st.fixed_dictionaries({"containerPort": st.integers(1, 9)}), max_size=2),
    "securityContext": st.dictionaries(st.sampled_from(["runAsNonRoot", "readOnlyRootFilesystem"]), st.booleans()),
    "imagePullPolicy": st.sampled_from(["", "Always"]),
    "unknownField": st.just({"x": 1}),
}
initial = st.fixed_dictionaries({"name": st.just("x"), "image": st.just("x")}, optional=beginnings)
containers = st.fixed_dictionaries(
    {"name": st.just("worker"), "image": st.sampled_from(["x", "x:1", ""])},
    optional={**beginnings, "livenessProbe": probes, "lifecycle": st.just({})},
)
volumes = st.fixed_dictionaries(
    {"name": names}, optional={"emptyDir": st.fixed_dictionaries({}, optional={"sizeLimit": quantities})}
)
pods = st.fixed_dictionaries(
    {},
    optional={
        "nodeName": st.sampled_from(["edge0", ""]),
        "nodeSelector": st.dictionaries(names, st.sampled_from(["", "x"]), max_size=2),
        "tolerations": st.lists(st.fixed_dictionaries({"key": names, "operator": st.just("Exists")}), max_size=2),
        "volumes": st.lists(volumes, max_size=2, unique_by=lambda v: v["name"]),
        "terminationGracePeriodSeconds": st.integers(0, 60),
        "serviceAccount": st.sampled_from(["", "default"]),
        "serviceAccountName": st.sampled_from(["", "default"]),
        "automountServiceAccountToken": st.just(False),
        "hostNetwork": st.just(False),
        "affinity": st.just({}),
        "securityContext": st.fixed_dictionaries({}, optional={"runAsUser": st.integers(0, 5)}),
        "unknownField": st.just([1]),
        "initContainers": st.lists(initial, max_size=1),
        "dnsPolicy": st.just(""),
    },
)
measures = st.fixed_dictionaries({"type": st.just("AverageValue"), "averageValue": quantities})
metrics = st.fixed_dictionaries({
    "type": st.just("Pods"),
    "pods": st.fixed_dictionaries({"metric": st.just({"name": "frames"}), "target": measures}),
})  # fmt: skip
hpas = st.none() | st.fixed_dictionaries(
    {"maxReplicas": st.integers(1, 9)},
    optional={"metrics": st.lists(metrics, max_size=1), "minReplicas": st.just(1), "behavior": st.just({})},
)


@st.composite
def services(draw: st.DrawFn) -> Built:
    worker = {"hpa": draw(hpas)}
    said = service(edge=template(draw(containers), **draw(pods)), cloudWorker={k: v for k, v in worker.items() if v})
    of = built(said)
    assert of.problems == ()
    return of


@given(services())
def test_what_the_server_makes_of_it_is_no_difference(of: Built) -> None:
    for body in of.objects:
        assert patch_for(normalise(body), body) is None
    assert list(differences(of, stored(of), UID)) == []


@given(services(), services())
def test_one_patch_brings_the_old_to_the_new_and_leaves_nothing_of_it(old: Built, new: Built) -> None:
    there = {Ref.of(body): normalise(body) for body in old.objects}
    for body in new.objects:
        if (existing := there.get(Ref.of(body))) is None:
            continue
        before = copy.deepcopy(existing)
        patch = patch_for(existing, body)
        assert existing == before, "it only looks"
        after = normalise(merge(existing, patch or {}))
        assert patch_for(after, body) is None
        if body["kind"] == "Deployment":
            assert after["spec"]["template"] == normalise(body)["spec"]["template"]


@pytest.mark.parametrize(
    ("had", "wanted"),
    [
        ({"limits": {"cpu": "500m"}}, {"limits": {"cpu": "0.5"}}),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1024Mi"}}),
        ({"requests": {"cpu": "1m"}}, {"requests": {"cpu": "0.0001"}}),
    ],
)
def test_quantities_compare_by_value(had: dict[str, Any], wanted: dict[str, Any]) -> None:
    body = edge(container(resources=wanted))
    there = copy.deepcopy(body)
    there["spec"]["template"]["spec"]["containers"][0]["resources"] = had
    assert patch_for(there, body) is None
    there["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "7"}}
    assert patch_for(there, body) is not None


def test_names_that_stand_twice_are_told_apart_by_their_order() -> None:
    twice = edge(container(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]))
    assert patch_for(normalise(twice), twice) is None
    for lose in (list.reverse, list.pop):
        there = normalise(twice)
        env = there["spec"]["template"]["spec"]["containers"][0]["env"]
        mine = [variable for variable in env if variable["name"] == "A"]
        lose(mine)
        env[:] = [variable for variable in env if variable["name"] != "A"] + mine
        assert patch_for(there, twice) is not None


class Counted(dict[str, Any]):
    """A mapping that counts how often anybody looks into one."""

    looks = 0

    def get(self, key: Any, default: Any = None) -> Any:
        Counted.looks += 1
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        Counted.looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("names", [9000, 1])
def test_each_element_of_a_list_is_looked_at_a_few_times_however_many_there_are(names: int) -> None:
    # 9,000 variables once took GM 36 s, and with them its Lease
    wanted = [Counted(name=f"N{i % names}", value="x") for i in range(9000)]
    there = [Counted(name=f"N{i % names}", value="x") for i in reversed(range(9000))]
    Counted.looks = 0
    assert contains(there, wanted, "env", "containers")
    assert Counted.looks < 10 * 9000


def test_a_variable_is_no_quantity() -> None:
    one, other = (container(env=[{"name": "A", "value": text}]) for text in ("1Gi", "1024Mi"))
    there = normalise(edge(one))
    there["metadata"]["annotations"] = edge(other)["metadata"]["annotations"]
    assert patch_for(there, edge(other)) is not None


LOSSES: list[Any] = [
    lambda body: body["spec"]["template"]["spec"]["containers"][0].update(image="evil"),
    lambda body: body["spec"]["template"]["spec"]["containers"][0]["env"].pop(0),
    lambda body: body["spec"]["template"]["spec"]["containers"][0].pop("volumeMounts"),
    lambda body: body["spec"]["template"]["spec"].pop("initContainers"),
    lambda body: body["spec"]["template"]["spec"].pop("affinity"),
    lambda body: body["spec"]["template"]["spec"].pop("tolerations"),
    lambda body: body["spec"]["template"]["spec"].update(automountServiceAccountToken=True),
    lambda body: body["spec"]["template"]["metadata"]["labels"].pop("jointinferenceservice.sedna.io/uid"),
    lambda body: body["metadata"]["labels"].pop("app.kubernetes.io/managed-by"),
    lambda body: body["metadata"].pop("annotations"),
    lambda body: body["spec"].update(replicas=0),
]


@pytest.mark.parametrize("lose", LOSSES)
def test_what_people_change_by_hand_is_put_back(lose: Any) -> None:
    there = normalise(edge())
    lose(there)
    patch = patch_for(there, edge())
    after = normalise(merge(there, patch))
    assert patch_for(after, edge()) is None
    assert after["spec"] == normalise(edge())["spec"]


def test_what_others_add_stays_until_we_want_something_else() -> None:
    there = normalise(edge())
    there["metadata"]["labels"]["team"] = "a"
    there["spec"]["template"]["spec"]["containers"].append({"name": "injected", "image": "mesh"})
    assert patch_for(there, edge()) is None
    after = normalise(merge(there, patch_for(there, edge(nodeName="edge1"))))
    assert [c["name"] for c in after["spec"]["template"]["spec"]["containers"]] == ["worker"]
    assert after["metadata"]["labels"]["team"] == "a"


def test_a_restart_by_kubectl_is_not_undone() -> None:
    note = "kubectl.kubernetes.io/restartedAt"
    old = built(service(edge={"metadata": {"annotations": {"x": "1"}}, **template()}))
    there = normalise(deployment(old))
    there["spec"]["template"]["metadata"]["annotations"][note] = "now"
    new = deployment(built(service(edge={"metadata": {"annotations": {"y": "1"}}, **template()})))
    after = merge(there, patch_for(there, new))
    assert after["spec"]["template"]["metadata"]["annotations"] == {note: "now", "y": "1"}


def test_the_autoscalers_number_is_left_alone_and_ours_comes_back() -> None:
    scaled, plain = deployment(built(service(edgeWorker={"hpa": HPA}))), edge()
    there = {**normalise(scaled), "spec": {**normalise(scaled)["spec"], "replicas": 3}}
    assert patch_for(there, scaled) is None
    patch = patch_for(there, plain)
    assert patch["spec"]["replicas"] == 1
    patch = patch_for({**normalise(plain), "spec": {**normalise(plain)["spec"], "replicas": 5}}, scaled)
    assert "replicas" not in patch["spec"]


def test_a_service_keeps_its_address() -> None:
    network = next(b for b in built().objects if b["kind"] == "Service")
    there = normalise(network)
    address = there["spec"]["clusterIP"]
    there["spec"]["selector"]["other"] = "x"
    there["metadata"]["annotations"][DIGEST] = "old"
    after = merge(there, patch_for(there, network))
    assert (after["spec"]["clusterIP"], after["spec"]["selector"]) == (address, network["spec"]["selector"])


def test_owners_are_the_adapters_business() -> None:
    patch = patch_for({"metadata": {}, "spec": {}}, edge())
    assert patch["metadata"].keys() == {"labels", "annotations"}


def test_what_is_not_there_is_made_and_what_is_not_wanted_is_removed() -> None:
    scaled = built(service(edgeWorker={"hpa": HPA}))
    assert list(differences(scaled, {}, UID)) == [Ensure(body) for body in scaled.objects]
    there = stored(scaled)
    gone = [action for action in differences(built(), there, UID) if isinstance(action, Remove)]
    assert [(action.ref.name, action.uid) for action in gone] == [("hpa-helmet-deployment-edge", "u-1")]


@pytest.mark.parametrize("name", ["Deployment", "Service", "HorizontalPodAutoscaler"])
def test_a_copy_made_by_hand_is_left_alone_and_what_is_ours_goes_on(name: str) -> None:
    # GM may not delete Deployments and Services: a Remove would be refused for ever, and nothing after it be done
    of = built(service(edgeWorker={"hpa": HPA}))
    copied = copy.deepcopy(next(body for body in of.objects if body["kind"] == name))
    copied["metadata"]["name"] += "-copy"
    there = {**stored(of), Ref.of(copied): normalise(copied)}
    assert list(differences(of, there, UID)) == []
    scaler = Ref("autoscaling/v2", "HorizontalPodAutoscaler", "default", "hpa-helmet-deployment-edge")
    gone = [action for action in differences(built(), there, UID) if isinstance(action, Remove)]
    assert gone == [Remove(scaler, "u-1")]
    copied["metadata"]["name"] = scaler.name
    if name != scaler.kind:
        assert list(differences(built(), {**stored(built()), Ref.of(copied): normalise(copied)}, UID)) == []


def test_nothing_of_another_owner_is_removed() -> None:
    assert list(differences(Built(), stored(built()), "another")) == []


def test_what_is_being_deleted_is_waited_for() -> None:
    there = stored(built())
    for body in there.values():
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert list(differences(built(service(edge=template(nodeName="other"))), there, UID)) == []
    assert list(differences(Built(), there, UID)) == []


def test_the_neptune_form_converges_too() -> None:
    assert list(differences(built(neptune()), stored(built(neptune())), UID)) == []
