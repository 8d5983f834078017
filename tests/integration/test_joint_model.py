"""JointModel over a real broker with a real cloud worker, and every Python block of docs/joint-model.md."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from halimede import JointModel
from halimede.access.site import Principal
from halimede.errors import HalimedeError
from halimede.topic import Role
from tests.access_world import access_world
from tests.digits import Digits
from tests.integration.gm_world import model, service
from tests.integration.workers import PREPROCESS, ROOT, Site
from tests.ports import free_port

pytestmark = pytest.mark.timeout(180)

FORM: dict[str, Any] = {
    "labels": list("0123456789"), "preprocess": PREPROCESS, "postprocess": {"output": "probabilities"},
}  # fmt: skip


async def test_without_a_broker_the_small_model_answers(unique: str, digits: Digits) -> None:
    gone = f"127.0.0.1:{free_port()}"
    model = JointModel.connect(unique, edge=digits.small, broker=gone, mining="CloudOnly", deadline_ms=100, **FORM)
    async with model:
        answer = await model.apredict(digits.pictures[0])
    assert (answer.by, answer.degraded, answer.reason) == ("edge", True, "no-cloud")
    assert answer.label


async def test_a_broker_that_does_not_let_it_in_or_ask_says_what_to_do(tmp_path: Path, digits: Digits) -> None:
    async with access_world(tmp_path / "site") as w:

        def model(principal: Principal | None) -> JointModel:
            folder = w.folder / principal.folder if principal else ""
            return JointModel.connect(
                "digits", edge=digits.small, broker=w.broker.url, credentials=folder, mining="CloudOnly",
                deadline_ms=2000, node="edge0", **FORM,
            )  # fmt: skip

        with pytest.raises(HalimedeError, match="connect with the credentials of an edge worker"):
            await model(None).apredict(digits.pictures[0])
        async with model(Principal(Role.CAMERA, "cam0")) as camera:
            answer = await camera.apredict(digits.pictures[0])
            assert (answer.by, answer.degraded) == ("edge", True)
            assert "connect with the credentials of an edge worker" in answer.detail
        async with model(Principal(Role.EDGE, "edge0")) as edge:
            answer = await edge.apredict(digits.pictures[0])
            assert (answer.by, answer.reason) == ("edge", "no-cloud")


async def test_the_python_of_the_documentation(
    s: Site, tmp_path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALIMEDE_BROKER", s.broker.url)
    for name, source in (("small.onnx", digits.small), ("big.onnx", digits.big)):
        (tmp_path / name).write_bytes(source.read_bytes())
    (tmp_path / "digit.png").write_bytes(digits.pictures[0])
    (tmp_path / "service.yaml").write_text(manifests())
    text = (ROOT / "docs" / "joint-model.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, Any] = {"__name__": "documentation"}
    s.start("cloud", s.cloud, digits.big)
    await s.running(s.cloud)
    for block in blocks:
        code = compile(block.replace('connect("digits"', f'connect("{s.service}"'), "joint-model.md", "exec")
        with threadpool_limits(1):  # scikit-learn's threads are in one another's way on a busy machine
            await asyncio.to_thread(exec, code, names)
    async with TestClient(TestServer(names["app"])) as client:
        answer = await client.post("/", data=digits.pictures[0])
        assert (await answer.json())["by"] in {"edge", "cloud"}


def manifests() -> str:
    """Return a service and its two models as a manifest (JSON is YAML)."""
    models = [model(name, url=f"{name}.onnx", **FORM) for name in ("small", "big")]
    mining = {"name": "Margin", "parameters": [{"key": "threshold_margin", "value": "0.19"}]}
    body = service("digits", edge_worker={"hardExampleMining": mining, "deadlineMs": 5000})
    return "\n---\n".join(json.dumps(body) for body in [*models, body])
