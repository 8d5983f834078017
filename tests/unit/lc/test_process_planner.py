"""Where a model is served by a node that runs workers itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.api import parse
from halimede.names import Key
from services.lc.paths import NodePaths
from services.lc.planning.process_planner import NodeContext
from services.lc.planning.resource_state import Preparation
from services.lc.planning.template_process import Host
from services.lc.store import NodeResource


@pytest.mark.parametrize(
    ("http", "served"),
    [
        ("127.0.0.1:0", "127.0.0.1:8501"),
        ("[::1]:0", "[::1]:8501"),
        (":0", ":8501"),
        ("off", "127.0.0.1:8501"),
    ],
)
def test_a_model_is_served_where_its_node_shows_itself_and_never_further(http: str, served: str) -> None:
    body = {
        "apiVersion": "sedna.io/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": "face", "namespace": "default", "uid": "u1", "generation": 1},
        "spec": {
            "modelName": "face",
            "deployToLayer": "edge",
            "frameworkType": "onnx",
            "nodeName": "edge0",
            "manifest": [{"version": "1", "downloadURL": "/models/face.onnx"}],
            "servingPort": 8501,
        },
    }
    node = NodeContext(
        "edge0", {}, NodePaths(Path("/home"), "edge0"), "127.0.0.1:1883", Host("python", "/app", 1, 1), http=http
    )
    held = NodeResource(Key("inferencemodels", "default", "face"), "u1", 1, body)
    want = node.served_file(held, parse(body))
    assert want
    _, starts = node.server(held, parse(body), Preparation(want, "Ready", path=Path("/cache/face.onnx")))
    (start,) = starts.values()
    argv = start.spec.argv
    assert argv[argv.index("--http") + 1] == served
