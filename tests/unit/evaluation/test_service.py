"""A service's chain of models out of manifests, and what its models answer."""

from __future__ import annotations

import asyncio
import tarfile
import threading
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from halimede.api.model import ModelSpec
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.service import EvaluatedTier, _answer, answered, answers, check_crops, read_chain
from halimede.inference import Array, Model
from halimede.joint_model.tiers import from_manifests
from halimede.messages import Frame, Prediction
from tests.lite_files import write_classifier
from tests.unit.evaluation.worlds import joint, model, write


def test_the_chain_goes_from_the_edge_over_the_tiers_to_the_cloud(tmp_path: Path) -> None:
    path = write(tmp_path, joint(tiers=["middle"]), *(model(tmp_path, name) for name in ("small", "middle", "big")))
    chain = read_chain([path])
    assert [tier.name for tier in chain.tiers] == ["edge", "middle", "cloud"]
    assert [tier.model for tier in chain.tiers] == ["small", "middle", "big"]
    assert [tier.path.name for tier in chain.tiers] == ["small.onnx", "middle.onnx", "big.onnx"]
    assert chain.edge.deferral is not None
    assert chain.edge.deferral.hard_example_mining.name == "Margin"
    assert chain.cloud.deferral is None


def _with_detector(folder: Path) -> Path:
    body = joint()
    body["spec"]["edgeWorker"]["detector"] = {"name": "finder"}
    return write(folder, body, *(model(folder, name) for name in ("small", "big", "finder")))


def test_a_detector_is_no_tier_and_its_model_belongs_to_the_service(tmp_path: Path) -> None:
    chain = read_chain([_with_detector(tmp_path)])
    assert [tier.model for tier in chain.tiers] == ["small", "big"]
    assert [each.metadata.name for each in chain.models] == ["small", "big", "finder"]


def test_pictures_with_boxes_are_no_samples_of_a_service_with_a_detector(tmp_path: Path) -> None:
    pages = LabelledPicture(images=[], names=[], sizes=[], boxes=[])
    crops = LabelledPicture(images=[], names=[], sizes=[], truths=[])
    chain = read_chain([_with_detector(tmp_path)])
    check_crops(chain, crops, "--data", "crops")
    with pytest.raises(InvalidFieldError, match=r"samples of a service with a detector \(finder\) are crops") as caught:
        check_crops(chain, pages, "--data", "pages")
    assert caught.value.field == "--data"


def test_a_joint_model_is_no_service_with_a_detector(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match="give predict crops") as caught:
        from_manifests([_with_detector(tmp_path)])
    assert caught.value.field == "spec.edgeWorker.detector"


def test_a_manifest_in_utf_16_is_read_as_apply_reads_it(tmp_path: Path) -> None:
    path = write(tmp_path, joint(), model(tmp_path, "small"), model(tmp_path, "big"))
    path.write_bytes(path.read_text().encode("utf-16"))
    assert read_chain([path]).cloud.model == "big"


def test_models_are_found_in_the_manifests_beside(tmp_path: Path) -> None:
    write(tmp_path, model(tmp_path, "small"), model(tmp_path, "big"), name="models.yaml")
    (tmp_path / "broken.yaml").write_text("{")
    path = write(tmp_path, joint(), name="service.yaml")
    assert read_chain([path]).cloud.path == tmp_path / "big.onnx"


def test_a_calibration_that_is_not_there_yet_is_none(tmp_path: Path) -> None:
    body = joint()
    body["spec"]["edgeWorker"]["calibration"] = {"name": "found"}
    file = tmp_path / "found.calibration"
    named = {"apiVersion": "sedna.io/v1alpha1", "kind": "Model", "metadata": {"name": "found"},
             "spec": {"url": "./found.calibration", "format": "calibration"}}  # fmt: skip
    path = write(tmp_path, body, model(tmp_path, "small"), model(tmp_path, "big"), named)
    assert read_chain([path]).edge.calibration is None
    file.write_text("{}")
    assert read_chain([path]).edge.calibration == file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "write YAML"),
        ("a: 1", "kind: .* use one of Dataset"),
        ("", "one JointInferenceService"),
        ("\x00", "write YAML"),
        ("a: 1\n\tb: 2", r"write YAML: found character '\\t' that cannot start any token \(line 2\)$"),
        ("[" * 3000, r"write YAML: it is nested more than 100 levels deep: flatten it \(line 1\)$"),
    ],
)
def test_manifests_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(InvalidFieldError, match=said):
        read_chain([path])


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, joint(), model(tmp_path, "small"))
    with pytest.raises(InvalidFieldError, match=r"cloudWorker.model.name: 'big'"):
        read_chain([path])
    (tmp_path / "small.onnx").unlink()
    path = write(tmp_path, joint(), model(tmp_path, "big"), {**model(tmp_path, "small")})
    (tmp_path / "small.onnx").unlink()
    with pytest.raises(InvalidFieldError, match="train or download"):
        read_chain([path])
    with pytest.raises(InvalidFieldError, match="cannot be read"):
        read_chain([tmp_path / "nowhere.yaml"])


