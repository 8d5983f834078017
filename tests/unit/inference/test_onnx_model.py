from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from halimede.api.model import ModelSpec
from halimede.api.processing import Cast, Grayscale, Layout, Resize, Scale
from halimede.inference import ModelError, SampleError, UnsafeModelError, open_model

FLAT = [Scale(factor=1 / 16), Layout(order="flat")]
FLOAT = TensorProto.FLOAT


def a_spec(**fields: object) -> ModelSpec:
    return ModelSpec(**{"url": "/models/m.onnx", "format": "onnx", **fields})


class TestAnExportedClassifier:
    def test_answers_like_the_classifier_that_it_was_made_from(self, digits):
        with open_model(digits.path, a_spec(preprocess=FLAT)) as model:
            answers = model.predict([model.prepare(image) for image in digits.images[:50]])
        expected = digits.classifier.predict_proba(digits.images[:50].reshape(50, 64) / 16)
        np.testing.assert_allclose([answer.probabilities for answer in answers], expected, atol=1e-5)
        assert [answer.label for answer in answers] == [str(i) for i in expected.argmax(axis=1)]
        np.testing.assert_allclose([answer.score for answer in answers], expected.max(axis=1), atol=1e-5)

    def test_gives_the_same_answer_alone_and_in_a_batch(self, digits):
        model = open_model(digits.path, a_spec(preprocess=FLAT))
        samples = [model.prepare(image) for image in digits.images[:7]]
        alone = [model.predict([sample])[0].probabilities for sample in samples]
        together = [answer.probabilities for answer in model.predict(samples)]
        np.testing.assert_allclose(together, alone, atol=1e-6)

    def test_names_classes_by_the_labels_of_the_spec(self, digits):
        labels = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
        model = open_model(str(digits.path), a_spec(preprocess=FLAT, labels=labels))
        assert model.labels == tuple(labels)
        (answer,) = model.predict([model.prepare(digits.images[0])])
        assert answer.label == labels[digits.targets[0]]

    def test_casts_what_the_model_can_take_without_loss_of_meaning(self, digits):
        model = open_model(digits.path, a_spec())
        rows = [(image.reshape(64) / 16).astype(dtype) for image in digits.images[:1] for dtype in ("f8", "f2", ">f4")]
        assert len({answer.label for answer in model.predict(rows)}) == 1

    def test_answers_an_empty_batch_with_nothing(self, digits):
        assert open_model(digits.path, a_spec()).predict([]) == []

    def test_fails_clearly_once_closed(self, digits):
        model = open_model(digits.path, a_spec())
        model.close()
        with pytest.raises(SampleError, match="closed"):
            model.predict([np.zeros(64, np.float32)])


