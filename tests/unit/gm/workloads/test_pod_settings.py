"""What an operator decides about pods, read and checked."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halimede import __version__
from halimede.errors import InvalidFieldError
from services.gm.workloads.pod_settings import OUR_SERVER, PodSettings, Server, parse, read

BROKER = {"broker": "mqtts://broker:8883"}
EVERYTHING: dict[str, Any] = {
    **BROKER, "edgeBroker": "mqtts://place:8883", "workerImage": "r/w:1", "fetcherImage": "r/l:1",
    "images": {"tensorflow:1.18": "r/tf"}, "pullPolicy": "Always", "pullSecrets": ["key"], "edgeSecret": "e",
    "cloudSecret": "c", "credentials": False, "hostPaths": ["/data"], "writableHostPaths": ["/out"],
    "allowedImages": ["r/"], "nodeCache": "", "privileged": True, "port": 9200, "env": {"OTEL_SERVICE_NAME": "x"},
    "serving": {"TensorFlow": {"image": "tf:1", "args": ["--port={port}"], "live": "", "ready": "/v1/models/{name}"}},
    "registry": "registry.example:5000/team",
    "fetchAllow": ["private", "10.0.0.0/8"], "serviceTypes": ["ClusterIP"], "ingressHosts": ["*.example.org"],
}  # fmt: skip


def test_the_least_is_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    file.write_bytes(msgspec.json.encode(BROKER))
    assert read(file, {}) == PodSettings("mqtts://broker:8883")
    assert read(None, {"HALIMEDE_PODS_BROKER": "broker"}) == PodSettings("broker")


def test_everything_can_be_said() -> None:
    settings = parse(EVERYTHING, {})
    plain = PodSettings("x")
    assert [f.name for f in fields(plain) if getattr(settings, f.name) == getattr(plain, f.name)] == []
    assert (settings.images, settings.host_paths) == ({"tensorflow:1.18": "r/tf"}, ("/data",))


def test_a_framework_is_served_by_what_the_table_says_and_onnx_by_ours() -> None:
    settings = parse(EVERYTHING, {})
    served = settings.server("tensorflow")
    assert served == Server("tf:1", (), ("--port={port}",), "", "/v1/models/{name}")
    assert (settings.server("TENSORFLOW"), settings.server("ONNX")) == (served, OUR_SERVER)
    assert settings.server("caffe") is None
    own = parse({**BROKER, "serving": {"onnx": {"image": "mine:1"}}}, {}).server("onnxruntime")
    assert own == replace(OUR_SERVER, image="mine:1")


def test_one_variable_moves_all_images_of_halimede_to_another_registry() -> None:
    given = {**BROKER, "images": {"a:1": "halimede/worker:0.1.0", "b:1": "mine/b:1"}}
    there = parse(given, {"HALIMEDE_PODS_REGISTRY": "registry.example"})
    assert there.worker_image == f"registry.example/halimede/worker:{__version__}"
    assert there.fetcher_image == f"registry.example/halimede/lc:{__version__}"
    assert there.images == {"a:1": "registry.example/halimede/worker:0.1.0", "b:1": "mine/b:1"}
    assert there.with_registry(OUR_SERVER.image) == f"registry.example/{OUR_SERVER.image}"
    assert there.with_registry("tensorflow/serving:2") == "tensorflow/serving:2"
    for registry in ("registry.example", "halimede"):
        once = replace(there, registry=registry).with_registry("halimede/serve:1")
        assert once == replace(there, registry=registry).with_registry(once) == f"{registry}/halimede/serve:1"
    assert parse(given, {"HALIMEDE_PODS_REGISTRY": ""}) == parse(given, {})


def test_the_environment_goes_before_the_file() -> None:
    environ = {
        "HALIMEDE_PODS_BROKER": "other", "HALIMEDE_PODS_WORKER_IMAGE": "w:2", "HALIMEDE_PODS_FETCHER_IMAGE": "l:2",
        "HALIMEDE_PODS_FETCH_ALLOW": "loopback, models.lan",
    }  # fmt: skip
    settings = parse(EVERYTHING, environ)
    assert (settings.broker, settings.worker_image, settings.fetcher_image) == ("other", "w:2", "l:2")
    assert settings.fetch_allow == ("loopback", "models.lan")


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"broker": ""}, "pods.broker"),
        ({"broker": "http://x"}, "pods.broker"),
        ({"edgeBroker": "http://x"}, "pods.edgeBroker"),
        ({"workerImages": "x"}, "pods.workerImages"),
        ({"hostPaths": ["data"]}, "pods.hostPaths[0]"),
        ({"hostPaths": ["/data", "/a/../b"]}, "pods.hostPaths[1]"),
        ({"hostPaths": "/data"}, "pods.hostPaths"),
        ({"writableHostPaths": ["out"]}, "pods.writableHostPaths[0]"),
        ({"writableHostPaths": ["/out", "//out/x"]}, "pods.writableHostPaths[1]"),
        ({"writableHostPaths": ["/out"], "hostPaths": ["/data", "/out/x"]}, "pods.hostPaths[1]"),
        ({"writableHostPaths": ["/var/lib/halimede/nodes/"]}, "pods.nodeCache"),
        ({"writableHostPaths": ["/var/lib"]}, "pods.nodeCache"),
        ({"allowedImages": [""]}, "pods.allowedImages[0]"),
        ({"nodeCache": "var"}, "pods.nodeCache"),
        ({"edgeSecret": "A b"}, "pods.edgeSecret"),
        ({"cloudSecret": "../x"}, "pods.cloudSecret"),
        ({"pullSecrets": ["ok", "A"]}, "pods.pullSecrets[1]"),
        ({"registry": "https://registry.example"}, "pods.registry"),
        ({"registry": "registry.example/"}, "pods.registry"),
        ({"pullPolicy": "Sometimes"}, "pods.pullPolicy"),
        ({"port": 80}, "pods.port"),
        ({"env": {"A=B": "x"}}, "pods.env"),
        ({"serving": {"onnx": {}}}, "pods.serving.image"),
        ({"serving": {"onnx": {"image": "x", "args": ["{modle}"]}}}, "pods.serving.onnx"),
        ({"fetchAllow": ["10.0.0.0/40"]}, "pods.fetchAllow"),
        ({"serviceTypes": ["ExternalName"]}, "pods.serviceTypes[0]"),
        ({"credentials": "yes"}, "pods.credentials"),
    ],
)
def test_what_is_not_accepted_is_named(more: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        parse({**BROKER, **more}, {})
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize("text", ["", "{", "broker: x", "[]", "\xff"])
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pods.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidFieldError) as caught:
        read(file, {})
    assert "pods" in caught.value.field
    with pytest.raises(InvalidFieldError, match=r"--pods-config: .*give a JSON file"):
        read(tmp_path / "missing", {})
