"""Scripts of a model in real workers: their answers, and what they cannot do to the worker."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from examples.digits import data
from halimede.models.desired_state import DesiredModel
from halimede.worker.model_reload import ModelOpener
from tests.digits import Digits, picture
from tests.integration.workers import ROOT, Site
from tests.serving_world import Server, server
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.timeout(180)

#: seconds for each call of a model
LIMIT = f"{patience(3):g}"

#: the digits' processing, and what goes wrong for pictures of some sizes
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SCRIPT = """
import sys
import numpy as np
from PIL import Image

NAMES = {names}

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


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Return a file that the scripts of the model must not write."""
    file = tmp_path / "precious.txt"
    file.write_text("all of it")
    return file


@pytest.fixture
def scripted(tmp_path: Path, digits: Digits, precious: Path) -> Path:
    """Return the small model beside its scripts."""
    (tmp_path / "processing.py").write_text(SCRIPT.replace("{precious}", str(precious)).replace("{names}", repr(NAMES)))
    return Path(shutil.copy(digits.small, tmp_path / "scripted.onnx"))


async def test_scripts_make_the_input_and_the_answer_and_their_faults_are_those_of_one_sample(
    s: Site, digits: Digits, scripted: Path, precious: Path
) -> None:
    await s.run_both(replace(digits, small=scripted), MODEL_SPEC=json.dumps(SPEC))
    await s.send_all([*digits.pictures[:150], *(picture(128, side) for side in (20, 21, 22))])
    found = {s.sent[id_]: result for id_, result in s.results.items()}
    truth = data.load().test_y
    own = [(number, each) for number, each in found.items() if each.by == "edge" and number < 150]
    assert len(own) > 75, "the probabilities of the script are mined"
    assert np.mean([NAMES[truth[number]] == each.prediction.label for number, each in own]) > 0.95
    # the model failed on them, so the next tier answered
    failed = [found[number] for number in (150, 151, 152)]
    assert {result.by for result in failed} == {"cloud"}
    assert {result.prediction.label for result in failed} <= set("0123456789")
    assert s.counts(s.edge).hard_example_number >= 3
    assert precious.read_text() == "all of it"
    assert all(worker.process.poll() is None for worker in s.workers)


async def test_a_pod_finds_the_script_in_the_folder_of_its_init_container(tmp_path: Path, scripted: Path) -> None:
    with tarfile.open(tmp_path / "small.tar.gz", "w:gz") as packed:
        packed.add(scripted, "digits/model.onnx")
        packed.add(scripted.parent / "processing.py", "digits/processing.py")
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
    assert found.label in NAMES
    await loaded.close()


async def ask(made: Server, size: int) -> dict[str, Any]:
    """Request a prediction for a picture of a size; return the server's answer."""
    data64 = base64.b64encode(picture(128, size)).decode()
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [data64]}
    url = f"{made.http}/v2/models/scripted/infer"
    async with aiohttp.ClientSession() as session, session.post(url, json={"inputs": [tensor]}) as answer:
        found: dict[str, Any] = await answer.json()
    return found


async def test_a_server_has_the_same_limits(tmp_path: Path, scripted: Path, precious: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    arguments = [str(scripted), "--spec", str(spec), "--instances", "2"]
    async with server(tmp_path / "s", *arguments, MODEL_TIMEOUT_S=LIMIT) as made:
        await made.ready()
        found = await ask(made, 19)
        assert json.loads(found["outputs"][0]["data"][0])["label"] in NAMES
        for size, error in ((20, "ValueError: twenty"), (21, "SystemExit"), (22, "PermissionError")):
            assert f"raised {error}" in (await ask(made, size))["error"]
        assert precious.read_text() == "all of it"
        with pytest.raises(aiohttp.ClientError):
            await ask(made, 23)
        await eventually(lambda: made.process.poll() is not None, 30)
        assert made.process.returncode == 1
        assert f"has not answered for {LIMIT} s" in made.log.read_text()


async def test_a_script_that_hangs_does_not_hang_the_worker_and_the_watchdog_ends_it(
    s: Site, scripted: Path, precious: Path
) -> None:
    worker = await s.run_edge(scripted, MODEL_SPEC=json.dumps(SPEC), MODEL_TIMEOUT_S=LIMIT)
    await s.send([picture(128, 23)])

    async def runs() -> bool:
        return await s.metric(s.edge, "model_call_seconds") > 1

    await eventually(runs)  # the worker's loop answers while the script runs
    await eventually(lambda: worker.process.poll() is not None, 30)
    assert worker.process.returncode != 0
    assert f"the model has not answered for {LIMIT} s" in worker.log.read_text()
    assert precious.read_text() == "all of it"
