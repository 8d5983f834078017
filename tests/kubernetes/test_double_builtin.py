"""Built-in kinds: what the server fills in, rewrites, leaves out and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import invalid_fields, refusal
from tests.kubernetes.things import config_map, deployment, pod

LEASE = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
PORTS = [{"port": 80}]


async def test_a_deployment_comes_back_with_defaults(api: Api) -> None:
    body = deployment("one")
    del body["spec"]["replicas"]
    spec = (await api.client.create("Deployment", api.namespace, body))["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
    assert (spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (10, 600)
    made = spec["template"]["spec"]
    container = {
        "name": "main", "image": "example.io/worker:1", "resources": {}, "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
    }  # fmt: skip
    assert made == {
        "containers": [container], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst", "securityContext": {}, "schedulerName": "default-scheduler",
    }  # fmt: skip


async def test_a_naive_comparison_would_find_differences_for_ever(api: Api) -> None:
    resources = {"limits": {"cpu": 0.5, "memory": "1024Mi"}, "requests": {"cpu": "1e-1"}}
    sent = deployment(
        "one", env=[{"name": "A", "value": ""}], resources=resources, volumeMounts=[], image="a.io/b", stdin=False
    )
    (container,) = (await api.client.create("Deployment", api.namespace, sent))["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["env"] == [{"name": "A"}]
    assert container["resources"] == {"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "100e-3"}}
    assert container["imagePullPolicy"] == "Always"
    assert not {"volumeMounts", "stdin"} & container.keys()


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("1000m", "1"), ("1500m", "1500m"), ("0.1", "100m"), ("2000", "2k"), ("2048Ki", "2Mi"), ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"), ("1e3", "1e3"), ("1000000", "1M"), ("0", "0"), ("100n", "1m"), (3, "3"),
    ],
)  # fmt: skip
async def test_quantities_come_back_in_one_form(api: Api, sent: Any, kept: str) -> None:
    body = await api.client.create("Pod", api.namespace, pod("one", overhead=None) | {"spec": {"containers": [
        {"name": "main", "image": "a:1", "resources": {"limits": {"ephemeral-storage": sent}}}]}})  # fmt: skip
    resources = body["spec"]["containers"][0]["resources"]
    assert resources["limits"]["ephemeral-storage"] == kept
    assert resources["requests"] == resources["limits"]


async def test_a_service_gets_an_address_and_keeps_it(api: Api) -> None:
    body = {"metadata": {"name": "one"}, "spec": {"ports": PORTS, "selector": {"a": "b"}}}
    spec = (await api.client.create("Service", api.namespace, body))["spec"]
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert (spec["type"], spec["sessionAffinity"], spec["clusterIPs"]) == ("ClusterIP", "None", [spec["clusterIP"]])
    again = await api.client.replace("Service", api.namespace, body)
    assert again["spec"]["clusterIP"] == spec["clusterIP"]
    patch = api.client.patch("Service", api.namespace, "one", {"spec": {"clusterIP": "10.96.9.9"}})
    assert "may not change once set" in (await invalid_fields(patch))["spec.clusterIPs[0]"]
    headless = {"metadata": {"name": "two"}, "spec": {"ports": PORTS, "clusterIP": "None"}}
    assert (await api.client.create("Service", api.namespace, headless))["spec"]["clusterIP"] == "None"


async def test_an_autoscaler_comes_back_with_defaults(api: Api) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "one"}
    spec = {"maxReplicas": 3, "scaleTargetRef": target, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 1}}}
    sent = {"metadata": {"name": "one"}, "spec": spec}
    body = await api.client.create("HorizontalPodAutoscaler", api.namespace, sent)
    assert body["spec"]["minReplicas"] == 1
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    assert body["spec"]["metrics"] == [{"type": "Resource", "resource": cpu}]
    assert body["spec"]["behavior"]["scaleUp"]["selectPolicy"] == "Max"
    assert body["spec"]["behavior"]["scaleDown"]["policies"] == [{"type": "Percent", "value": 100, "periodSeconds": 15}]
    assert "generation" not in body["metadata"]


async def test_a_secret_shows_no_plain_text(api: Api) -> None:
    body = await api.client.create("Secret", api.namespace, {"metadata": {"name": "one"}, "stringData": {"a": "b"}})
    assert (body["data"], body["type"]) == ({"a": "Yg=="}, "Opaque")
    assert "stringData" not in body


async def test_a_deployments_selector_fits_and_stays(api: Api) -> None:
    wrong = deployment("one")
    wrong["spec"]["selector"] = {"matchLabels": {"app": "two"}}
    fields = await invalid_fields(api.client.create("Deployment", api.namespace, wrong))
    assert "`selector` does not match template `labels`" in fields["spec.template.metadata.labels"]
    await api.client.create("Deployment", api.namespace, deployment("one"))
    other = {"selector": {"matchLabels": {"app": "z"}}, "template": {"metadata": {"labels": {"app": "z"}}}}
    fields = await invalid_fields(api.client.patch("Deployment", api.namespace, "one", {"spec": other}))
    assert fields["spec.selector"].endswith("field is immutable")


async def test_fields_of_a_wrong_type_are_refused(api: Api) -> None:
    for body in (
        deployment("one", env=[{"name": "A", "value": 5}]),
        deployment("one", resources={"limits": {"cpu": "lots"}}),
    ):
        refused = await refusal(api.client.create("Deployment", api.namespace, body))
        assert refused.answer == (400, "BadRequest")
        assert 'Deployment in version "v1" cannot be handled as a Deployment: ' in str(refused)


@pytest.mark.parametrize("name", ["9s", "Upper", "a.b", "s" * 64])
async def test_a_services_name_is_a_label_of_dns(api: Api, name: str) -> None:
    if name == "9s" and api.double is None:
        pytest.skip("API servers with RelaxedServiceNameValidation accept it: the double is as strict as others")
    service = {"metadata": {"name": name}, "spec": {"ports": PORTS}}
    assert "metadata.name" in await invalid_fields(api.client.create("Service", api.namespace, service))
    body = await api.client.create("ConfigMap", api.namespace, config_map("9s.b"))
    assert body["metadata"]["name"] == "9s.b"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"a": "b c"}, "a valid label must be"),
        ({"a b": "c"}, "name part must"),
        ({"a": "x" * 64}, "must be no more than 63"),
    ],
)
async def test_labels_are_checked(api: Api, labels: dict[str, str], said: str) -> None:
    fields = await invalid_fields(api.client.create("ConfigMap", api.namespace, config_map("one", labels=labels)))
    assert said in fields["metadata.labels"]


async def test_a_lease_counts_in_microseconds(api: Api) -> None:
    body = {"metadata": {"name": "one"}, "spec": LEASE}
    made = await api.client.create("Lease", api.namespace, body)
    assert made["spec"] == LEASE
    for wrong in ({"renewTime": "2026-01-01T00:00:00Z"}, {"leaseDurationSeconds": 0}):
        assert (await refusal(api.client.patch("Lease", api.namespace, "one", {"spec": wrong}))).code == 422
    whole = {**made, "spec": {**LEASE, "renewTime": "2026-01-01T00:00:00Z"}}
    assert (await refusal(api.client.replace("Lease", api.namespace, whole))).code == 400
    assert (await refusal(api.client.replace("Lease", api.namespace, body))).code == 422


async def test_a_new_node_is_not_ready(api: Api) -> None:
    body = await api.node(api.unique("node"), {"role": "edge"})
    assert body["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    found = await api.client.list("Node", labelSelector=f"role=edge,kubernetes.io/hostname!={body['metadata']['name']}")
    assert body["metadata"]["name"] in {each["metadata"]["name"] for each in found["items"]}
