"""deploy/router, beside what the overlays are held to: its addresses are those that GM makes of its models."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from halimede import api
from halimede.mining import create
from halimede.names import Key
from halimede.observe import parse_bind
from halimede.serving.router.server import parser
from services.gm.workloads import deployments, serving_objects
from services.gm.workloads.pod_settings import OUR_SERVER, PodSettings
from tests.rendering import DEPLOY, ROOT, documents, render
from tests.unit.api.crds import problems
from tests.unit.deploy.test_rendering import Body, needs_kustomize, one, pod_of, traffic, within

MODELS = ("digits-edge-server", "digits-cloud-server")


def models() -> dict[str, Body]:
    return {body["metadata"]["name"]: body for body in traffic() if body["kind"] == "InferenceModel"}


def router() -> tuple[Body, Any]:
    """Return the router's container, and its arguments as the router reads them."""
    (container,) = pod_of(traffic(), "digits-router")["containers"]
    assert container["command"] == ["python", "-m", "halimede", "router"]
    return container, parser().parse_args(container["args"])


@needs_kustomize
def test_its_folder_renders_to_one_namespace() -> None:
    found = list(documents(render(DEPLOY / "router")))
    rendered, written = ({(body["kind"], body["metadata"]["name"]) for body in bodies} for bodies in (found, traffic()))
    assert rendered == written
    assert {body["metadata"]["namespace"] for body in found} == {"default"}


def test_it_asks_the_services_that_are_made_of_its_models() -> None:
    assert set(models()) == set(MODELS)
    _, given = router()
    for name, url in zip(MODELS, (given.edge, given.cloud), strict=True):
        body = models()[name]
        assert problems(body) == {}, name
        built = serving_objects.build(api.parse(body), {}, PodSettings(broker=""))
        assert not built.problems, name
        (service,) = (made for made in built.objects if made["kind"] == "Service")
        ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
        asked = urlsplit(url)
        assert (asked.hostname, asked.port) == (service["metadata"]["name"], ports["http"])
        assert asked.path == f"/v2/models/{body['spec']['modelName']}"
        assert service["spec"]["type"] == "ClusterIP"


def test_its_objects_have_names_that_the_example_leaves_free() -> None:
    files = [ROOT / "examples" / "kubernetes" / f"{name}.yaml" for name in ("digits", "models")]
    example = [body for file in files for body in documents(file.read_text())]
    settings = PodSettings(broker="mqtt://broker:1883", credentials=False)
    found = {Key("models", "default", b["metadata"]["name"]): api.parse(b) for b in example if b["kind"] == "Model"}
    made: list[Body] = []
    for body in [*example, *traffic()]:
        if body["kind"] == "JointInferenceService":
            made += deployments.build(api.parse(body), found, {}, settings).objects
        elif body["kind"] == "InferenceModel":
            made += serving_objects.build(api.parse(body), {}, settings).objects
        elif body["kind"] != "Model":
            made.append(body)
    names = [(body["kind"], body["metadata"]["name"]) for body in made]
    assert {("Service", "digits-cloud"), ("Service", MODELS[1])} <= set(names)
    assert len(names) == len(set(names)), names


def test_what_it_is_told_is_what_it_can_do() -> None:
    container, given = router()
    create(given.mining, dict(text.split("=") for text in given.param))
    assert container["image"] == OUR_SERVER.image
    assert parse_bind(given.http) == ("", container["ports"][0]["containerPort"])
    assert not any([given.edge_service, given.cloud_service, given.camera]), "these need credentials"


def test_it_stays_at_the_edge_and_leaves_in_its_own_time() -> None:
    pod = one(traffic(), "Deployment", "digits-router")["spec"]["template"]
    container, _ = router()
    edge = models()[MODELS[0]]["spec"]
    assert pod["spec"]["nodeSelector"] == edge["nodeSelector"] == {"node-role.kubernetes.io/edge": ""}
    assert edge["deployToLayer"] == "edge"
    assert pod["spec"]["automountServiceAccountToken"] is False
    (_, before) = container["lifecycle"]["preStop"]["exec"]["command"]
    (grace,) = (float(each["value"]) for each in container["env"] if each["name"] == "GRACE_S")
    assert int(before) + 2 * grace <= pod["spec"]["terminationGracePeriodSeconds"]
    service = one(traffic(), "Service", "digits-router")["spec"]
    assert within(service["selector"], pod["metadata"]["labels"])
    names = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= names
    assert {
        container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    } <= names
