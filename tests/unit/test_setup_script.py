"""scripts/setup.sh says exactly what to install, and does its work once. System packages are played, not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.waiting import patience

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "dirname", "cat", "sha256sum", "cut", "mktemp", "rm", "tail", "mkdir", "chmod")


class Machine:
    """A fresh clone on a machine that has only what is put there."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "clone"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.clone / "scripts").mkdir(parents=True)
        for file in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / file, self.clone)
        script = (ROOT / "scripts" / "setup.sh").read_text()
        # this machine's own folders would bring its mosquitto
        (self.clone / "scripts" / "setup.sh").write_text(script.replace(":/usr/sbin:/sbin", ""))
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        self.has("id", "echo 1000")

    def has(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!{shutil.which('bash')}\n{body}\n")
        (self.bin / name).chmod(0o755)

    def has_python(self) -> None:
        """Python whose venv makes one that counts calls of pip."""
        made = 'mkdir -p "$3/bin"; printf "%s\\n" "$PIP" >"$3/bin/python"; chmod +x "$3/bin/python"'
        self.has(
            "python3",
            f'[[ "$1 $2" == "-m venv" ]] && {{ {made}; }}; [[ "$1" == --version ]] && echo "Python 3.11"; true',
        )

    def setup(self) -> subprocess.CompletedProcess[str]:
        pip = f'#!{shutil.which("bash")}\n[[ "$3" == install ]] && echo call >>{self.bin}/pip-calls; true'
        return subprocess.run(
            [self.bin / "bash", self.clone / "scripts" / "setup.sh"],
            env={"PATH": str(self.bin), "PIP": pip, "HOME": os.environ.get("HOME", "/")},
            capture_output=True,
            text=True,
            timeout=patience(30),
            check=False,
        )

    @property
    def pip_calls(self) -> int:
        calls = self.bin / "pip-calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_python_and_without_root_it_says_what_to_install(machine: Machine) -> None:
    ended = machine.setup()
    assert ended.returncode == 1
    assert "Python 3.11 or newer is missing" in ended.stderr
    assert "sudo apt-get update && sudo apt-get install -y python3 python3-venv" in ended.stderr


def test_without_mosquitto_and_without_root_it_says_what_to_install(machine: Machine) -> None:
    machine.has_python()
    ended = machine.setup()
    assert ended.returncode == 1
    assert "Mosquitto, the MQTT broker, is missing" in ended.stderr
    assert "apt-get install -y mosquitto mosquitto-clients" in ended.stderr


def test_as_root_it_updates_the_package_lists_and_installs(machine: Machine) -> None:
    machine.has_python()
    machine.has("id", "echo 0")
    add = f"echo >{machine.bin}/$p; chmod +x {machine.bin}/$p"
    install = f'[[ "$*" == *mosquitto* ]] && for p in mosquitto mosquitto_pub; do {add}; done'
    machine.has("apt-get", f'echo "$1" >>{machine.bin}/apt-calls; {install}; true')
    ended = machine.setup()
    assert ended.returncode == 0, ended.stderr
    assert (machine.bin / "apt-calls").read_text().split() == ["update", "install"]


def test_when_apt_fails_its_last_words_are_shown(machine: Machine) -> None:
    machine.has_python()
    machine.has("id", "echo 0")
    machine.has("apt-get", 'echo "E: no network" >&2; exit 100')
    ended = machine.setup()
    assert ended.returncode == 1
    assert "E: no network" in ended.stderr
    assert "apt could not install mosquitto mosquitto-clients" in ended.stderr


def test_packages_are_installed_once_and_again_when_the_pins_change(machine: Machine) -> None:
    machine.has_python()
    machine.has("mosquitto", "true")
    machine.has("mosquitto_pub", "true")
    assert machine.setup().returncode == 0
    second = machine.setup()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert machine.pip_calls == 1
    with (machine.clone / "constraints.txt").open("a") as file:
        file.write("# newer\n")
    assert machine.setup().returncode == 0
    assert machine.pip_calls == 2
