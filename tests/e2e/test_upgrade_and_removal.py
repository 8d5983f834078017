"""docs/upgrade-and-removal.md, typed in on the machines that docs/three-machines.md has set up.

Each machine has an environment of its own with the wheel of an older version, and this wheel in a folder ``dist`` of an
earlier upgrade; it shares all other packages with the tests. ``pip wheel`` is replaced, since it needs a network;
tests/e2e/test_wheel.py runs it. A second edge node answers while the page upgrades the first one, and a camera sends
frames all the time.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import venv
from pathlib import Path

import pytest

import halimede
from tests.e2e.machines import MACHINES, NEEDS_SPACES, Machines, Step, steps
from tests.e2e.running import ROOT, digits
from tests.programs import run_program
from tests.wheels import build, build_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), NEEDS_SPACES]
OLD, NEW = "0.0.9", halimede.__version__
NODES = "halimede nodes -o json 2>&1"
#: before a command: what it needs to see
NEEDED = {
    "halimede gm": "pgrep -x mosquitto",
    "halimede nodes": f"test $({NODES} | grep -c 'online.*true') = 2",
    "halimede publish": "halimede get ji digits | grep -q Running",
    "halimede describe": "halimede describe ji digits | grep -qE 'inference number +101'",
    "halimede drain": "halimede get ji digits | grep -q Running",
    "halimede doctor": "halimede get ji digits | grep -q Running",
    "halimede delete -f": "halimede get ji digits | grep -q Running",
}
EDGE1 = "--label node-role.kubernetes.io/edge= --broker mqtts://broker.lan --credentials ~/halimede-node"
#: what docs/three-machines.md says about another node
SECOND_EDGE = [
    Step("broker", "halimede certs add --node edge1 site/"),
    Step("broker", "sudo cp site/broker/acl /etc/mosquitto/halimede/acl"),
    Step("broker", "sudo systemctl reload mosquitto"),
    Step("broker", "scp -r site/nodes/edge1 edge1:halimede-node"),
    Step("edge1", f"halimede lc --node edge1 {EDGE1}"),
]
#: an operator's eyes on every topic, for the test alone
EVERYTHING = "user operator.admin\\ntopic read #\\n"
RETAINED = (
    "mosquitto_sub -h broker.lan -p 8883 --cafile site/operators/admin/ca.crt --cert site/operators/admin/tls.crt "
    "--key site/operators/admin/tls.key -V 5 -t '#' --retained-only -F '{}> %t %p' -W 3 || test $? = 27"
)


def older_wheel(folder: Path) -> Path:
    """Build the wheel of this tree under an older version."""
    shutil.unpack_archive(build("sdist", ROOT, folder), folder)
    tree = folder / f"halimede-{NEW}"
    for path in (tree / "pyproject.toml", tree / "halimede" / "__init__.py"):
        path.write_text(path.read_text().replace(f'"{NEW}"', f'"{OLD}"', 1))
    return build_wheel(tree, folder)


def installed(folder: Path, wheel: Path) -> None:
    """Make an environment with a wheel; it sees the packages of this one, but not this one's halimede."""
    venv.create(folder, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "shared.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    pip = folder / "bin" / "pip"
    pip.write_text(
        '#!/bin/sh\nif [ "$1" = wheel ]; then mkdir -p dist; exec cp "$T"/new/*.whl dist/; fi\n'
        f'exec {folder}/bin/python -m pip --disable-pip-version-check "$@"\n'
    )
    pip.chmod(0o755)
    run_program(pip, "install", "--no-index", "--no-deps", wheel, check=True)


def of_the_older_version(folder: Path) -> Machines:
    """Return machines with the older version, and with the wheel of this one at hand."""
    (folder / "wheels").mkdir()
    shutil.copytree(build_wheel(ROOT, folder / "wheels").parent, folder / "new")
    old = older_wheel(folder / "wheels")
    machines = Machines(folder, NEEDED)
    for machine in MACHINES:
        installed(folder / "venvs" / machine, old)
        (folder / machine / "dist").mkdir()
        shutil.copy(old, folder / machine / "dist")
    shutil.copy(ROOT / "constraints.txt", folder / "broker")
    return machines


def nothing_is_left(folder: Path, shown: str) -> None:
    """Check what a removal leaves: on the broker, of processes, in folders of the system, in the homes."""
    assert "before> sedna/gm/presence" in shown, "the test sees what the broker keeps"
    assert "retained>" not in shown, re.findall("retained>.*", shown)
    left = shown.partition("left:")[2]
    assert not re.search(r"bin/(halimede|python)", left), left
    assert "halimede" not in left
    for machine in ("broker", "edge0", "cloud0"):
        stayed = {str(path.relative_to(folder / machine)) for path in (folder / machine).rglob("*")}
        mine = {"examples", "three-machines.yaml", "constraints.txt"} if machine == "broker" else set()
        # pip and its helpers have folders of their own, such as .cache
        assert {name for name in stayed if not name.startswith((".", "examples/"))} <= mine, stayed
        assert not [name for name in stayed if "halimede" in name]


def test_the_page_upgrades_under_frames_and_removes_everything(tmp_path: Path) -> None:
    digits()
    machines = of_the_older_version(tmp_path)
    page = list(steps("docs/upgrade-and-removal.md"))
    cut = next(i for i, step in enumerate(page) if step.text.startswith("halimede delete -f"))
    machines.type([*steps("docs/three-machines.md"), *SECOND_EDGE])
    machines.check(f"({machines.at('broker')} until_ \"test \\$({NODES} | grep -c 'online.*true') = 3\")")
    machines.check(f"({machines.at('broker')} until_ 'halimede get ji digits -o wide | grep -q Running')")
    camera = "halimede publish examples/digits/pictures --camera cam0 --loop --fps 25"
    machines.check(f"({machines.at('broker')} exec halimede results digits -f -o json) > $T/results.txt 2>&1 &")
    machines.check("sleep 2")
    machines.check(f"({machines.at('broker')} exec {camera}) > $T/camera.txt 2>&1 &\necho $! > $T/camera.pid")
    machines.check("sleep 3")
    machines.type(page[:cut])
    machines.check("sleep 3; kill -INT $(cat $T/camera.pid); wait $(cat $T/camera.pid) || true; cat $T/camera.txt")
    counted = "$(grep -oE '^[0-9]+ frames' $T/camera.txt | cut -d' ' -f1)"
    machines.check(f'sent={counted}; until_ "test \\$(grep -c ^{{ $T/results.txt) -ge $sent"')
    machines.check(f"({machines.at('broker')} halimede describe ji digits)")
    machines.check(f"printf '{EVERYTHING}' >> /etc/mosquitto/halimede/acl; systemctl reload mosquitto; sleep 0.5")
    machines.check(f"({machines.at('broker')} {RETAINED.format('before')})")
    removal = page[cut:]
    gm = next(i for i, step in enumerate(removal) if step.ends == "gm")
    cleared = next(i for i, step in enumerate(removal) if step.text.startswith("mosquitto_pub")) + 1
    machines.type([*removal[:1], Step("edge1", "", ends="lc"), *removal[1:gm]])
    machines.type([Step("broker", "halimede delete node edge1"), *removal[gm:cleared]])
    machines.check(f"({machines.at('broker')} {RETAINED.format('retained')})")
    machines.type(removal[cleared:])
    machines.check("echo left:; ps -eo args | grep -E '[b]in/(halimede|python)' || true")
    machines.check("until_ 'pgrep -x mosquitto'; ls -A /srv /etc/mosquitto /etc/mosquitto/conf.d")
    shown = machines.run()

    upgrade, _, removal_shown = shown.partition(f"> {removal[0].text}")
    # every frame had a subscriber, and was answered once
    (sent,) = re.findall(r"^(\d{3,}) frames sent to .*each acknowledged by the broker$", upgrade, re.MULTILINE)[-1:]
    results = [json.loads(line) for line in (tmp_path / "results.txt").read_text().splitlines() if line[0] == "{"]
    assert len({result["id"] for result in results}) == len(results)
    assert len(results) - int(sent) in {0, 1}  # the camera may end between a frame and its acknowledgement
    answered = {result["worker"] for result in results if result["by"] == "edge"}
    assert answered == {"digits-edge-edge0", "digits-edge-edge1"}
    assert "no subscriber" not in upgrade
    assert not re.search(r"^\s*lost\s+[1-9]", upgrade, re.MULTILINE)
    assert f"one, version {NEW}" in upgrade
    assert upgrade.count(f"Successfully installed halimede-{NEW}") == 3
    # doctor names the only one of the old version
    assert re.findall(rf"node/(\w+): its version {re.escape(OLD)}", upgrade) == ["edge1"]
    assert f"Successfully uninstalled halimede-{NEW}" in removal_shown
    nothing_is_left(tmp_path, shown)
