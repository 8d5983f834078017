from __future__ import annotations

import secrets
import sys
from pathlib import Path

import numpy as np
import pytest

from halimede.api.model import ModelSpec
from halimede.api.processing import Layout, Scale
from halimede.errors import InvalidFieldError
from halimede.inference import ModelError, SampleError, isolate, load_estimator, open_model


def a_spec(**fields: object) -> ModelSpec:
    return ModelSpec(**{"url": "/models/m.pb", "format": "pb", **fields})


class Sums:
    """Answers with the sum of a sample; refuses negative ones."""

    def __init__(self) -> None:
        self.calls = 0
        self.closed = False

    def predict(self, data, **_):
        self.calls += 1
        if data.sum() < 0:
            raise ValueError("negative")
        return {"sum": float(data.sum())}

    def close(self):
        self.closed = True


def loader(signature: str):
    """Make an estimator whose ``load`` has the given parameters and keeps what it was called with."""
    space: dict[str, object] = {}
    source = f"def load(self, {signature}):\n    self.seen = {{k: v for k, v in locals().items() if k != 'self'}}"
    exec(source, space)
    return type("Loads", (Sums,), {"load": space["load"]})


class TestLoading:
    @pytest.mark.parametrize(
        ("signature", "seen"),
        [
            ("model_url", {"model_url": "/m.pb"}),
            ("model_url=''", {"model_url": "/m.pb"}),
            ("model_path=None", {"model_path": "/m.pb"}),
            ("*, model_url", {"model_url": "/m.pb"}),
            ("device='cpu', model_path=''", {"device": "cpu", "model_path": "/m.pb"}),
            ("**kwargs", {"kwargs": {"model_url": "/m.pb"}}),
            ("model_path='', **kwargs", {"model_path": "/m.pb", "kwargs": {}}),
            ("path", {"path": "/m.pb"}),
            ("", {}),
        ],
    )
    def test_the_path_is_given_by_the_name_that_load_knows(self, signature, seen):
        estimator = loader(signature)()
        open_model(Path("/m.pb"), a_spec(), estimator)
        assert estimator.seen == seen

    def test_a_class_is_made_into_an_instance_and_an_instance_is_kept(self):
        instance = Sums()
        for estimator in (Sums, instance):
            model = open_model("/m.pb", a_spec(), estimator)
            assert model.predict([np.ones(3)])[0].value == {"sum": 3.0}
        assert instance.calls == 1

    def test_an_estimator_reads_any_format(self):
        assert open_model("/absent", a_spec(format="ckpt", labels=["a"]), Sums).labels == ("a",)

    def test_what_load_raises_is_a_model_error_with_its_cause(self):
        class Broken(Sums):
            def load(self, model_url):
                raise OSError("no such checkpoint")

        with pytest.raises(ModelError, match=r"Broken cannot load /m\.pb: OSError: no such checkpoint") as caught:
            open_model("/m.pb", a_spec(), Broken)
        assert isinstance(caught.value.__cause__, OSError)

    def test_a_class_that_wants_arguments_is_refused(self):
        class Wants(Sums):
            def __init__(self, size):
                pass

        with pytest.raises(ModelError, match="Wants cannot be made without arguments"):
            open_model("/m.pb", a_spec(), Wants)

    def test_what_cannot_predict_is_refused(self):
        with pytest.raises(ModelError, match=r"dict has no method predict\(data\)"):
            open_model("/m.pb", a_spec(), {})


class TestPredicting:
    def test_a_batch_goes_to_predict_batch_where_there_is_one(self):
        class Batches(Sums):
            def predict_batch(self, samples):
                assert type(samples) is list
                return np.stack(samples).mean(axis=1, keepdims=True) * [[0.5, 1.0]]

        estimator = Batches()
        model = open_model("", a_spec(), estimator)
        answers = model.predict([np.zeros(3), np.ones(3)])
        assert [answer.probabilities for answer in answers] == [[0, 0], [0.5, 1]]
        assert estimator.calls == 0
        model.predict([np.ones(3)])
        assert estimator.calls == 1

    def test_a_wrong_number_of_answers_is_never_dealt_out(self):
        class Forgets(Sums):
            def predict_batch(self, samples):
                return ["a"]

        with pytest.raises(SampleError, match="1 answers to 2 samples"):
            open_model("", a_spec(), Forgets).predict([np.ones(1), np.ones(1)])

    def test_a_sample_that_makes_it_raise_takes_no_other_with_it(self):
        model = open_model("", a_spec(), Sums)
        answers = isolate([np.full(1, value) for value in (1, -1, 3)], model.predict)
        assert [getattr(answer, "value", None) for answer in answers] == [{"sum": 1.0}, None, {"sum": 3.0}]
        assert str(answers[1]) == "the estimator failed: ValueError: negative"

    def test_declared_steps_run_before_it(self):
        model = open_model("", a_spec(preprocess=[Scale(factor=0.5), Layout(order="flat")]), Sums)
        sample = model.prepare(np.full((2, 2), 4, np.uint8))
        assert (sample.tolist(), sample.dtype) == ([2, 2, 2, 2], np.float32)

    def test_without_steps_it_gets_the_frame_as_it_came(self):
        frame = np.array(["any", "thing"])
        assert open_model("", a_spec(), Sums).prepare(frame) is frame

    def test_closing_closes_the_estimator(self):
        estimator = Sums()
        with open_model("", a_spec(), estimator):
            pass
        assert estimator.closed


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that can be imported while the test runs."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(source: str) -> str:
        name = f"user_code_{secrets.token_hex(6)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    yield write
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


DETECTOR = "class Detector:\n    def predict(self, data): ...\nclass Other: ...\n"


class TestNamingAnEstimator:
    def test_a_class_or_an_instance_is_found_by_module_and_name(self, module):
        name = module("class Mine:\n    def predict(self, data):\n        return 'cat'\nmine = Mine()\n")
        for attribute in ("Mine", "mine"):
            model = open_model("", a_spec(), load_estimator(f"{name}:{attribute}"))
            assert model.predict([np.zeros(1)])[0].label == "cat"

    @pytest.mark.parametrize("text", ["", "module", "module:", ":Class", "a b:C", "../a:C", ".a:C", "a..b:C", "a\0:C"])
    def test_another_form_is_refused(self, text):
        with pytest.raises(InvalidFieldError, match="write module:Class") as caught:
            load_estimator(text)
        assert caught.value.field == "ESTIMATOR"

    def test_a_module_that_is_not_there_is_refused(self):
        with pytest.raises(InvalidFieldError, match=r"PYTHONPATH.*ModuleNotFoundError"):
            load_estimator("halimede_has_no_such_module:Class")

    @pytest.mark.parametrize(
        ("source", "name", "says"),
        [
            ("def broken(:\n", "Class", "SyntaxError"),
            ("1 / 0\n", "Class", "ZeroDivisionError: division by zero"),
            ("raise SystemExit(3)\n", "Class", "SystemExit: 3"),
            (DETECTOR, "Detectr", "no Detectr with a method predict: use one of Detector"),
            (DETECTOR, "Other", "no Other with a method predict: use one of Detector"),
            ("x = 1", "x", "none of its classes has a method predict"),
        ],
    )
    def test_a_module_without_it_is_refused_with_its_own_error_or_the_right_names(self, module, source, name, says):
        with pytest.raises(InvalidFieldError, match=says):
            load_estimator(f"{module(source)}:{name}")
