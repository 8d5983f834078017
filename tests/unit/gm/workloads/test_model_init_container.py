"""How a model gets into a pod."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halimede.models import local_path
from services.gm.workloads.model_init_container import host_file
from tests.unit.gm.workloads.builds import built, environment, pod, reasons
from tests.unit.gm.workloads.world import SECRETS, SETTINGS, container, model, service, template

DIGEST = "0123456789abcdef" * 4


def fetch(*models: Any, role: str = "edge", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod(built(service(), *models, **more), role)["initContainers"][0]
    assert found["name"] == "fetch"
    return found


def test_a_model_of_the_web_is_downloaded_through_the_nodes_cache() -> None:
    small = model(url="https://me:word@models.example:8443/a/small.onnx?token=t", sha256=DIGEST)
    found = fetch(small)
    assert (found["image"], found["command"]) == (SETTINGS.fetcher_image, ["python", "-m", "halimede.models"])
    assert found["args"] == [
        "--url", small.spec.url, "--sha256", DIGEST, "--cache", "/var/lib/halimede/models",
        "--out", "/downloads/models.example/a/small.onnx", "--unpack", "--own-code",
    ]  # fmt: skip
    cache = next(m for m in found["volumeMounts"] if m["name"] == "halimede-cache")
    assert (cache["mountPath"], cache["subPathExpr"]) == ("/var/lib/halimede/models", "$(NODE_NAME)/models")
    volumes = {v["name"]: v for v in pod(built(service(), small))["volumes"]}
    assert volumes["halimede-cache"]["hostPath"] == {"path": "/var/lib/halimede/nodes", "type": "DirectoryOrCreate"}
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["resources"] == {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
    assert {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in found["env"]


@pytest.mark.parametrize("user", [0, 2000])
def test_the_fetcher_is_who_the_cache_belongs_to_whoever_the_pod_is(user: int) -> None:
    spec = pod(built(service(edge=template(securityContext={"runAsUser": user, "runAsGroup": user}))))
    confined = spec["initContainers"][0]["securityContext"]
    assert (confined["runAsUser"], confined["runAsGroup"], confined["runAsNonRoot"]) == (10001, 10001, True)


def test_a_site_may_do_without_a_cache_on_its_nodes() -> None:
    settings = replace(SETTINGS, node_cache="")
    volumes = {v["name"]: v for v in pod(built(settings=settings))["volumes"]}
    assert volumes["halimede-cache"] == {"name": "halimede-cache", "emptyDir": {}}
    assert "subPathExpr" not in fetch(settings=settings)["volumeMounts"][1]


@pytest.mark.parametrize(
    "url", ["/data/models/big.onnx", "file:///data/models/big.onnx", "file://localhost/data/models/big.onnx"]
)
def test_a_file_of_the_node_is_mounted_and_verified_only(url: str) -> None:
    of = built(service(), model("big", url, sha256=DIGEST))
    assert environment(of, "cloud")["MODEL_URL"] == "/home/data/data/models/big.onnx"
    spec = pod(of, "cloud")
    args = ["--url", "/home/data/data/models/big.onnx", "--sha256", DIGEST, "--check"]
    assert spec["initContainers"][0]["args"] == args
    mount = {"name": "halimede-model", "mountPath": "/home/data/data/models", "readOnly": True}
    assert mount in spec["containers"][0]["volumeMounts"]
    assert spec["initContainers"][0]["volumeMounts"] == [mount]
    volume = {"name": "halimede-model", "hostPath": {"path": "/data/models", "type": "Directory"}}
    assert volume in spec["volumes"]


@pytest.mark.parametrize("role", ["edge", "cloud"])
@pytest.mark.parametrize(("format_", "unpacked"), [("onnx", True), ("ONNX", True), ("pt", False), ("tf", False)])
def test_only_onnx_is_unpacked_for_other_formats_are_archives_of_their_own(
    role: str, format_: str, *, unpacked: bool
) -> None:
    name = "small" if role == "edge" else "big"
    given = model(name, "https://models.example/a/m.tar.gz", format=format_)
    assert ("--unpack" in fetch(given, role=role)["args"]) is unpacked
    assert environment(built(service(), given), role)["MODEL_URL"] == "/downloads/models.example/a/m.tar.gz"


@pytest.mark.parametrize("own_code", [False, True])
def test_own_code_may_use_a_model_without_its_data_files(*, own_code: bool) -> None:
    image = "registry.example/mine:1" if own_code else "halimede/worker:1"
    init = pod(built(service(edge=template(container(image=image)))))["initContainers"][0]
    assert ("--own-code" in init["args"]) is own_code


@pytest.mark.parametrize(("format_", "unpacked"), [("onnx", True), ("pt", False)])
def test_an_archive_of_the_node_is_unpacked_into_the_pod(format_: str, *, unpacked: bool) -> None:
    of = built(service(), model("big", "/data/models/m.zip", format=format_))
    assert not of.problems
    spec = pod(of, "cloud")
    (init,) = spec["initContainers"]
    assert ("--unpack" in init["args"]) is unpacked
    assert ("--check" in init["args"]) is not unpacked
    assert init["args"][1] == "/home/data/data/models/m.zip"
    mount = {"name": "halimede-model", "mountPath": "/home/data/data/models", "readOnly": True}
    assert mount in init["volumeMounts"]
    url = environment(of, "cloud")["MODEL_URL"]
    assert any(url.startswith(each["mountPath"]) for each in spec["containers"][0]["volumeMounts"])
    if unpacked:
        assert init["args"][init["args"].index("--out") + 1] == url
        down = next(each for each in spec["containers"][0]["volumeMounts"] if each["mountPath"] == "/downloads")
        assert down["readOnly"] is True


def test_s3_takes_its_keys_from_a_secret_whose_data_nobody_reads() -> None:
    small = model(url="s3://bucket/a/small.onnx", credentialName="keys")
    secrets = {**SECRETS, "keys": {"annotations": {"s3-endpoint": "minio.example:9000", "s3-usehttps": "0"}}}
    found = {v["name"]: v for v in fetch(small, secrets=secrets)["env"]}
    assert found["S3_ENDPOINT_URL"]["value"] == "http://minio.example:9000"
    assert found["ACCESS_KEY_ID"]["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "ACCESS_KEY_ID"}}
    assert found["SECRET_ACCESS_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "SECRET_ACCESS_KEY"}}
    of = built(service(), small, secrets=secrets)
    assert environment(of)["MODEL_URL"] == "/downloads/bucket/a/small.onnx"
    assert "SECRET_ACCESS_KEY" not in environment(of), "the worker has no business with it"
    whole = {**SECRETS, "keys": {"metadata": {"annotations": {"s3-endpoint": "s3.example"}}}}
    assert {"name": "S3_ENDPOINT_URL", "value": "https://s3.example"} in fetch(small, secrets=whole)["env"]


@pytest.mark.parametrize(("mode", "fetched"), [("http", False), ("HTTPS", False), ("local", True), (None, True)])
def test_an_endpoint_of_a_language_model_is_not_downloaded(mode: str | None, *, fetched: bool) -> None:
    env = [{"name": "MODEL_LOAD_MODE", "value": mode}] if mode else []
    url = "https://llm.example/v1/chat"
    spec = pod(of := built(service(edge=template(container(env=env))), model(url=url)))
    assert bool(spec["initContainers"]) is fetched
    assert (environment(of)["MODEL_URL"] == url) is not fetched


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("https://h/../../etc/passwd", "/downloads/h/etc/passwd"),
        ("https://h/%2e%2e/%2e%2e/etc/x", "/downloads/h/etc/x"),
        ("https://../x", "/downloads/model/x"),
        ("https://h", "/downloads/h/model"),
        ("https://h/", "/downloads/h/model"),
        ("http://[x", "/downloads/model"),
        ("https://a%2fb/x", "/downloads/a%2fb/x"),
        ("file://elsewhere/x", "/downloads/elsewhere/x"),
    ],
)
def test_nothing_is_written_outside_of_the_downloads(url: str, path: str) -> None:
    args = fetch(model(url=url))["args"]
    assert args[args.index("--out") + 1] == path


def test_variables_in_an_address_are_no_variables() -> None:
    args = fetch(model(url="https://evil.example/$(SECRET_ACCESS_KEY)"))["args"]
    assert args[1] == "https://evil.example/$$(SECRET_ACCESS_KEY)"


@pytest.mark.parametrize(
    "path",
    # of the last one the file is allowed, and its folder, which is mounted, is not
    ["/etc/shadow", "/data/../etc/shadow", "/shadow", "file:///etc/x", "file:///data/%2e%2e/x", "/srv/small.onnx"],
)
def test_a_model_opens_no_folder_that_the_operator_has_not_opened(path: str) -> None:
    settings = replace(SETTINGS, host_paths=("/data", "/srv/small.onnx"))
    of = built(service(), model(url=path), settings=settings)
    assert (reasons(of), of.unchanged) == (["HostPathNotAllowed"], {"edge"})
    assert "spec.edgeWorker.model.name: Model small: spec.url" in of.problems[0].message


@pytest.mark.parametrize("url", ["/a/b", "file:///a/b", "file://localhost/a/%20b"])
def test_gm_and_fetcher_find_the_same_file(url: str) -> None:
    assert host_file(url) == str(local_path(url))
