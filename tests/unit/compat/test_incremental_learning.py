"""IncrementalLearning trains further from a model, saves it, evaluates it, and says which samples are hard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halimede.compat.sedna.core.federated_learning import AggregationServer, FederatedLearning
from halimede.compat.sedna.core.incremental_learning import IncrementalLearning
from halimede.errors import InvalidFieldError


class Mean:
    """Its model is the mean of all that it was trained on."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def load(self, model_url=""):
        self.seen = json.loads(Path(model_url).read_text())

    def save(self, model_url):
        Path(model_url).write_text(json.dumps(self.seen))

    def train(self, train_data, **kwargs):
        self.seen += train_data
        return {"samples": len(self.seen)}

    def evaluate(self, data, **kwargs):
        return {"error": abs(sum(data) / len(data) - self.predict(None))}

    def predict(self, data, **kwargs):
        return sum(self.seen) / len(self.seen)


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SERVICE_NAME", "HALIMEDE_BROKER", "BASE_MODEL_URL", "HEM_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODEL_URL", str(tmp_path / "model.json"))
    return tmp_path / "model.json"


def test_each_training_continues_from_the_saved_model(model: Path) -> None:
    assert IncrementalLearning(Mean).train([1.0, 2.0]) == {"samples": 2}
    assert IncrementalLearning(Mean).train([3.0]) == {"samples": 3}
    assert json.loads(model.read_text()) == [1.0, 2.0, 3.0]


def test_it_begins_with_a_base_model_and_saves_elsewhere(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = model.with_name("base.json")
    base.write_text("[9.0]")
    monkeypatch.setenv("BASE_MODEL_URL", str(base))
    IncrementalLearning(Mean()).train([1.0])
    assert (json.loads(model.read_text()), json.loads(base.read_text())) == ([9.0, 1.0], [9.0])


def test_the_saved_model_is_evaluated_and_post_processed(model: Path) -> None:
    model.write_text("[4.0]")
    assert IncrementalLearning(Mean).evaluate([5.0], post_process=lambda found: found["error"]) == 1.0


def test_a_sample_is_hard_as_its_rule_decides(model: Path) -> None:
    model.write_text("[0.6]")
    rule = {"method": "Random", "param": {"random_ratio": 1.0}}
    assert IncrementalLearning(Mean, rule).inference("sample") == (0.6, 0.6, True)
    assert IncrementalLearning(Mean).inference("sample") == (0.6, 0.6, False)


def test_what_an_estimator_lacks_is_named() -> None:
    with pytest.raises(InvalidFieldError, match="get_weights, set_weights"):
        FederatedLearning(Mean)


@pytest.mark.parametrize(
    ("options", "field"), [({"aggregation": "Own"}, "spec.aggregation.name"), ({"exit_round": 0}, "exit_round")]
)
def test_an_aggregation_server_refuses_what_it_cannot_do(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        AggregationServer(**options)
    assert caught.value.field == field
