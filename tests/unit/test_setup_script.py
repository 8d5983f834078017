"""scripts/setup.sh says exactly what to install, and does its work once. System packages are played, not installed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from halimede.programs import PROGRAMS
from tests.programs import run_program

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "dirname", "cat", "sha256sum", "cut", "mktemp", "rm", "tail", "mkdir", "chmod", "du")


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
        script = script.replace(":/usr/sbin:/sbin", "").replace("PROGRESS_S=10", "PROGRESS_S=0")
        self.fonts = folder / "fonts"
        script = script.replace("/usr/share/fonts/truetype", str(self.fonts))
        (self.clone / "scripts" / "setup.sh").write_text(script)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        self.has("id", "echo 1000")
        #: what else pip does, as a line of bash
        self.pip_lines = "true"

    def has(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!{shutil.which('bash')}\n{body}\n")
        (self.bin / name).chmod(0o755)

    def has_python(self) -> None:
        """Python whose venv makes one that records what pip installs: a package more at each call."""
        made = 'mkdir -p "$3/bin"; printf "%s\\n" "$PIP" >"$3/bin/python"; chmod +x "$3/bin/python"'
        version = '[[ "$1" == --version ]] && echo "Python 3.11"'
        self.has("python3", f'[[ "$1 $2" == "-m venv" ]] && {{ {made}; }}; {version}; true')

    def has_mosquitto(self) -> None:
        self.has("mosquitto", "true")
        self.has("mosquitto_pub", "true")

    def setup(self, *stage: str) -> subprocess.CompletedProcess[str]:
        package = ".venv/lib/python3.11/site-packages/p$RANDOM.dist-info"
        install = f'echo "${{*: -1}}" >>{self.bin}/pip-calls; mkdir -p {package}; {self.pip_lines}'
        pip = f'#!{shutil.which("bash")}\n[[ "$3" == install ]] && {{ {install}; }}; true'
        variables = {"PATH": str(self.bin), "PIP": pip, "HOME": os.environ.get("HOME", "/")}
        return run_program(self.bin / "bash", self.clone / "scripts" / "setup.sh", *stage, env=variables)

    @property
    def pip_calls(self) -> list[str]:
        """What pip was to install, call by call."""
        calls = self.bin / "pip-calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def ready(machine: Machine) -> Machine:
    """A machine with Python and Mosquitto."""
    machine.has_python()
    machine.has_mosquitto()
    return machine


def refused(ended: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert ended.returncode == 1
    assert all(text in ended.stderr for text in texts), ended.stderr


def test_without_python_and_without_root_it_says_what_to_install(machine: Machine) -> None:
    install = "sudo apt-get update && sudo apt-get install -y python3 python3-venv"
    refused(machine.setup(), "Python 3.11 or newer is missing", install)


def test_without_mosquitto_and_without_root_it_says_what_to_install(machine: Machine) -> None:
    machine.has_python()
    refused(machine.setup(), "Mosquitto, the MQTT broker, is missing", "apt-get install -y mosquitto mosquitto-clients")


def test_as_root_it_updates_the_package_lists_and_installs(machine: Machine) -> None:
    machine.has_python()
    machine.has("id", "echo 0")
    add = f"echo >{machine.bin}/$p; chmod +x {machine.bin}/$p"
    install = f'[[ "$*" == *mosquitto* ]] && for p in mosquitto mosquitto_pub; do {add}; done'
    machine.has("apt-get", f'echo "$1" >>{machine.bin}/apt-calls; {install}; true')
    ended = machine.setup()
    assert ended.returncode == 0, ended.stderr
    assert (machine.bin / "apt-calls").read_text().split() == ["update", "install"]


def test_fonts_are_installed_only_for_the_demo_that_renders_words(ready: Machine) -> None:
    assert ready.setup("run").returncode == 0
    refused(ready.setup("fonts"), "A TrueType font", "apt-get install -y fonts-dejavu-core")
    (ready.fonts / "dejavu").mkdir(parents=True)
    (ready.fonts / "dejavu" / "DejaVuSans.ttf").touch()
    ended = ready.setup("fonts")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", ""), "the packages are those of `setup.sh run`"


def test_npm_is_installed_by_root_alone(ready: Machine) -> None:
    assert ready.setup().returncode == 0
    ended = ready.setup("node")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", ""), "tests skip without npm"
    ready.has("id", "echo 0")
    ready.has("apt-get", f'echo "$*" >>{ready.bin}/apt-calls')
    assert ready.setup("node").returncode == 0
    assert (ready.bin / "apt-calls").read_text().splitlines()[-1].endswith(" nodejs npm")


def test_prometheus_is_unpacked_and_not_installed_since_its_package_starts_a_service(ready: Machine) -> None:
    unpack = (
        'mkdir -p "$3/usr/bin"; for p in prometheus promtool; do echo >"$3/usr/bin/$p"; chmod +x "$3/usr/bin/$p"; done'
    )
    ready.has("apt-get", f'echo "$1" >>{ready.bin}/apt-calls; >prometheus_2_amd64.deb')
    ready.has("dpkg", unpack)
    (ready.bin / "cp").symlink_to(shutil.which("cp") or "cp")
    ended = ready.setup("prometheus")
    assert ended.returncode == 0, ended.stderr
    assert os.access(ready.clone / ".venv" / "bin" / "promtool", os.X_OK)
    assert ready.setup("prometheus").stdout == ""
    assert (ready.bin / "apt-calls").read_text().split() == ["download"]


def test_without_apt_it_says_which_programs_of_prometheus_are_missing(ready: Machine) -> None:
    refused(ready.setup("prometheus"), "prometheus and promtool")


def test_when_apt_fails_its_last_words_are_shown(machine: Machine) -> None:
    machine.has_python()
    machine.has("id", "echo 0")
    machine.has("apt-get", 'echo "E: no network" >&2; exit 100')
    refused(machine.setup(), "E: no network", "apt could not install mosquitto mosquitto-clients")


def test_packages_are_installed_once_and_again_when_the_pins_change(ready: Machine) -> None:
    assert ready.setup().returncode == 0
    second = ready.setup()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert ready.pip_calls == [".[dev]"]
    with (ready.clone / "constraints.txt").open("a") as file:
        file.write("# newer\n")
    assert ready.setup().returncode == 0
    assert ready.pip_calls == [".[dev]", ".[dev]"]


def test_a_long_installation_shows_how_far_it_is(ready: Machine) -> None:
    lines = (
        "Collecting onnx (from halimede==0.1.0)", "  Downloading onnx-1.23.2-cp311-cp311-linux.whl (8.9 MB)",
        "Processing /wheels/rich-15.0.0-py3-none-any.whl (from halimede==0.1.0)",
        "Installing collected packages: rich, onnx, halimede",
    )  # fmt: skip
    ready.pip_lines = f"printf '%s\\n' {' '.join(map(shlex.quote, lines))}"
    ended = ready.setup("demo")
    assert (ended.returncode, ended.stderr) == (0, "")
    shown = [re.sub(r", \d+ s$", "", line) for line in ended.stdout.splitlines() if line.startswith("==>   ")]
    for text in (
        "1 packages, onnx", "1 packages, downloading onnx-1.23.2-cp311-cp311-linux.whl (8.9 MB)",
        "2 packages, rich-15.0.0-py3-none-any.whl", "1 of 3 packages installed",
    ):  # fmt: skip
        assert f"==>   {text}" in shown


def test_when_pip_fails_its_last_words_are_shown_and_it_is_tried_again(ready: Machine) -> None:
    ready.pip_lines = 'echo "Collecting onnx"; printf "ERROR: no space left" >&2; exit 1'
    for _ in range(2):
        refused(ready.setup(), "ERROR: no space left", "pip could not install the packages")
    assert ready.pip_calls == [".[dev]", ".[dev]"]


def test_each_stage_adds_its_packages_to_the_same_environment(ready: Machine) -> None:
    first = ready.setup("demo")
    assert (first.returncode, first.stderr) == (0, "")
    assert re.search(r"==> 1 packages installed; \.venv has \d+ MB; \d+ s\n", first.stdout)
    demo = ",".join(PROGRAMS["demo"].extras)
    run = f"{demo},camera,reid,tflite,opencv,otel"
    assert set(PROGRAMS["up"].extras) <= set(run.split(","))
    stages: list[tuple[str, ...]] = [("demo",), ("run",), ()]
    for number, stage in enumerate(stages):
        assert ready.setup(*stage).returncode == 0
        assert ready.pip_calls == [f".[{extras}]" for extras in (demo, run, "dev")[: number + 1]]
        for before in stages[: number + 1]:  # a stage contains those before it
            assert ready.setup(*before).stdout == ""


def test_each_target_needs_the_smallest_set_up() -> None:
    targets = "demo demo-loop demo-federated train up demo-multi-edge demo-faces demo-text test test-all check"
    stages = {}
    for target in targets.split():
        plan = run_program("make", "--dry-run", "--always-make", target, cwd=ROOT, check=True).stdout
        stages[target] = re.findall(r"^scripts/setup\.sh *(.*?) *$", plan, re.MULTILINE)
    for target in ("demo", "demo-federated", "train"):
        assert stages[target] == ["demo"], target
    assert stages["demo-loop"] == stages["demo-faces"] == ["run"]
    assert stages["demo-text"] == ["fonts"]
    for target in ("up", "demo-multi-edge"):
        # the models need less, and the smaller set-up behind it has nothing to do
        assert stages[target] == ["run", "demo"], target
    assert (stages["test"], stages["check"]) == (["", "demo", "browser", "prometheus"], [""])
    assert stages["test-all"] == [*stages["test"], "node"]
