"""docker-compose.yml cannot be run by the tests; that it fits the rest of the repository can be checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(ROOT / "docker-compose.yml")
    return found


def test_it_runs_a_broker_the_manager_and_a_node_of_each_role(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"broker", "gm", "edge0", "cloud0"}
    for name, role in (("edge0", "edge"), ("cloud0", "cloud")):
        command = compose["services"][name]["command"]
        assert command[command.index("--node") + 1] == name
        assert command[command.index("--label") + 1] == f"node-role.kubernetes.io/{role}="


def test_what_it_refers_to_is_there(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert set(service.get("depends_on", [])) <= set(compose["services"])
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (ROOT / source).exists()


@pytest.mark.parametrize(
    ("service", "module"), [("gm", "services.gm"), ("edge0", "services.lc"), ("cloud0", "services.lc")]
)
def test_its_commands_use_options_that_exist(compose: dict[str, Any], service: str, module: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    options = {word for word in compose["services"][service]["command"] if word.startswith("--")}
    assert options
    assert all(option in shown.stdout for option in options)


def test_dockerfiles_copy_what_exists() -> None:
    for dockerfile in ROOT.glob("services/**/*Dockerfile"):
        for line in dockerfile.read_text().splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                assert all((ROOT / source).exists() for source in line.split()[1:-1]), f"{dockerfile}: {line}"
