"""What a user writes about mining and post-processing is checked as a worker checks it, before a worker has it."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import api, mining
from halimede.api.mining import AFTER, BEFORE, BUILT_IN, Mode, read_parameters
from halimede.errors import InvalidFieldError
from halimede.mining import PreInferenceMiner, create, registry
from tests.anything import attempt
from tests.unit.api.samples import SAMPLES, resource
from tests.unit.api.test_resources import put, refused, sedna_service

MINING = "spec.edgeWorker.hardExampleMining"
CONTAINER = "spec.edgeWorker.template.spec.containers.0"


def mined(name: str, mode: str = AFTER, **parameters: str) -> dict[str, Any]:
    pairs = [{"key": key, "value": value} for key, value in parameters.items()]
    return put(sedna_service(), MINING, {"name": name, "parameters": pairs, "mode": mode})


@pytest.mark.parametrize(
    ("body", "field", "value", "fix"),
    [
        (mined("Margn"), "name", "'Margn'", "did you mean Margin? use one of Agreement, BoxCount"),
        (mined("Margin", threshold_margn="0.2"), "parameters.threshold_margn", "'0.2'", "mean threshold_margin?"),
        (mined("Margin", threshold_margin="2"), "parameters.threshold_margin", "'2'", "give a number from 0 to 1"),
        (mined("margin", threshold_margin="a"), "parameters.threshold_margin", "'a'", "give a number from 0 to 1"),
        (mined("Threshold", empty="soft"), "parameters.empty", "'soft'", "hard, easy or sample(p)"),
        (mined("CloudOnly", share="1"), "parameters.share", "'1'", "the algorithm has no parameters"),
        (mined("Energy", temperature="2"), "parameters.temperature", "2.0", "give a number below 1"),
        (mined("UncertainBoxes", low="0.6"), "parameters.high", "0.5", "give a number over low, 0.6"),
        (mined("Learned"), "parameters.calibration", "None", "it is required"),
        (mined("Margin", BEFORE), "mode", "'mining-then-inference'", "Margin looks at what the small model answers"),
        (mined("Sharpness"), "mode", "'inference-then-mining'", "Sharpness looks at the sample itself"),
    ],
)
def test_a_mistake_in_built_in_mining_is_refused_with_field_value_and_remedy(
    body: dict[str, Any], field: str, value: str, fix: str
) -> None:
    error = refused(body, api.admit)
    assert (error.field, error.value) == (f"{MINING}.{field}", value)
    assert fix in str(error)


def test_a_mistake_in_a_tier_names_the_tier() -> None:
    wrong = {"name": "Energy", "parameters": [{"key": "temperature", "value": "1"}]}
    body = put(SAMPLES["several tiers"], "spec.tiers.1.hardExampleMining", wrong)
    assert refused(body, api.admit).field == "spec.tiers[1].hardExampleMining.parameters.temperature"


def test_learned_takes_the_calibration_of_its_service() -> None:
    api.admit(put(mined("Learned", cut="0.5"), "spec.edgeWorker.calibration", {"name": "found"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "acme/worker:1"},
        {"image": "halimede/worker", "command": ["python3", "mine.py"]},
        {"image": "halimede/worker", "workingDir": "/code"},
        {"image": "halimede/worker", "env": [{"name": "PYTHONPATH", "value": "/code"}]},
    ],
)
def test_a_worker_with_code_of_its_own_may_have_algorithms_of_its_own(changes: dict[str, Any]) -> None:
    api.admit(put(mined("FewVotes", votes="3"), CONTAINER, changes))
    with pytest.raises(InvalidFieldError, match="threshold_margn"):  # a built-in name means the same everywhere
        api.admit(put(mined("Margin", threshold_margn="0.2"), CONTAINER, changes))


@pytest.mark.parametrize("name", ["votes:FewVotes", "my.votes:FewVotes", "/rules/votes.py:FewVotes", "votes.py:V"])
def test_a_rule_may_be_named_by_its_module_or_file(name: str) -> None:
    api.admit(mined(name, votes="3"))


@pytest.mark.parametrize("name", ["votes:", ":FewVotes", "votes.py:few votes", "a:b:C", "my-votes:FewVotes"])
def test_a_rule_that_is_neither_is_refused_with_how_to_write_it(name: str) -> None:
    error = refused(mined(name), api.admit)
    assert error.field == f"{MINING}.name"
    assert "votes.py:FewVotes" in error.fix


def test_an_installed_plug_in_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    info = tmp_path / "few_votes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: few-votes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[halimede.mining]\nFewVotes = not_imported_here\n")
    api.admit(mined("fewvotes", votes="3"))
    assert "FewVotes" in str(refused(mined("FewVotez"), api.admit))


def test_a_stored_service_with_such_a_mistake_stays_readable() -> None:
    assert api.parse(mined("Margin", threshold_margn="0.2")).metadata.name == "helmet"


MODEL = {"url": "/models/small.onnx"}
MANIFEST = [{"version": "1", "downloadURL": "/models/1.onnx"}]
SERVED = {"modelName": "small", "deployToLayer": "edge", "manifest": MANIFEST}


@pytest.mark.parametrize(
    ("kind", "spec", "framework"), [("Model", MODEL, "format"), ("InferenceModel", SERVED, "frameworkType")]
)
def test_post_processing_that_contradicts_itself_is_refused(kind: str, spec: dict[str, Any], framework: str) -> None:
    output = {"task": "embedding", "activation": "softmax"}
    body = resource(kind, {**spec, framework: "onnx", "postprocess": output})
    assert refused(body, api.admit).field == "spec.postprocess.activation"
    api.admit(put(body, f"spec.{framework}", "mine"))  # the user's own code reads it


class TestOneDeclaration:
    """Algorithms have no parameters beside those that are checked."""

    registry.names()
    OWN = {name: a for name, a in registry._algorithms.values() if a.__module__.startswith(f"{mining.__name__}.")}

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_an_algorithm_is_made_of_its_declaration(self, name: str) -> None:
        declared, algorithm = BUILT_IN[name], self.OWN[name]
        assert issubclass(algorithm, declared)
        assert [f.name for f in fields(algorithm) if f.init] == [f.name for f in fields(declared)]  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_its_modes_are_those_that_it_can_do(self, name: str) -> None:
        modes: tuple[Mode, ...] = BUILT_IN[name].modes
        assert (BEFORE in modes) == issubclass(self.OWN[name], PreInferenceMiner)

    @given(
        st.sampled_from([name for name in BUILT_IN if name != "Learned"]),
        st.dictionaries(
            st.sampled_from(sorted({f.name for d in BUILT_IN.values() for f in fields(d)})),  # type: ignore[arg-type]
            st.sampled_from(["0", "0.4", "1", "7", "-1", "nan", "true", "hard", "sample(0.5)", "x", ""]),
            max_size=3,
        ),
        st.sampled_from([AFTER, BEFORE]),
    )
    def test_the_check_and_a_worker_agree(self, name: str, parameters: dict[str, str], mode: str) -> None:
        _, checked = attempt(api.admit, mined(name, mode, **parameters), refusal=InvalidFieldError)
        _, worker = attempt(partial(create, mode=mode), name, parameters, refusal=InvalidFieldError)
        assert str(checked) == str(worker)


def test_text_becomes_the_arguments_of_the_declaration() -> None:
    read = read_parameters(BUILT_IN["Energy"], {"logits": "true", "temperature": " 2 "})
    assert read == {"logits": True, "temperature": 2.0}
    assert math.isnan(BUILT_IN["Learned"](calibration="x").cut)  # type: ignore[call-arg, attr-defined]
