"""A user's own application on two edge workers as processes, over a real Mosquitto, with no cloud worker."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from halimede import topics
from halimede.cli.manifests import load
from halimede.frames import encode_image, new_id, pack
from halimede.messages import Frame, Fused, Result
from tests.graphs import write_weigher
from tests.inbox import Inbox
from tests.integration.workers import ROOT, Site
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
        environment = {
            "APPLICATION": msgspec.json.encode(spec.application).decode(),
            "PART": worker.name,
            "MEMBERS": json.dumps([edge.name for edge in spec.edge_workers]),
            "CAMERAS": json.dumps(CAMERAS),
            "SOURCE": msgspec.json.encode(worker.source).decode(),
            "MODEL_SPEC": json.dumps(of_model),
            "PYTHONPATH": f"{ROOT}:{folder}",
        }
        s.start("member", f"{s.service}-{worker.name}", model, **environment)


async def film(s: Site, camera: str, picture: np.ndarray) -> str:
    frame = Frame(id=new_id(), encoding="png", captured_ns=time.time_ns(), data=memoryview(encode_image(picture)))
    await s.bus.publish(topics.CAMERA_FRAME.at(ns="default", camera=camera), pack(frame), qos=1)
    return frame.id.hex()


async def test_what_two_cameras_see_is_counted_together(s: Site) -> None:
    fused: Inbox[Fused] = Inbox()
    results: Inbox[Result] = Inbox()
    await s.bus.subscribe(topics.FUSED.filter(ns="default", service=s.service), fused)
    await s.bus.subscribe(topics.MULTI_RESULT.filter(ns="default", service=s.service), results)
    start(s, "count.yaml", write_weigher(s.folder / "weigher.onnx", 16))
    west, east = f"{s.service}-west", f"{s.service}-east"
    await s.running(west, east)
    sent = set()
    for i in range(30):
        things = [(4 * i - 40, 10, 4 * i - 20, 40)] if i >= 10 else []
        sent |= {await film(s, camera, a_picture(*things, size=(60, 128))) for camera in CAMERAS}
        await asyncio.sleep(0.1)
    await eventually(lambda: sent <= set(results.read(lambda result: result.id)), 30)
    await eventually(lambda: {"bright": 2} in fused.read(lambda body: body.value), 30)
    answers = results.read(lambda result: result)
    assert all(answer.by == "joint" or answer.degraded for answer in answers)
    assert {"bright": 2} in [answer.prediction.value["total"] for answer in answers if answer.by == "joint"]
    counted = next(body for body in fused.read(lambda body: body) if body.value == {"bright": 2})
    sources = [(source.camera, source.worker, source.label) for source in counted.sources]
    assert sources == [("cam0", west, "1"), ("cam1", east, "1")]
