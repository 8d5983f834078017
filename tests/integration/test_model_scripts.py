"""Scripts of a model in real workers: their answers, and what they cannot do to the worker."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from PIL import Image

from examples.digits import data
from halimede.models.desired_state import DesiredModel
from halimede.worker.model_reload import ModelOpener
from services.broker import MosquittoProcess
from tests.integration.workers import ROOT, Site, site, train
from tests.serving_world import Server, server
from tests.simulated import eventually

pytestmark = pytest.mark.timeout(180)

#: the digits' processing, and what goes wrong for pictures of some sizes
SCRIPT = """
import sys
import numpy as np
from PIL import Image

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

def preprocess(image):
    if image.shape[:2] == (20, 20):
        raise ValueError("twenty")
    small = Image.fromarray(np.atleast_3d(image)[..., 0]).resize((8, 8))
    return np.asarray(small, np.float32).reshape(64) / 240

def postprocess(outputs, size):
    if size == (21, 21):
        sys.exit(3)
    if size == (22, 22):
        open("{precious}", "w").write("mine")
    if size == (23, 23):
        while True:
            pass
    row = outputs["probabilities"][0]
    return {"label": NAMES[row.argmax()], "probabilities": row}
"""
SPEC: dict[str, Any] = {
    "url": "/none",
    "format": "onnx",
    "preprocess": [{"op": "script", "file": "processing.py"}],
    "postprocess": {"script": {"file": "processing.py"}},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    return train(tmp_path_factory.mktemp("models"))


@pytest.fixture
def precious(tmp_path: Path, models: tuple[Path, Path, Any]) -> Path:
    """Return a file that the scripts of the models must not write."""
    file = tmp_path / "precious.txt"
    file.write_text("all of it")
    (models[0].parent / "processing.py").write_text(SCRIPT.replace("{precious}", str(file)))
    return file


def picture(size: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (size, size), 128).save(file, "PNG")
    return file.getvalue()


def start_edge(s: Site, small: Path, **changes: str) -> None:
    s.start("edge", "edge0", small, MODEL_SPEC=json.dumps(SPEC), **changes)


async def test_scripts_make_the_input_and_the_answer_and_their_faults_are_those_of_one_sample(
    mosquitto: MosquittoProcess, tmp_path: Path, models: tuple[Path, Path, Any], precious: Path
) -> None:
    small, big, split = models
    async with site(mosquitto, "scripted", tmp_path) as s:
        start_edge(s, small)
        s.start("cloud", "cloud0", big)
        await s.running("edge0", "cloud0")
        pictures = [data.to_png(image) for image in split.test_x[:150]]
        await s.send([*pictures, picture(20), picture(21), picture(22)])
        await s.answered()
        found = {s.sent[id_]: result for id_, result in s.results.items()}
        names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
        own = [(number, each) for number, each in found.items() if each.by == "edge" and number < 150]
        assert len(own) > 75, "the probabilities of the script are mined"
        assert np.mean([names[split.test_y[number]] == each.prediction.label for number, each in own]) > 0.95
        # the model failed on them, so the next tier answered
        assert [(found[i].by, found[i].prediction.label in list("0123456789")) for i in (150, 151, 152)] == [
            ("cloud", True)
        ] * 3
        assert s.counts("edge0").hard_example_number >= 3
        assert precious.read_text() == "all of it"
        assert all(worker.process.poll() is None for worker in s.workers)


async def test_a_pod_finds_the_script_in_the_folder_of_its_init_container(
    tmp_path: Path, models: tuple[Path, Path, Any], precious: Path
) -> None:
    with tarfile.open(tmp_path / "small.tar.gz", "w:gz") as packed:
        packed.add(models[0], "digits/model.onnx")
        packed.add(models[0].parent / "processing.py", "digits/processing.py")
    out = tmp_path / "downloads" / "small.tar.gz"
    given_to = ["--cache", str(tmp_path / "cache"), "--out", str(out), "--unpack"]
    command = [sys.executable, "-m", "halimede.models", "--url", str(tmp_path / "small.tar.gz"), *given_to]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 0
    given = {name: value for name, value in SPEC.items() if name != "url"}
    loaded = await ModelOpener().open(DesiredModel(name="small", path=str(out), spec=given))
    (found,) = await loaded.thread.call(
        lambda: loaded.model.predict([loaded.model.prepare(np.zeros((9, 9), np.uint8))])
    )
    assert found.label in SCRIPT
    await loaded.close()


async def ask(made: Server, size: int) -> dict[str, Any]:
    """Request a prediction for a picture of a size; return the server's answer."""
    data64 = base64.b64encode(picture(size)).decode()
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [data64]}
    url = f"{made.http}/v2/models/small/infer"
    async with aiohttp.ClientSession() as session, session.post(url, json={"inputs": [tensor]}) as answer:
        found: dict[str, Any] = await answer.json()
    return found


async def test_a_server_has_the_same_limits(tmp_path: Path, models: tuple[Path, Path, Any], precious: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    arguments = [str(models[0]), "--spec", str(spec), "--instances", "2"]
    async with server(tmp_path / "s", *arguments, MODEL_TIMEOUT_S="2") as made:
        await made.ready()
        found = await ask(made, 19)
        assert json.loads(found["outputs"][0]["data"][0])["label"] in SCRIPT
        assert "raised ValueError: twenty" in (await ask(made, 20))["error"]
        assert "raised SystemExit" in (await ask(made, 21))["error"]
        assert "raised PermissionError" in (await ask(made, 22))["error"]
        assert precious.read_text() == "all of it"
        with pytest.raises(aiohttp.ClientError):
            await ask(made, 23)
        await eventually(lambda: made.process.poll() is not None, 30)
        assert "has not answered for 2 s" in made.log.read_text()


async def test_a_script_that_hangs_does_not_hang_the_worker_and_the_watchdog_ends_it(
    mosquitto: MosquittoProcess, tmp_path: Path, models: tuple[Path, Path, Any], precious: Path
) -> None:
    async with site(mosquitto, "hanging", tmp_path) as s:
        start_edge(s, models[0], MODEL_TIMEOUT_S="3")
        await s.running("edge0")
        await s.send([picture(23)])
        began, worker = time.monotonic(), s.workers[0]
        scraped = 0
        while worker.process.poll() is None and time.monotonic() - began < 2:
            await s.metric("edge0", "accepted")  # its loop answers while the script runs
            scraped += 1
        assert scraped >= 2
        await eventually(lambda: worker.process.poll() is not None, 30)
        assert worker.process.returncode != 0
        assert "the model has not answered for 3 s" in worker.log.read_text()
        assert precious.read_text() == "all of it"
