"""At which scale a JPEG is decoded, and that every way to a model's input gives the same array."""

import io
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from halimede.api.model import ModelSpec
from halimede.evaluation.data import read_labelled
from halimede.frames.encodings import decode
from halimede.frames.payloads import open_payload
from halimede.inference import open_model, preprocess
from halimede.inference.decoding import Decoding, decoding_of
from halimede.inference.estimator import EstimatorModel
from halimede.inference.geometry import Geometry, follow, geometry_of, scale_of, scaled_side
from halimede.joint_model import JointModel
from halimede.messages import Prediction
from halimede.pipeline.inference import prepare
from halimede.training.data import read_data
from halimede.training.kept_data import GROUP_NS, read_kept
from tests.kept_samples import SHARE, KeptStore
from tests.unit.inference.world import spec_of

CHW = [{"op": "normalize"}, {"op": "layout", "order": "chw"}]


def spec(*steps: dict[str, object], decode: str = "scaled") -> ModelSpec:
    return spec_of(decode=decode, preprocess=list(steps))


def decoding(*steps: dict[str, object], mode: str = "scaled") -> Decoding | None:
    declared = spec(*steps, decode=mode)
    return decoding_of(declared.decode, declared.preprocess)


def jpeg(width: int, height: int, mode: str = "RGB", seed: int = 0) -> bytes:
    """A picture with smooth colours and some grain, as a camera's."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize((width, height))
    grain = np.clip(np.asarray(coarse, np.int16) + rng.integers(-6, 7, (height, width, 3)), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(grain).convert(mode).save(out, "JPEG", quality=88)
    return out.getvalue()


@pytest.mark.parametrize(
    ("step", "size", "scale"),
    [
        ({"op": "letterbox", "width": 640, "height": 640}, (1920, 1080), 2),
        ({"op": "letterbox", "width": 640, "height": 640}, (3840, 2160), 4),
        ({"op": "letterbox", "width": 640, "height": 640}, (640, 480), 1),
        ({"op": "resize", "width": 224, "height": 224}, (1920, 1080), 4),
        ({"op": "resize", "width": 224, "height": 224}, (3840, 2160), 8),
        ({"op": "fit", "height": 48}, (1000, 200), 4),
        ({"op": "fit", "longest": 640, "multiple": 32}, (1920, 1080), 2),
    ],
)
def test_the_scale_is_the_smallest_that_the_first_size_allows(
    step: dict[str, object], size: tuple[int, int], scale: int
) -> None:
    chosen = decoding(step)
    assert chosen.scale(*size) == scale


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 900), st.integers(1, 900), st.integers(1, 64))
def test_no_picture_is_smaller_than_its_step_needs_and_the_step_makes_the_same_size(
    width: int, height: int, wide: int, high: int, multiple: int
) -> None:
    for step in (
        {"op": "letterbox", "width": wide, "height": high},
        {"op": "resize", "width": wide, "height": high},
        {"op": "fit", "longest": wide, "multiple": multiple},
        {"op": "fit", "height": high, "multiple": multiple},
    ):
        declared = spec(step)
        chosen = decoding_of(declared.decode, declared.preprocess)
        scale = chosen.scale(width, height)
        try:
            whole = follow(declared.preprocess, (height, width))
        except Exception:  # noqa: BLE001  # a side that is too long: the step says so
            assert scale == 1
            continue
        decoded = Geometry.of(width, height, scale)
        small = follow(declared.preprocess, (scaled_side(height, scale), scaled_side(width, scale)), decoded)
        assert (whole.x.size, whole.y.size) == (small.x.size, small.y.size)
        if step["op"] != "letterbox":
            assert scale == 1 or (decoded.x.size >= whole.x.size and decoded.y.size >= whole.y.size)


@pytest.mark.parametrize(
    "steps",
    [
        [{"op": "crop", "width": 100, "height": 100}, {"op": "resize", "width": 10, "height": 10}],
        [{"op": "script", "file": "a.py"}, {"op": "resize", "width": 10, "height": 10}],
        [{"op": "layout", "order": "chw"}],
        [],
    ],
)
def test_pictures_are_whole_where_pixels_count_before_the_first_size(steps: list[dict[str, object]]) -> None:
    assert decoding(*steps) is None
    assert decoding({"op": "resize", "width": 10, "height": 10}, mode="exact") is None


def test_a_grey_input_is_decoded_grey(tmp_path: Path) -> None:
    chosen = decoding({"op": "grayscale"}, {"op": "resize", "width": 20, "height": 20})
    pixels = decode(open_payload(jpeg(400, 200), ""), chosen)
    assert pixels.shape == (25, 50)
    assert not pixels.flags.writeable


@pytest.mark.parametrize("size", [(401, 203), (400, 200), (1921, 1081), (17, 9)])
def test_a_small_picture_has_the_mapping_to_its_frame(size: tuple[int, int]) -> None:
    step = {"op": "letterbox", "width": 64, "height": 64}
    pixels = decode(open_payload(jpeg(*size), ""), decoding(step))
    scale = scale_of(pixels)
    assert pixels.shape[:2] == (scaled_side(size[1], scale), scaled_side(size[0], scale))
    geometry = follow(spec(step).preprocess, pixels.shape, geometry_of(pixels))
    corners = geometry.back(np.array([[0.0, 0.0, 64.0, 64.0]]))
    assert corners[0] == pytest.approx([0, 0, *size], abs=scale)


class Recorder:
    """An estimator that records its inputs."""

    def __init__(self, inputs: list[np.ndarray]) -> None:
        self._inputs = inputs

    def predict(self, sample: np.ndarray) -> Prediction:
        self._inputs.append(sample)
        return Prediction(label="day", score=1.0)


def keep(folder: Path, files: list[bytes], labels: list[str]) -> None:
    """Store hard samples that the cloud answered surely, one in each group."""
    kept = KeptStore(folder)
    for number, (contents, label) in enumerate(zip(files, labels, strict=True)):
        now_ns = 10**18 + number * GROUP_NS
        answer = Prediction(label=label, score=1.0, probabilities=[1.0, 0.0] if label == "day" else [0.0, 1.0])
        kept.add(open_payload(contents, "cam"), answer, now_ns)
        kept.stream.observe("v1", SHARE, now_ns / 1e9, hard=True)
    kept.stream.save()


@pytest.mark.parametrize("mode", ["exact", "scaled"])
@pytest.mark.parametrize("method", ["antialias", "linear", "area"])
def test_all_ways_to_a_models_input_give_equal_arrays(mode: str, method: str, tmp_path: Path) -> None:
    steps = [{"op": "letterbox", "width": 64, "height": 64, "method": method}, *CHW]
    declared = msgspec.structs.replace(spec(*steps, decode=mode), labels=["day", "night"])
    for number in range(24):
        file = tmp_path / ("day", "night")[number % 2] / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(jpeg(641, 361, seed=number))
    model = EstimatorModel(None, declared)
    data = read_labelled(tmp_path, declared.labels)
    evaluated = [model.prepare(data.image(number, model.decoding)) for number in range(len(data))]
    worker = [prepare(model, open_payload((tmp_path / name).read_bytes(), "")) for name in data.names]
    assert {prepared.scale for prepared in worker} == {1 if mode == "exact" else 8}
    node = read_data(tmp_path, declared)
    trained = {row.tobytes() for row in (*node.train.samples, *node.held_out.samples)}
    assert {row.tobytes() for row in evaluated} == trained
    joint: list[np.ndarray] = []
    with JointModel(edge=Recorder(joint), decode=mode, preprocess=steps) as together:  # type: ignore[arg-type]
        for name in data.names:
            together.predict(tmp_path / name)
    keep(tmp_path / "kept", [(tmp_path / name).read_bytes() for name in data.names], data.truths or [])
    kept = read_kept(tmp_path / "kept", declared).node
    assert {row.tobytes() for row in (*kept.train.samples, *kept.held_out.samples)} <= trained
    for row, prepared, answered in zip(evaluated, worker, joint, strict=True):
        assert np.array_equal(row, prepared.array)
        assert np.array_equal(row, answered)


def test_linear_and_area_are_the_pixels_of_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    pixels = decode(open_payload(jpeg(320, 200), ""))
    for method, interpolation in (("linear", cv2.INTER_LINEAR), ("area", cv2.INTER_AREA)):
        for source in (pixels, pixels[..., :1], pixels[..., 0], pixels.astype(np.float32), pixels.astype(np.int64)):
            steps = spec({"op": "resize", "width": 90, "height": 70, "method": method}).preprocess
            usual = source if source.dtype != np.int64 else source.astype(np.float32)
            expected = np.rint(cv2.resize(usual, (90, 70), interpolation=interpolation))
            resized = preprocess.apply(steps, source)
            assert resized.dtype == source.dtype
            most = 0 if source.dtype == np.uint8 else 1
            assert np.abs(np.rint(resized).reshape(expected.shape) - expected).max() <= most


def test_a_method_without_its_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cv2", None)
    by_area = spec({"op": "resize", "width": 9, "height": 9, "method": "area"})
    with pytest.raises(Exception, match=r"resize method area needs the package opencv-python-headless.*\[opencv\]"):
        open_model(tmp_path / "m.onnx", by_area)


@pytest.mark.parametrize("cast", [[], [{"op": "cast", "dtype": "float32"}], [{"op": "cast", "dtype": "float16"}]])
@pytest.mark.parametrize(
    "first", [[], [{"op": "resize", "width": 9, "height": 7}], [{"op": "letterbox", "width": 9, "height": 7}]]
)
@pytest.mark.parametrize("mean", [0.5, [0.1, 0.2, 0.3]])
def test_steps_in_one_pass_give_the_bits_of_the_steps_one_by_one(
    first: list[dict[str, object]], mean: object, cast: list[dict[str, object]]
) -> None:
    steps = spec(
        *first, {"op": "normalize", "mean": mean, "std": 0.3}, {"op": "layout", "order": "chw"}, *cast
    ).preprocess
    for dtype in (np.uint8, np.float32, np.float64):
        image = np.random.default_rng(0).integers(0, 256, (12, 10, 3)).astype(dtype)
        expected = image
        for step in steps:
            expected = preprocess.run(step, expected)
        array = preprocess.apply(steps, image)
        assert array.flags.c_contiguous
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(array, expected)
