"""An untouched script finds ``sedna`` here: the same modules under two names, and one sentence for those that lack."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halimede.compat.sedna import __main__
from halimede.compat.sedna.__main__ import main


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "sedna"]:
        del sys.modules[name]


def test_sednas_modules_are_ours_under_another_name() -> None:
    __main__.install()
    __main__.install()
    theirs = importlib.import_module("sedna.common.class_factory")
    ours = importlib.import_module("halimede.compat.sedna.common.class_factory")
    assert theirs is ours
    assert (ours.__name__, ours.__spec__.name) == ("halimede.compat.sedna.common.class_factory",) * 2
    core = importlib.import_module("sedna.core")
    assert importlib.import_module("sedna").core is core
    with pytest.raises(ModuleNotFoundError, match=r"no sedna.core.lifelong_learning: .*docs/sedna.md"):
        importlib.import_module("sedna.core.lifelong_learning")


def test_a_script_runs_in_its_folder_with_its_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "interface.py").write_text("from sedna.common.config import Context\nWHO = 'beside'\n")
    (tmp_path / "script.py").write_text(
        "import sys\nfrom interface import WHO\nfrom sedna.common.log import LOGGER\n"
        "if __name__ == '__main__':\n    print(WHO, sys.argv[1:], LOGGER.name)\n"
    )
    assert main([str(tmp_path / "script.py"), "--stay"]) == 0
    assert capsys.readouterr().out == "beside ['--stay'] sedna\n"


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("from sedna.core.joint_inference import JointInference\nJointInference()")
    assert main([str(script)]) == 2
    assert re.fullmatch(r"script\.py: .*estimator: None.*\n", capsys.readouterr().err)


def test_without_a_script_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main([]), main(["--help"]), main(["/nowhere.py"])) == (2, 0, 2)
    out, error = capsys.readouterr()
    assert "usage: " in out
    assert "/nowhere.py is no file" in error
