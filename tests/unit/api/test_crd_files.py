"""The files: written as the code says, checked, and read alike by every reader of YAML."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from ruamel.yaml import YAML

from halimede.api.crd.__main__ import HEADER, main
from tests.programs import run_python
from tests.unit.api.crds import DEFINITIONS


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files, written once: it takes a second."""
    folder = tmp_path_factory.mktemp("crds")
    assert main(["--write", str(folder)]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("file", DEFINITIONS)
def test_readers_of_yaml_1_1_and_1_2_read_what_was_meant(file: str, written: Path) -> None:
    text = (written / file).read_text()
    assert yaml.load(text, yaml.CSafeLoader) == YAML(typ="safe").load(text) == DEFINITIONS[file]
    assert "&id" not in text, "kubectl prints it back as it is: no anchors"
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.slow
def test_what_is_written_is_found_right(written: Path) -> None:
    assert sorted(path.name for path in written.iterdir()) == sorted(DEFINITIONS)
    assert main(["--check", str(written)]) == 0


@pytest.mark.slow
def test_edited_missing_and_left_over_files_are_named(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    edited, missing = sorted(DEFINITIONS)[:2]
    (tmp_path / edited).write_text((tmp_path / edited).read_text().replace("maxItems", "maxitems"))
    (tmp_path / missing).unlink()
    (tmp_path / "left.yaml").write_text(HEADER)
    (tmp_path / "kustomization.yaml").write_text("resources: []\n")
    assert main(["--check", str(tmp_path)]) == 1
    shown = capsys.readouterr().err
    wrong = [edited, missing, "left.yaml"]
    assert [name for name in (*wrong, "kustomization.yaml") if name in shown] == wrong
    assert main(["--write", str(tmp_path)]) == 0
    assert all((tmp_path / file).read_bytes() == (written / file).read_bytes() for file in DEFINITIONS)
    assert not (tmp_path / "left.yaml").exists()
    assert (tmp_path / "kustomization.yaml").exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--write", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith(f"Error: {tmp_path / 'file'}")


def test_without_its_package_it_says_what_to_install(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['ruamel.yaml'] = None\nfrom halimede.api.crd.__main__ import main\n"
    run = run_python("-c", hide + f"sys.exit(main(['--write', {str(tmp_path)!r}]))")
    message = "Error: writing YAML needs ruamel.yaml: run `pip install halimede[cli]`\n"
    assert (run.returncode, run.stderr) == (2, message)
