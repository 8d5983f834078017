"""docs/reference: up to date, complete, and an error for a name without a meaning."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from types import ModuleType

import pytest

from halimede.api import Kind, kinds
from halimede.api.crd.fields import resource
from halimede.cli.app import COMMANDS
from scripts.reference import __main__ as reference
from scripts.reference import conditions, variables
from scripts.reference.markdown import IncompleteError

made_once = functools.cache(reference.pages)


@pytest.fixture(autouse=True)
def _pages_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making all pages takes seconds."""
    monkeypatch.setattr(reference, "pages", made_once)


def test_the_pages_in_the_repository_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--check"]) == 0, capsys.readouterr().err


def test_an_edited_and_a_left_over_page_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference.main(["--write"], tmp_path)
    folder = tmp_path / "docs" / "reference"
    (folder / "gone.md").write_text("# Gone\n")
    (folder / "metrics.md").write_text("# Metrics\n")
    assert reference.main(["--check"], tmp_path) == 1
    shown = capsys.readouterr().err
    assert "docs/reference/gone.md is of no" in shown
    assert "docs/reference/metrics.md is not up to date" in shown
    reference.main(["--write"], tmp_path)
    assert reference.main(["--check"], tmp_path) == 0
    assert not (folder / "gone.md").exists()


def page_of(kind: Kind) -> dict[str, str]:
    """Return the sections of a kind's page by the path of their object."""
    titles = (f"# {kind.kind}\n", f"# {kind.kind} of {kind.api_version}\n")
    (page,) = (text for text in made_once().values() if text.startswith(titles) and f"`{kind.api_version}`" in text)
    first, *others = page.split("\n### ")
    return {"spec": first} | {part.partition("\n")[0]: part for part in others}


def test_every_field_of_every_spec_is_in_the_section_of_its_object() -> None:
    for kind in kinds():
        sections = page_of(kind)
        for field in resource(kind).walk():
            if field.path.startswith("spec.") and not {"template", "hpa"} & set(field.path.split(".")[:-1]):
                above, _, name = field.path.rpartition(".")
                assert re.search(rf"^\| \[?`{name}`", sections[above], re.MULTILINE), field.path


def test_every_command_and_a_metric_of_each_process_is_on_a_page() -> None:
    commands, metrics = (made_once()[f"docs/reference/{name}.md"] for name in ("commands", "metrics"))
    assert all(f"\n## halimede {name}\n" in commands for name in COMMANDS)
    for row in (
        "| `halimede_bus_connected` | gauge | all | client |",
        "| `halimede_gm_resources` | gauge | GM | phase, plural |",
        "| `halimede_service_answers_total` | counter | GM | namespace, node, plural, service |",
        "| `halimede_worker_edge_seconds` | histogram | edge | step |",
        "| `halimede_worker_upload_target_ratio` | gauge | edge |  |",
        "| `halimede_serve_version_info` | gauge | serve | as, digest, model, version |",
        "| `halimede_camera_fps` | gauge | camera | camera |",
    ):
        assert row in metrics


@pytest.mark.parametrize(
    ("module", "edit", "missing"),
    [
        (variables, ("'DEADLINE_MS' =", "'DEADLINE_MZ' ="), "describe DEADLINE_MS"),
        (conditions, ('"ModelStuck" =', '"ModelStick" ='), "describe ModelStuck"),
        (conditions, ('"WorkerSilent" =', '"WorkerSilent, NobodyKnows" ='), "remove NobodyKnows"),
    ],
)
def test_a_name_without_a_meaning_and_a_meaning_without_a_name_are_errors(
    module: ModuleType, edit: tuple[str, str], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = module.FILE.read_text()
    assert edit[0] in text
    (tmp_path / "edited.toml").write_text(text.replace(*edit))
    monkeypatch.setattr(module, "FILE", tmp_path / "edited.toml")
    with pytest.raises(IncompleteError, match=missing):
        module.pages()