def test_a_model_from_elsewhere_is_fetched_into_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HALIMEDE_FETCH_ALLOW", "loopback")
    big = model(tmp_path, "big")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        big["spec"]["url"] = f"http://127.0.0.1:{server.server_port}/big.onnx"
        path = write(tmp_path, joint(), model(tmp_path, "small"), big)
        chain = read_chain([path])
        server.shutdown()
    assert chain.cloud.path.is_relative_to(tmp_path / "home")
    assert chain.cloud.path.read_bytes() == (tmp_path / "big.onnx").read_bytes()


def test_a_local_archive_is_unpacked_and_its_script_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path / "home"))
    big = model(tmp_path, "big")
    script = tmp_path / "post.py"
    script.write_text("def postprocess(outputs, size):\n    return {'label': 'scripted', 'score': 1.0}\n")
    with tarfile.open(tmp_path / "big.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "big.onnx", "model.onnx")
        packed.add(script, "post.py")
    big["spec"] |= {"url": "./big.tar.gz", "postprocess": {"script": {"file": "post.py"}}}
    chain = read_chain([write(tmp_path, joint(), model(tmp_path, "small"), big)])
    data = LabelledPicture(images=[np.zeros(3, np.float32)] * 3, names=["a", "b", "c"], sizes=[1] * 3)
    assert [each.label for each in answers(chain.cloud, data)] == ["scripted"] * 3


def test_a_lite_model_is_fetched_unpacked_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HALIMEDE_FETCH_ALLOW", "loopback")
    with tarfile.open(tmp_path / "big.tar.gz", "w:gz") as archive:
        archive.add(write_classifier(tmp_path / "net", np.eye(3, dtype=np.float32), np.zeros(3)), "big/net.tflite")
    big = model(tmp_path, "big")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/big.tar.gz"
        big["spec"] = {"url": url, "format": "tflite", "labels": ["a", "b", "c"]}
        chain = read_chain([write(tmp_path, joint(), model(tmp_path, "small"), big)])
        server.shutdown()
    data = LabelledPicture(images=[np.array([0, 5, 0], np.float32)], names=["0"], sizes=[12])
    assert [each.label for each in answers(chain.cloud, data)] == ["b"]


def test_a_selector_cannot_be_resolved_here(tmp_path: Path) -> None:
    body = joint()
    body["spec"]["edgeWorker"]["model"] = {"selector": {"task": "classification"}}
    with pytest.raises(InvalidFieldError, match="give a name"):
        read_chain([write(tmp_path, body, model(tmp_path, "small"), model(tmp_path, "big"))])


def test_answers_come_in_order_and_within_a_running_loop(tmp_path: Path) -> None:
    chain = read_chain([write(tmp_path, joint(), model(tmp_path, "small"), model(tmp_path, "big"))])
    rows = [np.array([i % 3 == 0, i % 3 == 1, i % 3 == 2], np.float32) * 5 for i in range(300)]
    data = LabelledPicture(images=rows, names=[str(i) for i in range(300)], sizes=[12] * 300)
    told: list[int] = []
    found = answered(chain.edge, data, lambda done, _: told.append(done))
    assert [p.label for p in found.predictions] == ["abc"[i % 3] for i in range(300)]
    assert found.ms > 0
    assert told[-1] == 300

    async def inside() -> int:
        return len(answers(chain.cloud, data))

    assert asyncio.run(inside()) == 300


def test_a_sample_that_does_not_fit_the_model_is_named(tmp_path: Path) -> None:
    chain = read_chain([write(tmp_path, joint(), model(tmp_path, "small"), model(tmp_path, "big"))])
    data = LabelledPicture(
        images=[np.zeros(3, np.float32), np.zeros(4, np.float32)], names=["good", "bad"], sizes=[1, 1]
    )
    with pytest.raises(InvalidFieldError, match=r"--data: 'bad' .* model small"):
        answers(chain.edge, data)


class BatchSizes(Model):
    """A model that records how many samples a call gets."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    def prepare(self, image: Array) -> Array:
        return image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        self.sizes.append(len(batch))
        return [Prediction(label="a", score=1.0)] * len(batch)

    def close(self) -> None:
        return


@pytest.mark.parametrize(("values", "most"), [(100, 32), (1024**2, 2), (4 * 1024**2, 1)])
def test_a_call_of_the_model_gets_no_more_samples_than_fit_into_its_bytes(values: int, most: int) -> None:
    rows: list[Array | Frame] = [np.zeros(values, np.float32)] * 40
    data = LabelledPicture(images=rows, names=[str(i) for i in range(40)], sizes=[1] * 40)
    tier = EvaluatedTier(name="edge", model="m", spec=ModelSpec(url="/m", format="onnx"), path=Path("/m"))
    counting = BatchSizes()
    assert len(_answer(tier, counting, data, range(40))) == 40
    assert max(counting.sizes) == most
