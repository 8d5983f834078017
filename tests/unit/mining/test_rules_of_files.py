"""A mining rule in a plain Python file or a module on the path: found by its name, or refused with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede import JointModel
from halimede.errors import InvalidFieldError
from halimede.messages import Prediction
from halimede.mining import canonical, create, is_ours, judge, names, parameters_at

SOURCE = """
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from halimede.mining import ByHardness, register

{decorator}
@dataclass(frozen=True)
class Doubt(ByHardness):
    cut: Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")] = 0.5

    def hardness(self, prediction):
        return {hardness}
"""


def write(path: Path, hardness: str = "1 - prediction.score", decorator: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(SOURCE.format(hardness=hardness, decorator=decorator))
    return path


def test_a_file_is_a_rule_with_typed_parameters(tmp_path: Path) -> None:
    rule = f"{write(tmp_path / 'doubt.py')}:Doubt"
    miner = create(rule, {"cut": "0.25"}, mode="inference-then-mining")
    assert judge(miner, Prediction(score=0.75)).hard
    assert not judge(miner, Prediction(score=0.8)).hard
    assert not is_ours(miner)
    assert parameters_at(miner, 0.3) == {"cut": "0.3"}
    with pytest.raises(InvalidFieldError, match="a number from 0 to 1"):
        create(rule, {"cut": "2"})
    with pytest.raises(InvalidFieldError, match="did you mean cut"):
        create(rule, {"cutt": "1"})


def test_files_of_one_name_in_two_folders_are_two_rules(tmp_path: Path) -> None:
    one, two = (write(tmp_path / folder / "doubt.py", text) for folder, text in (("a", "0.0"), ("b", "1.0")))
    assert not create(f"{one}:Doubt", {})(Prediction())
    assert create(f"{two}:Doubt", {})(Prediction())


def test_a_module_on_the_path_is_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "doubt_on_the_path.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert create("doubt_on_the_path:Doubt", {})(Prediction(score=0.1))


def test_a_file_may_register_its_name_too(tmp_path: Path) -> None:
    path = write(tmp_path / "doubt.py", decorator='@register("DoubtOfAFile")')
    for _ in range(2):
        assert create(f"{path}:Doubt", {})(Prediction(score=0.1))
    assert "DoubtOfAFile" in names()


def test_its_whole_path_is_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert canonical("doubt.py:Doubt") == f"{tmp_path}/doubt.py:Doubt"
    assert (canonical("doubt:Doubt"), canonical("margin")) == ("doubt:Doubt", "Margin")


def test_the_joint_model_takes_it(tmp_path: Path) -> None:
    class Answering:
        def __init__(self, score: float) -> None:
            self.score = score

        def predict(self, _: object) -> dict[str, object]:
            return {"label": "a", "score": self.score}

    rule = f"{write(tmp_path / 'doubt.py')}:Doubt"
    with JointModel(edge=Answering(0.1), cloud=Answering(1.0), mining=rule) as model:
        assert model.predict([1.0]).by == "cloud"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "there is no file .*rule.py where the worker runs: copy it there"),
        ("def Doubt(:", "cannot be imported: SyntaxError"),
        ("import nothing_of_that_name", "cannot be imported: ModuleNotFoundError"),
        ("raise ValueError('no')", "cannot be imported: ValueError: no"),
        ("class Other: pass", "has no dataclass Doubt"),
        ("class Doubt: pass", "has no dataclass Doubt: write @dataclass above the class"),
        ("Doubt = 3", "has no dataclass Doubt"),
        ("from dataclasses import dataclass\n@dataclass\nclass Doubt: pass", "Doubt decides nothing: derive it"),
    ],
)
def test_a_rule_that_cannot_be_used_says_what_to_do(tmp_path: Path, source: str | None, said: str) -> None:
    path = tmp_path / "rule.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(InvalidFieldError, match=rf"^spec\.edgeWorker\.hardExampleMining\.name: .*{said}"):
        create(f"{path}:Doubt", {})


def test_a_module_that_is_not_there_names_the_path() -> None:
    with pytest.raises(InvalidFieldError, match=r"ModuleNotFoundError.*put its folder on PYTHONPATH"):
        create("no_rule_of_that_name:Doubt", {})
