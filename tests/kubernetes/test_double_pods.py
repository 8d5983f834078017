"""Pods and their templates: what is filled in, what is refused, what can be changed."""

from __future__ import annotations

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import invalid_fields
from tests.kubernetes.things import Body, deployment, pod


async def test_a_pod_gets_more_than_its_template(api: Api) -> None:
    volumes = [{"name": "a", "hostPath": {"path": "/x"}}, {"name": "b"}, {"name": "c", "secret": {"secretName": "s"}}]
    body = await api.client.create("Pod", api.namespace, pod("one", volumes=volumes))
    assert body["spec"]["volumes"][:3] == [
        {"name": "a", "hostPath": {"path": "/x", "type": ""}},
        {"name": "b", "emptyDir": {}},
        {"name": "c", "secret": {"secretName": "s", "defaultMode": 420}},
    ]
    assert body["spec"]["enableServiceLinks"] is True
    assert {each["key"] for each in body["spec"]["tolerations"]} >= {"node.kubernetes.io/not-ready"}
    assert body["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    ("spec", "container", "field", "said"),
    [
        ({}, {"image": ""}, "containers[0].image", "Required value"),
        ({}, {"name": "Main"}, "containers[0].name", 'Invalid value: "Main": a lowercase RFC 1123 label must'),
        ({}, {"imagePullPolicy": "Often"}, "containers[0].imagePullPolicy", 'Unsupported value: "Often"'),
        ({}, {"volumeMounts": [{"name": "v", "mountPath": "/x"}]}, "containers[0].volumeMounts[0].name",
         'Not found: "v"'),
        ({}, {"env": [{"name": "A=B"}]}, "containers[0].env[0].name", 'Invalid value: "A=B"'),
        ({}, {"ports": [{"containerPort": 99999}]}, "containers[0].ports[0].containerPort",
         "Invalid value: 99999: must be"),
        ({}, {"livenessProbe": {"periodSeconds": 5}}, "containers[0].livenessProbe",
         "Required value: must specify a handler"),
        ({}, {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}, "containers[0].resources.requests",
         'Invalid value: "2": must be less than or equal to cpu limit of 1'),
        ({"nodeName": "N!"}, {}, "nodeName", 'Invalid value: "N!": a lowercase RFC 1123 subdomain must consist'),
        ({"restartPolicy": "Never"}, {}, "restartPolicy", 'Unsupported value: "Never": supported values: "Always"'),
        ({"containers": []}, {}, "containers", "Required value"),
        ({"nodeSelector": {"a": "b c"}}, {}, "nodeSelector",
         'Invalid value: "b c": a valid label must be an empty string'),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/a/../b"}}]}, {}, "volumes[0].hostPath.path",
         "Invalid value: \"/a/../b\": must not contain '..'"),
        ({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]}, {}, "volumes[0].hostPath",
         "Forbidden: may not"),
    ],
)  # fmt: skip
async def test_pod_templates_are_checked(api: Api, spec: Body, container: Body, field: str, said: str) -> None:
    body = deployment("one", **container)
    body["spec"]["template"]["spec"] |= spec
    fields = await invalid_fields(api.client.create("Deployment", api.namespace, body))
    assert fields[f"spec.template.spec.{field}"].startswith(said)


async def test_a_pod_can_hardly_be_changed(api: Api) -> None:
    await api.client.create("Pod", api.namespace, pod("one"))
    fields = await invalid_fields(api.client.patch("Pod", api.namespace, "one", {"spec": {"nodeName": "elsewhere"}}))
    assert fields["spec"].startswith("Forbidden: pod updates may not change fields other than")
