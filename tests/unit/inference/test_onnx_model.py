from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from halimede.api.model import ModelSpec
from halimede.api.processing import Cast, Grayscale, Layout, Resize, Scale
from halimede.inference import ModelError, SampleError, open_model
from tests.graphs import FLOAT

FLAT = [Scale(factor=1 / 16), Layout(order="flat")]


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
    @pytest.mark.parametrize("name", ["absent.onnx", ""], ids=["missing", "a folder"])
    def test_is_refused_when_it_is_no_file(self, tmp_path, name):
        with pytest.raises(ModelError, match=rf"{(tmp_path / name).name} does not exist"):
            open_model(tmp_path / name, a_spec())

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (b"", "is empty"),
            (b"\x00" * 64, "not an ONNX model"),
            (b"<html>not found</html>", "not an ONNX model"),
            (bytes(range(256)) * 8, "not an ONNX model"),
            (slice(0, 40), "not an ONNX model that can run here"),
            (slice(0, -200), "not an ONNX model that can run here"),
            (slice(100, None), "not an ONNX model that can run here"),
        ],
        ids=["empty", "zeros", "a page", "bytes", "its beginning", "most of it", "its end"],
    )
    def test_is_refused_in_one_line_when_it_is_cut_or_holds_something_else(self, digits, tmp_path, content, text):
        is_cut = isinstance(content, slice)
        (tmp_path / "m.onnx").write_bytes(digits.path.read_bytes()[content] if is_cut else content)
        with pytest.raises(ModelError, match=text) as caught:
            open_model(tmp_path / "m.onnx", a_spec())
        assert not is_cut or caught.value.__cause__ is not None
        assert "\n" not in str(caught.value)

    def test_a_version_that_cannot_be_read_is_named_however_long_the_path_is(self, make_echo, tmp_path):
        folder = tmp_path / "models-of-a-user" / ("v" * 200)
        folder.mkdir(parents=True)
        model = onnx.load(make_echo([1]))
        model.ir_version = 99
        onnx.save(model, folder / "new.onnx")
        with pytest.raises(ModelError, match="Unsupported model IR version: 99, max supported IR version: "):
            open_model(folder / "new.onnx", a_spec())

    def test_is_read_whatever_the_case_of_its_format(self, digits):
        assert open_model(digits.path, a_spec(format="ONNX")).labels == ()


class TestInputs:
    @pytest.mark.parametrize(
        ("steps", "shape", "text"),
        [
            ([Layout(order="flat")], (8, 8, 3), r"wants input \[N,64\] float32, the frame gives \[N,192\].*grayscale"),
            ([Layout(order="flat")], (9, 9), "resize"),
            ([], (8, 8), r"add a layout step \(flat\)"),
        ],
        ids=["three channels", "another size", "a picture for a flat input"],
    )
    def test_a_frame_that_does_not_fit_is_told_the_step_that_it_lacks(self, digits, steps, shape, text):
        with pytest.raises(SampleError, match=text):
            open_model(digits.path, a_spec(preprocess=steps)).prepare(np.zeros(shape, np.uint8))

    def test_axes_of_length_one_are_set_as_the_model_wants_them(self, make_echo):
        model = open_model(make_echo(["N", 1, 4], out_shape=["N", 1, 4]), a_spec())
        assert model.prepare(np.zeros((4, 1, 1), np.float32)).shape == (1, 4)

    def test_channels_first_and_last_are_never_mixed_up_in_silence(self, make_graph):
        path = make_graph([("GlobalAveragePool", ["x"], ["y"], {})], {"x": ["N", 3, 4, 4]}, {"y": ["N", 3, 1, 1]})
        model = open_model(path, a_spec())
        with pytest.raises(SampleError, match="layout"):
            model.prepare(np.zeros((4, 4, 3), np.float32))
        assert model.prepare(np.zeros((3, 4, 4), np.float32)).shape == (3, 4, 4)

    def test_fractions_are_not_cut_to_whole_numbers_unless_the_spec_says_so(self, make_graph):
        path = make_graph(
            [("Cast", ["x"], ["y"], {"to": FLOAT})], {"x": (TensorProto.UINT8, ["N", 2])}, {"y": ["N", 2]}
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

    def test_a_model_of_two_inputs_is_refused(self, make_graph):
        path = make_graph([("Add", ["a", "b"], ["y"], {})], {"a": ["N", 2], "b": ["N", 2]}, {"y": ["N", 2]})
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
            {"x": ["N", 3]},
            {"y": None},
            {"shape": np.array([1, 3], np.int64)},
        )
        answers = open_model(path, a_spec()).predict(list(np.eye(3, dtype=np.float32)))
        assert [answer.label for answer in answers] == ["0", "1", "2"]

    def test_open_picture_sizes_are_taken_as_they_come(self, make_graph):
        path = make_graph([("GlobalAveragePool", ["x"], ["y"], {})], {"x": ["N", 3, "H", "W"]}, {"y": ["N", 3, 1, 1]})
        model = open_model(path, a_spec(preprocess=[Scale(factor=1 / 255), Layout(order="chw")]))
        for size in ((4, 6), (7, 3)):
            frame = np.zeros((*size, 3), np.uint8)
            frame[..., 1] = 255
            (answer,) = model.predict([model.prepare(frame)])
            assert (answer.label, answer.probabilities) == ("1", [0, 1, 0])
