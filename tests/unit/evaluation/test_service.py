"""A service's chain of models out of manifests, and what its models answer."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.api.model import ModelSpec
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.service import EvaluatedTier, _answer, answer_all, answer_and_time, check_crops, read_chain
from halimede.joint_model.tiers import from_manifests
from tests.origins import serving
from tests.unit.api.samples import resource
from tests.unit.evaluation.worlds import joint, model, samples_of, write
from tests.unit.frames.clouds import Brightness


def test_the_chain_goes_from_the_edge_over_the_tiers_to_the_cloud(tmp_path: Path) -> None:
    path = write(tmp_path, joint(tiers=["middle"]), *(model(tmp_path, name) for name in ("small", "middle", "big")))
    chain = read_chain([path])
    tiers = [(tier.name, tier.model, tier.path.name) for tier in chain.tiers]
    assert tiers == [("edge", "small", "small.onnx"), ("middle", "middle", "middle.onnx"), ("cloud", "big", "big.onnx")]
    assert chain.edge.deferral.hard_example_mining.name == "Margin"  # type: ignore[union-attr]
    assert chain.cloud.deferral is None


def _service(folder: Path, *further: str | dict[str, Any], **edge: Any) -> Path:
    """Write a service of a small and a big model, and other models."""
    body = joint()
    body["spec"]["edgeWorker"] |= edge
    models = {name: model(folder, name) for name in ("small", "big", *further) if isinstance(name, str)}
    models |= {other["metadata"]["name"]: other for other in further if not isinstance(other, str)}
    return write(folder, body, *models.values())


def _with_detector(folder: Path) -> Path:
    return _service(folder, "finder", detector={"name": "finder"})


def test_a_detector_is_no_tier_and_its_model_belongs_to_the_service(tmp_path: Path) -> None:
    chain = read_chain([_with_detector(tmp_path)])
    assert [tier.model for tier in chain.tiers] == ["small", "big"]
    assert [each.metadata.name for each in chain.models] == ["small", "big", "finder"]


def test_pictures_with_boxes_are_no_samples_of_a_service_with_a_detector(tmp_path: Path) -> None:
    pages = LabelledSamples(images=[], names=[], sizes=[], boxes=[])
    crops = LabelledSamples(images=[], names=[], sizes=[], truths=[])
    chain = read_chain([_with_detector(tmp_path)])
    check_crops(chain, crops, "--data", "crops")
    with pytest.raises(
        InvalidFieldError, match=r"^--data: .*samples of a service with a detector \(finder\) are crops"
    ):
        check_crops(chain, pages, "--data", "pages")


def test_a_joint_model_is_no_service_with_a_detector(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match=r"^spec\.edgeWorker\.detector: .*give predict crops"):
        from_manifests([_with_detector(tmp_path)])


def test_a_manifest_in_utf_16_is_read_as_apply_reads_it(tmp_path: Path) -> None:
    path = _service(tmp_path)
    path.write_bytes(path.read_text().encode("utf-16"))
    assert read_chain([path]).cloud.model == "big"


def test_models_are_found_in_the_manifests_beside(tmp_path: Path) -> None:
    write(tmp_path, model(tmp_path, "small"), model(tmp_path, "big"), name="models.yaml")
    (tmp_path / "broken.yaml").write_text("{")
    path = write(tmp_path, joint(), name="service.yaml")
    assert read_chain([path]).cloud.path == tmp_path / "big.onnx"


def test_a_calibration_that_is_not_there_yet_is_none(tmp_path: Path) -> None:
    file = tmp_path / "found.calibration"
    named = resource("Model", {"url": "./found.calibration", "format": "calibration"}, "found")
    path = _service(tmp_path, named, calibration={"name": "found"})
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
    with serving((tmp_path / "big.onnx").read_bytes()) as origin:
        big["spec"]["url"] = f"{origin.url}/big.onnx"
        chain = read_chain([_service(tmp_path, big)])
    assert chain.cloud.path.is_relative_to(tmp_path / "home")
    assert chain.cloud.path.read_bytes() == origin.body


def test_a_local_archive_is_unpacked_and_its_script_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path / "home"))
    big = model(tmp_path, "big")
    script = tmp_path / "post.py"
    script.write_text("def postprocess(outputs, size):\n    return {'label': 'scripted', 'score': 1.0}\n")
    with tarfile.open(tmp_path / "big.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "big.onnx", "model.onnx")
        packed.add(script, "post.py")
    big["spec"] |= {"url": "./big.tar.gz", "postprocess": {"script": {"file": "post.py"}}}
    chain = read_chain([_service(tmp_path, big)])
    answers = answer_all(chain.cloud, samples_of([np.zeros(3, np.float32)] * 3))
    assert [answer.label for answer in answers] == ["scripted"] * 3


def test_a_selector_cannot_be_resolved_here(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match="give a name"):
        read_chain([_service(tmp_path, model={"selector": {"task": "classification"}})])


def test_answers_come_in_order_and_within_a_running_loop(tmp_path: Path) -> None:
    chain = read_chain([_service(tmp_path)])
    data = samples_of([np.array([i % 3 == 0, i % 3 == 1, i % 3 == 2], np.float32) * 5 for i in range(300)])
    told: list[int] = []
    found = answer_and_time(chain.edge, data, lambda done, _: told.append(done))
    assert [p.label for p in found.predictions] == ["abc"[i % 3] for i in range(300)]
    assert found.ms > 0
    assert told[-1] == 300

    async def inside() -> int:
        return len(answer_all(chain.cloud, data))

    assert asyncio.run(inside()) == 300


def test_a_sample_that_does_not_fit_the_model_is_named(tmp_path: Path) -> None:
    chain = read_chain([_service(tmp_path)])
    data = samples_of([np.zeros(3, np.float32), np.zeros(4, np.float32)])
    with pytest.raises(InvalidFieldError, match=r"--data: '1' .* model small"):
        answer_all(chain.edge, data)


@pytest.mark.parametrize(("values", "most"), [(100, 32), (1024**2, 2), (4 * 1024**2, 1)])
def test_a_call_of_the_model_gets_no_more_samples_than_fit_into_its_bytes(values: int, most: int) -> None:
    data = samples_of([np.zeros((1, values), np.float32)] * 40)
    tier = EvaluatedTier(name="edge", model="m", spec=ModelSpec(url="/m", format="onnx"), path=Path("/m"))
    brightness = Brightness()
    assert len(_answer(tier, brightness, data, range(40))) == 40
    assert max(map(len, brightness.batches)) == most
