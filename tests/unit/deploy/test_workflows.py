"""The workflows of the forge: linted, and what they do is what anyone runs by hand. No forge runs them here."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dockerfile import ROOT, tags
from tests.programs import run_program

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent
#: a workflow with nothing to find, and changes with which there is
FINE = """\
name: fine
on: push
permissions: {}
jobs:
  one:
    name: one
    runs-on: ubuntu-24.04
    steps:
      - run: make check
"""
WRONG = {
    "nothing": ("run: make check", "run: make check"),
    "an action that its owner can change": ("run: make check", "uses: some/action@v1"),
    "text of a stranger in a shell": ("make check", "echo ${{ github.event.pull_request.title }}"),
    "permissions of the repository for a stranger's code": ("on: push", "on: pull_request_target"),
    "a misspelt key": ("runs-on", "run-on"),
}


def lint(*files: Path) -> str:
    """Run both linters as `make check` does; return what they find."""
    found = ""
    for line in re.findall(r"\$\(BIN\)/((?:check-jsonschema|zizmor) [^>\n]*)", (ROOT / "Makefile").read_text()):
        words = [word for word in line.split() if not word.startswith(".github/")]
        done = run_program(BIN / words[0], *words[1:], *files, cwd=ROOT)
        found += done.stdout + done.stderr if done.returncode else ""
    return found


def load(name: str) -> dict[str, Any]:
    found = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    # YAML 1.1 reads the key `on` as true
    return {("on" if key is True else key): value for key, value in found.items()}


def steps(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job.get("steps", ()))


def test_the_linters_find_nothing() -> None:
    assert [file.stem for file in FILES] == ["ci", "mutations", "release"]
    assert lint(*FILES) == ""


@pytest.mark.parametrize(("text", "wrong"), WRONG.values(), ids=WRONG)
def test_the_linters_would_find(text: str, wrong: str, tmp_path: Path) -> None:
    file = tmp_path / ".github" / "workflows" / "workflow.yml"
    file.parent.mkdir(parents=True)
    file.write_text(FINE.replace(text, wrong))
    assert bool(lint(file)) == (text != wrong)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_every_action_is_pinned_to_a_commit_and_names_its_version(file: Path) -> None:
    used = re.findall(r"uses: (?!\$/)(.*)", file.read_text())
    assert used
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_each_version_of_python_runs_what_anyone_runs_by_hand() -> None:
    job = load("ci.yml")["jobs"]["test"]
    versions = [each["python"] for each in job["strategy"]["matrix"]["include"]]
    assert versions == ["3.11", "3.12", "3.13"]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert oldest == f">={versions[0]}"
    assert job["steps"][-1]["run"] == ".ci/run"
    assert (ROOT / ".ci" / "run").exists()
    # setup.sh takes the image's Python, not that of its Debian
    assert "${PYTHON:+" in (ROOT / "scripts" / "setup.sh").read_text()
    assert job["env"]["PYTHON"].endswith("python${{ matrix.python }}")


def test_the_listed_mutations_are_tried_each_week() -> None:
    workflow = load("mutations.yml")
    (weekly,) = workflow["on"]["schedule"]
    assert weekly["cron"].split()[-1] in "0123456"
    assert workflow["jobs"]["mutations"]["steps"][-1]["run"].endswith("make mutations")


def test_nothing_is_released_before_all_tests_have_passed() -> None:
    workflow = load("release.yml")
    jobs = workflow["jobs"]
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    assert jobs.pop("test")["uses"] == "$/.github/workflows/ci.yml"
    assert {name: job["needs"] for name, job in jobs.items()} == {"package": "test", "images": "test"}


def test_a_release_has_every_image_for_both_architectures_with_sbom_licence_and_signature() -> None:
    job = load("release.yml")["jobs"]["images"]
    *_, pin, build = job["steps"]
    assert pin["run"] == "scripts/pin_bases.sh Dockerfile"
    assert build["env"]["TARGETS"].split() == list(tags())
    # one builder: images that are built apart share no layer
    assert "strategy" not in job
    (emulated,) = (step["with"]["platforms"] for step in job["steps"] if "setup-qemu-action" in step.get("uses", ""))
    assert f"--platform linux/amd64,linux/{emulated} --push --sbom=true" in build["run"]
    assert "org.opencontainers.image.licenses=Apache-2.0" in build["run"]
    assert "cosign sign --yes" in build["run"]


def test_a_release_has_a_signature_for_each_file_and_an_sbom_of_all_extras() -> None:
    job = load("release.yml")["jobs"]["package"]
    assert 'cosign sign-blob --yes --bundle "$file.sigstore.json"' in steps(job)
    assert "for file in dist/*" in steps(job)
    (sbom,) = (step["with"] for step in job["steps"] if "sbom-action" in step.get("uses", ""))
    assert sbom["output-file"].startswith("dist/")
    (extras,) = re.findall(r"\$wheel\[(.*)\]", steps(job))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set(extras.split(","))
    assert named <= set(known)
    # an extra may name further
    further = [text for extra in named for text in re.findall(r"halimede\[(.*)\]", " ".join(known[extra]))]
    named |= {other for text in further for other in text.split(",")}
    assert named >= set(known) - {"all", "demo", "dev", "docs", "pytorch", "tensorflow"}


def test_a_tag_of_another_version_is_refused() -> None:
    (line,) = [line for line in steps(load("release.yml")["jobs"]["package"]).splitlines() if "package.sh" in line]
    assert line == 'scripts/package.sh "$GITHUB_REF_NAME"'
    done = run_program(ROOT / "scripts" / "package.sh", "v99.0.0")
    assert done.returncode == 1
    assert "the tag v99.0.0 is not that of version" in done.stderr
