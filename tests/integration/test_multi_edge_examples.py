"""A user's own application on two edge workers as processes, over a real Mosquitto, with no cloud worker."""

from __future__ import annotations

import asyncio
import io
import json
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from halimede import topics
from halimede.bus import Delivery
from halimede.cli.manifests import load
from halimede.frames import new_id, pack
from halimede.messages import Frame, Fused, Result
from services.broker import MosquittoProcess
from tests.graphs import write_weigher
from tests.integration.workers import ROOT, Site, site
from tests.simulated import eventually
from tests.staged import FLAT, a_picture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
CAMERAS = ("cam0", "cam1")


def start(s: Site, manifest: str, model: Path) -> None:
    """Start the edge workers of a manifest, as a local controller would."""
    (read,) = load([str(ROOT / "examples" / "stages" / manifest)])
    spec = read.resource.spec
    of_model = {
        "url": str(model),
        "format": "onnx",
        "labels": ["dark", "bright"],
        "preprocess": msgspec.to_builtins(FLAT),
    }
    for worker in spec.edge_workers:
        folder = worker.template["spec"]["containers"][0]["workingDir"]
        told = {
            "APPLICATION": msgspec.json.encode(spec.application).decode(),
            "PART": worker.name,
            "MEMBERS": json.dumps([each.name for each in spec.edge_workers]),
            "CAMERAS": json.dumps(CAMERAS),
            "SOURCE": msgspec.json.encode(worker.source).decode(),
            "MODEL_SPEC": json.dumps(of_model),
            "PYTHONPATH": f"{ROOT}:{folder}",
        }
        s.start("member", f"{s.service}-{worker.name}", model, **told)


async def film(s: Site, camera: str, picture: np.ndarray) -> str:
    data = io.BytesIO()
    Image.fromarray(picture).save(data, format="PNG")
    frame = Frame(id=new_id(), encoding="png", captured_ns=time.time_ns(), data=memoryview(data.getvalue()))
    await s.bus.publish(topics.CAMERA_FRAME.at(ns="default", camera=camera), pack(frame), qos=1)
    return frame.id.hex()


async def test_what_two_cameras_see_is_counted_together(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    told: list[Fused] = []
    results: dict[str, Result] = {}

    async def fused(delivery: Delivery[Fused]) -> None:
        told.append(delivery.body)

    async def result(delivery: Delivery[Result]) -> None:
        results[delivery.body.id] = delivery.body

    async with site(mosquitto, unique, tmp_path) as s:
        await s.bus.subscribe(topics.FUSED.filter(ns="default", service=unique), fused)
        await s.bus.subscribe(topics.MULTI_RESULT.filter(ns="default", service=unique), result)
        start(s, "count.yaml", write_weigher(tmp_path / "weigher.onnx", 16))
        await s.running(f"{unique}-west", f"{unique}-east")
        sent = []
        for i in range(30):
            things = [(4 * i - 40, 10, 4 * i - 20, 40)] if i >= 10 else []
            sent += [await film(s, camera, a_picture(*things, size=(60, 128))) for camera in CAMERAS]
            await asyncio.sleep(0.1)
        await eventually(lambda: set(sent) <= set(results), 30)
        await eventually(lambda: any(each.value == {"bright": 2} for each in told), 30)
    joint = [each for each in results.values() if each.by == "joint"]
    assert all(each.by == "joint" or each.degraded for each in results.values())
    assert {"bright": 2} in [each.prediction.value["total"] for each in joint]
    counted = next(each for each in told if each.value == {"bright": 2})
    assert [(each.camera, each.worker, each.label) for each in counted.sources] == [
        ("cam0", f"{unique}-west", "1"),
        ("cam1", f"{unique}-east", "1"),
    ]