class TestAFileThatIsNoModel:
    def test_is_refused_when_it_is_missing(self, tmp_path):
        with pytest.raises(ModelError, match=r"absent\.onnx does not exist"):
            open_model(tmp_path / "absent.onnx", a_spec())

    def test_is_refused_when_it_is_a_folder(self, tmp_path):
        with pytest.raises(ModelError, match="does not exist"):
            open_model(tmp_path, a_spec())

    def test_is_refused_when_it_is_empty(self, tmp_path):
        (tmp_path / "m.onnx").touch()
        with pytest.raises(ModelError, match="is empty"):
            open_model(tmp_path / "m.onnx", a_spec())

    @pytest.mark.parametrize("keep", [slice(0, 40), slice(0, -200), slice(100, None)])
    def test_is_refused_when_it_is_cut(self, digits, tmp_path, keep):
        (tmp_path / "m.onnx").write_bytes(digits.path.read_bytes()[keep])
        with pytest.raises(ModelError, match="not an ONNX model that can run here") as caught:
            open_model(tmp_path / "m.onnx", a_spec())
        assert caught.value.__cause__ is not None

    @pytest.mark.parametrize("content", [b"\x00" * 64, b"<html>not found</html>", bytes(range(256)) * 8])
    def test_is_refused_when_it_holds_something_else(self, tmp_path, content):
        (tmp_path / "m.onnx").write_bytes(content)
        with pytest.raises(ModelError, match="not an ONNX model"):
            open_model(tmp_path / "m.onnx", a_spec())

    def test_a_version_that_cannot_be_read_is_named_however_long_the_path_is(self, make_echo, tmp_path):
        folder = tmp_path / "models-of-a-user" / ("v" * 200)
        folder.mkdir(parents=True)
        model = onnx.load(make_echo([1]))
        model.ir_version = 99
        onnx.save(model, folder / "new.onnx")
        with pytest.raises(ModelError, match="Unsupported model IR version: 99, max supported IR version: "):
            open_model(folder / "new.onnx", a_spec())

    def test_is_refused_when_its_operators_come_from_a_library(self, make_graph):
        path = make_graph(
            [("Secret", ["x"], ["y"], {"domain": "evil.example"})], {"x": (FLOAT, ["N", 2])}, {"y": (FLOAT, ["N", 2])}
        )
        with pytest.raises(UnsafeModelError, match=r"operator 'Secret' of 'evil\.example'.*library"):
            open_model(path, a_spec())

    def test_is_refused_when_its_weights_lie_outside_its_folder(self, tmp_path):
        folder = tmp_path / "model"
        folder.mkdir()
        (tmp_path / "secret.bin").write_bytes(np.ones(2, np.float32).tobytes())
        weights = numpy_helper.from_array(np.ones(2, np.float32), "w")
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        weights.external_data.add(key="location", value="../secret.bin")
        graph = helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            "outside",
            [helper.make_tensor_value_info("x", FLOAT, ["N", 2])],
            [helper.make_tensor_value_info("y", FLOAT, ["N", 2])],
            [weights],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (folder / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(UnsafeModelError, match=r"'\.\./secret\.bin', which is not in its folder"):
            open_model(folder / "m.onnx", a_spec())

    def test_is_refused_when_its_format_is_not_onnx(self, digits):
        with pytest.raises(ModelError, match=r"'pb'.*spec\.format.*estimator"):
            open_model(digits.path, a_spec(format="pb"))

    def test_is_read_whatever_the_case_of_its_format(self, digits):
        assert open_model(digits.path, a_spec(format="ONNX")).labels == ()


class TestInputs:
    def test_a_frame_of_three_channels_is_told_to_become_gray(self, digits):
        model = open_model(digits.path, a_spec(preprocess=[Layout(order="flat")]))
        with pytest.raises(SampleError, match=r"wants input \[N,64\] float32, the frame gives \[N,192\].*grayscale"):
            model.prepare(np.zeros((8, 8, 3), np.uint8))

    def test_a_frame_of_another_size_is_told_to_be_resized(self, digits):
        model = open_model(digits.path, a_spec(preprocess=[Layout(order="flat")]))
        with pytest.raises(SampleError, match="resize"):
            model.prepare(np.zeros((9, 9), np.uint8))

    def test_a_picture_for_a_flat_input_is_told_to_be_laid_out(self, digits):
        with pytest.raises(SampleError, match=r"add a layout step \(flat\)"):
            open_model(digits.path, a_spec()).prepare(np.zeros((8, 8), np.uint8))

    def test_axes_of_length_one_are_set_as_the_model_wants_them(self, make_echo):
        model = open_model(make_echo(["N", 1, 4], out_shape=["N", 1, 4]), a_spec())
        assert model.prepare(np.zeros((4, 1, 1), np.float32)).shape == (1, 4)

    def test_channels_first_and_last_are_never_mixed_up_in_silence(self, make_graph):
        path = make_graph(
            [("GlobalAveragePool", ["x"], ["y"], {})],
            {"x": (FLOAT, ["N", 3, 4, 4])},
            {"y": (FLOAT, ["N", 3, 1, 1])},
        )
        model = open_model(path, a_spec())
        with pytest.raises(SampleError, match="layout"):
            model.prepare(np.zeros((4, 4, 3), np.float32))
        assert model.prepare(np.zeros((3, 4, 4), np.float32)).shape == (3, 4, 4)

    def test_fractions_are_not_cut_to_whole_numbers_unless_the_spec_says_so(self, make_graph):
        path = make_graph(
            [("Cast", ["x"], ["y"], {"to": FLOAT})],
            {"x": (TensorProto.UINT8, ["N", 2])},
            {"y": (FLOAT, ["N", 2])},
        )
        with pytest.raises(SampleError, match="add a cast step"):
            open_model(path, a_spec()).prepare(np.array([0.5, 1], np.float32))
        cast = open_model(path, a_spec(preprocess=[Cast(dtype="uint8")]))
        assert cast.prepare(np.array([0.5, 1], np.float32)).tolist() == [0, 1]

    def test_steps_that_can_never_fit_are_found_when_the_model_is_opened(self, digits):
        steps = [Resize(width=9, height=9), Grayscale(), Layout(order="flat")]
        with pytest.raises(ModelError, match=r"spec\.preprocess does not fit.*\[N,64\].*\[N,81\]"):
            open_model(digits.path, a_spec(preprocess=steps))

    def test_steps_that_fit_only_gray_frames_are_no_fault_of_the_spec(self, digits):
        model = open_model(digits.path, a_spec(preprocess=[Resize(width=8, height=8), Layout(order="flat")]))
        assert model.prepare(np.zeros((20, 30), np.uint8)).shape == (64,)
        with pytest.raises(SampleError, match="grayscale"):
            model.prepare(np.zeros((20, 30, 3), np.uint8))

    def test_a_whole_pipeline_takes_a_color_frame_of_any_size(self, digits):
        steps = [Grayscale(), Resize(width=8, height=8), *FLAT]
        model = open_model(digits.path, a_spec(preprocess=steps))
        sample = model.prepare(np.full((480, 640, 3), 200, np.uint8))
        assert (sample.shape, sample.dtype) == ((64,), np.float32)
        assert len(model.predict([sample])) == 1

    def test_a_model_of_two_inputs_is_refused(self, make_graph):
        path = make_graph(
            [("Add", ["a", "b"], ["y"], {})],
            {"a": (FLOAT, ["N", 2]), "b": (FLOAT, ["N", 2])},
            {"y": (FLOAT, ["N", 2])},
        )
        with pytest.raises(ModelError, match=r"2 inputs \(a, b\)"):
            open_model(path, a_spec())

    def test_a_model_that_takes_text_is_refused(self, make_echo):
        with pytest.raises(ModelError, match="tensor of numbers"):
            open_model(make_echo(["N", 2], TensorProto.STRING), a_spec())


class TestBatchAxis:
    def test_a_model_for_one_sample_a_run_answers_a_batch_one_by_one(self, make_echo):
        model = open_model(make_echo([1, 3]), a_spec())
        rows = np.eye(3, dtype=np.float32)
        assert [answer.label for answer in model.predict(list(rows))] == ["0", "1", "2"]

    def test_a_model_for_a_fixed_number_of_samples_is_refused(self, make_echo):
        with pytest.raises(ModelError, match="exactly 4 samples"):
            open_model(make_echo([4, 3]), a_spec())

    def test_a_batch_axis_that_is_open_only_by_declaration_is_found_out(self, make_graph):
        path = make_graph(
            [("Reshape", ["x", "shape"], ["y"], {})],
            {"x": (FLOAT, ["N", 3])},
            {"y": (FLOAT, None)},
            {"shape": np.array([1, 3], np.int64)},
        )
        answers = open_model(path, a_spec()).predict(list(np.eye(3, dtype=np.float32)))
        assert [answer.label for answer in answers] == ["0", "1", "2"]

    def test_open_picture_sizes_are_taken_as_they_come(self, make_graph):
        path = make_graph(
            [("GlobalAveragePool", ["x"], ["y"], {})],
            {"x": (FLOAT, ["N", 3, "H", "W"])},
            {"y": (FLOAT, ["N", 3, 1, 1])},
        )
        model = open_model(path, a_spec(preprocess=[Scale(factor=1 / 255), Layout(order="chw")]))
        for size in ((4, 6), (7, 3)):
            frame = np.zeros((*size, 3), np.uint8)
            frame[..., 1] = 255
            (answer,) = model.predict([model.prepare(frame)])
            assert (answer.label, answer.probabilities) == ("1", [0, 1, 0])


def test_errors_of_a_model_fit_one_line(digits, tmp_path: Path):
    (tmp_path / "m.onnx").write_bytes(digits.path.read_bytes()[:300])
    with pytest.raises(ModelError) as caught:
        open_model(tmp_path / "m.onnx", a_spec())
    assert "\n" not in str(caught.value)
