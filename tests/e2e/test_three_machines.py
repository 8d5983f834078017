"""docs/three-machines.md, typed in as it stands: three homes in one network namespace, and Debian's Mosquitto.

Mosquitto is started by root with Debian's configuration, and becomes the user ``mosquitto``. What stands between the
machines is replaced: ``scp`` copies between their homes, ``systemctl`` starts Mosquitto, ``sudo`` runs as the root that
the test is. Folders of the system (/etc/mosquitto, /srv, ...) are the namespace's own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import ROOT, digits

TEXT = (ROOT / "docs" / "three-machines.md").read_text()
SPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def may_unshare() -> bool:
    return bool(shutil.which("unshare")) and not subprocess.run(
        [*SPACES, "sh", "-c", "mount -t tmpfs none /mnt && ip link set lo up"], capture_output=True, check=False
    ).returncode  # fmt: skip


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0 or not may_unshare(), reason="needs root and namespaces"),
]
COMMANDS = {
    "sudo": 'exec "$@"',
    "systemctl": 'test "$*" = "restart mosquitto"\nPATH="$PATH:/usr/sbin" mosquitto -c /etc/mosquitto/mosquitto.conf '
    ">> $T/broker.log 2>&1 &",
    "scp": 'test "$1" = -r\nto="${3#*:}"\ncase "$to" in /*) ;; *) to="$T/${3%%:*}/$to" ;; esac\ncp -r "$2" "$to"',
}
CONFIGURATION = """\
pid_file /run/mosquitto/mosquitto.pid
persistence true
persistence_location /var/lib/mosquitto/
log_dest file /var/log/mosquitto/mosquitto.log
include_dir /etc/mosquitto/conf.d
"""
BEGIN = r"""
set -eu
ip link set lo up
mount --bind "$T/hosts" /etc/hosts
for folder in /srv /run/mosquitto /var/log/mosquitto /var/lib/mosquitto /etc/mosquitto; do
  mkdir -p $folder; mount -t tmpfs none $folder
done
chown mosquitto: /run/mosquitto /var/log/mosquitto /var/lib/mosquitto
chmod 755 /etc/mosquitto; mkdir /etc/mosquitto/conf.d; cp "$T/mosquitto.conf" /etc/mosquitto/
until_() {
  for _ in $(seq 600); do if eval "$1"; then return; fi; sleep 0.1; done
  echo "never: $1"; tail -n 50 "$T"/*.log; exit 1
}
"""
#: before a command: what it needs to see
BEFORE = {
    "halimede gm": "grep -q running /var/log/mosquitto/mosquitto.log",
    "halimede nodes": "test $(halimede nodes -o json 2>&1 | grep -c 'online.*true') = 2",
    "halimede publish": "halimede get ji digits | grep -q Running",
    "halimede describe": "halimede describe ji digits | grep -qE 'inference number +101'",
}


def steps() -> Iterator[tuple[str, str, str]]:
    """Yield the machine, and a file to save or a line to type, in the order of the page."""
    machine, end = "broker", 0
    for block in re.finditer(r"^```(\w+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE):
        before = re.findall(r"[Oo]n `(broker|edge0|cloud0)\b", TEXT[end : block.start()])
        machine, end = before[-1] if before else machine, block.end()
        if block[1] == "yaml":
            yield machine, block[2].splitlines()[0].removeprefix("# "), block[2]
        elif block[1] == "sh":
            yield from ((machine, "", line) for line in block[2].splitlines())


def script(folder: Path) -> str:
    """Return the page as one script; what runs until Ctrl-C runs in the background."""
    lines, exports = [BEGIN], ""
    for machine, path, text in steps():
        if path:
            (folder / machine / path).write_text(text)
            continue
        if text.startswith("export "):
            exports = f'cd "$T/{machine}"; {text}; '
        home = f'export HOME="$T/{machine}"; cd; {exports}'
        needs = next((needed for start, needed in BEFORE.items() if text.startswith(start)), "")
        if needs:
            lines.append(f"({home} until_ {shlex.quote(needs)})")
        if text.startswith(("halimede gm", "halimede lc")):
            lines.append(f'({home} exec {text}) > "$T/{machine}-{text.split()[1]}.log" 2>&1 &')
        else:
            lines.append(f"({home} {text})")
    return "\n".join(lines)


def test_the_page_from_its_first_command_to_answers_of_both_nodes(tmp_path: Path) -> None:
    digits()
    for machine in ("broker", "edge0", "cloud0", "bin"):
        (tmp_path / machine).mkdir()
    (tmp_path / "broker" / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost broker.lan\n")
    (tmp_path / "mosquitto.conf").write_text(CONFIGURATION)
    for name, body in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nset -e\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "T": str(tmp_path), "COLUMNS": "160", "HALIMEDE_HOME": ""}
    whole = script(tmp_path)
    assert whole.count("exec halimede lc") == 2
    done = subprocess.run(
        [*SPACES, "bash", "-c", whole], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "each acknowledged by the broker" in done.stdout
    # the last command of the page, once the samples are counted
    assert re.search(r"inference number\s+101\b", done.stdout), done.stdout


def test_a_mosquitto_of_root_cannot_read_below_a_folder_of_another_user(tmp_path: Path) -> None:
    """The page gives the folder to the user mosquitto: without that, the broker does not start."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    (folder / "acl").write_text("user gm\n")
    (tmp_path / "m.conf").write_text(f"listener 18839 127.0.0.1\nacl_file {folder / 'acl'}\nlog_dest stderr\n")
    started = "ip link set lo up; PATH=$PATH:/usr/sbin exec timeout 5 mosquitto -c m.conf"
    done = subprocess.run(
        [*SPACES, "bash", "-c", started], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False
    )  # fmt: skip
    assert done.returncode not in {0, 124}
    assert re.search(r"Unable to open|Permission denied|Error", done.stderr)
