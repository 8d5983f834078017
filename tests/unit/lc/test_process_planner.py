"""Where a model is served by a node that runs workers itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from halimede.api import parse
from halimede.names import Key
from services.lc.planning.resource_state import Preparation
from services.lc.store import NodeResource
from tests.integration.inference_models import inference_model
from tests.unit.lc.test_plan import NODE


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
