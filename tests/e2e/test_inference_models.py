"""InferenceModels on one machine, as the seeds write them: brought as archives, served, changed while they answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from examples.digits import data, train
from tests.e2e.resources import Statuses, resource, write_archive
from tests.e2e.running import running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
NAME = "facialexpression"


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each."""

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


def sample(
    group: str, origin: str, digests: dict[str, str], *, target: str = "4", form: str = "onnx"
) -> dict[str, Any]:
    """The seeds' sample, with its addresses at a local server and its framework ours."""
    manifest = [
        {"version": version, "downloadURL": f"{origin}/model_emotion_{version}.tar.gz", "sha256sum": digest}
        for version, digest in digests.items()
    ]
    return resource(
        "InferenceModel",
        NAME,
        group=group,
        modelName=NAME,
        deployToLayer="edge",
        frameworkType=form,
        image="",
        nodeSelector={"kubernetes.io/hostname": "edge0"},
        nodeName="edge0",
        manifest=manifest,
        targetVersion=target,
        servingPort=0,
        replicas=1,
    )


def ask(url: str, rows: np.ndarray) -> np.ndarray:
    """Infer with Triton's own client; return the classes."""
    with tritonclient.http.InferenceServerClient(url.removeprefix("http://")) as client:
        metadata = client.get_model_metadata(NAME)
        (wanted,) = metadata["inputs"]
        tensor = tritonclient.http.InferInput(wanted["name"], list(rows.shape), wanted["datatype"])
        tensor.set_data_from_numpy(rows)
        answer = client.infer(NAME, [tensor])
        found = [answer.as_numpy(output["name"]) for output in metadata["outputs"]]
        scores = next(each for each in found if each is not None and each.ndim == 2)
        return scores.argmax(axis=1)


async def is_right(shown: Statuses) -> None:
    """Check the answers to 50 digits."""
    pictures = data.load()
    rows = pictures.test_x[:50].reshape(50, -1).astype(np.float32)
    classes = await asyncio.to_thread(ask, shown.of(NAME).url or "", rows)
    assert (classes == pictures.test_y[:50]).mean() > 0.8


@pytest.mark.parametrize("group", ["sedna.io", "ai.kubeedge.io"])
async def test_the_seeds_samples_reach_serving_and_take_a_new_version_while_they_serve(
    tmp_path: Path, group: str
) -> None:
    if not (train.FOLDER / "big.onnx").exists():
        train.main()
    small, big = ((train.FOLDER / f"{size}.onnx").read_bytes() for size in ("small", "big"))
    folder = tmp_path / "store"
    folder.mkdir()
    digests = {
        version: write_archive(folder / f"model_emotion_{version}.tar.gz", {"model/model.onnx": model})
        for version, model in {"3": small, "4": big, "5": b"no model"}.items()
    }
    with served(folder) as origin:
        async with running(tmp_path / "home", "edge0") as system:
            shown = Statuses()
            await shown.follow(system, "inferencemodels")
            await system.client.apply(sample(group, origin, digests, target="3"))
            await system.until("version 3", lambda: shown.of(NAME).serving_version == "3")
            assert shown.of(NAME).phase == "Running"
            process = system.processes()[f"worker:{NAME}-serve-edge0"].pid
            await is_right(shown)

            await system.client.apply(sample(group, origin, digests))
            await system.until("version 4", lambda: shown.of(NAME).serving_version == "4")
            await is_right(shown)

            await system.client.apply(sample(group, origin, digests, target="5"))
            refusals = {"RolloutFailed", "ModelInvalid"}
            await system.until("a refusal", lambda: shown.condition(NAME).reason in refusals)
            assert shown.of(NAME).serving_version == "4"
            await is_right(shown)
            assert system.processes()[f"worker:{NAME}-serve-edge0"].pid == process

            await system.client.delete("inferencemodels", NAME)
            await system.until("the end", lambda: f"worker:{NAME}-serve-edge0" not in system.processes())
