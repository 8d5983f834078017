"""Three machines as the how-to pages have them: homes in one network namespace, and Debian's Mosquitto.

Mosquitto is started by root with Debian's configuration, and becomes the user ``mosquitto``. What stands between the
machines is replaced: ``scp`` copies between their homes, ``ssh`` runs a command in another home, ``systemctl`` starts
Mosquitto, ``sudo`` runs as the root that the test is. Folders of the system (/etc/mosquitto, /srv, ...) are the
namespace's own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.running import ROOT
from tests.waiting import patience

SPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
MACHINES = ("broker", "edge0", "edge1", "cloud0")


def may_unshare() -> bool:
    """Whether this user may make namespaces; the pages need root anyway."""
    tried = [*SPACES, "sh", "-c", "mount -t tmpfs none /mnt && ip link set lo up"]
    return os.geteuid() == 0 and bool(shutil.which("unshare")) and not subprocess.run(
        tried, capture_output=True, check=False
    ).returncode  # fmt: skip


NEEDS_SPACES = pytest.mark.skipif(not may_unshare(), reason="needs root and namespaces")
COMMANDS = {
    "sudo": 'exec "$@"',
    "systemctl": 'test "$2" = mosquitto\n[ "$1" = reload ] && exec pkill -HUP -x mosquitto\n'
    'test "$1" = restart\nwhile pkill -x mosquitto; do sleep 0.1; done\n'
    'PATH="$PATH:/usr/sbin" mosquitto -c /etc/mosquitto/mosquitto.conf >> $T/mosquitto.log 2>&1 &',
    "ssh": 'cd "$T/$1"\nshift\nexec sh -c "$*"',
    "scp": 'test "$1" = -r\nto="${3#*:}"\ncase "$to" in /*) ;; *) to="$T/${3%%:*}/$to" ;; esac\ncp -r "$2" "$to"',
}
#: seconds: for what a step needs, and for a step that shows nothing
UNTIL_S, STEP_S = 60.0, 90.0
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
  local end=$((SECONDS + UNTIL_S))
  while [ $SECONDS -lt $end ]; do if eval "$1"; then return; fi; sleep 0.5; done
  echo "never: $1"; tail -n 50 "$T"/*.log; exit 1
}
""".replace("UNTIL_S", f"{patience(UNTIL_S):.0f}")


@dataclass(frozen=True)
class Step:
    """A line to type on a machine; a file to save there; or a program that a person ends there by Ctrl-C."""

    machine: str
    text: str
    file: str = ""
    ends: str = ""


def steps(document: str) -> Iterator[Step]:
    """Yield what a page asks for, in its order. The prose before a block names its machine, and who ends."""
    text = (ROOT / document).read_text()
    machine, end = "broker", 0
    for block in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        before, end = text[end : block.start()], block.end()
        named = re.findall(r"[Oo]n `(broker|edge0|cloud0)\b", before)
        machine = named[-1] if named else machine
        if ended := re.search(r"end the (global manager|local controller) by Ctrl-C", before):
            yield Step(machine, "", ends="gm" if ended[1].startswith("global") else "lc")
        if block[1] == "yaml":
            yield Step(machine, block[2], block[2].splitlines()[0].removeprefix("# "))
        elif block[1] == "sh":
            yield from (Step(machine, line) for line in block[2].splitlines())


class Machines:
    """A script that types pages on the machines of ``folder``.

    ``needed``: what a command needs to be true before it, by how it begins: what a person would see first.
    """

    def __init__(self, folder: Path, needed: Mapping[str, str]) -> None:
        self._folder, self._needed = folder, needed
        self._lines, self._exports = [BEGIN], ""
        for machine in (*MACHINES, "bin"):
            (folder / machine).mkdir()
        (folder / "broker" / "examples").symlink_to(ROOT / "examples")
        (folder / "hosts").write_text("127.0.0.1 localhost broker.lan\n")
        (folder / "mosquitto.conf").write_text(CONFIGURATION)
        for name, body in COMMANDS.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\nset -e\n{body}\n")
            (folder / "bin" / name).chmod(0o755)

    def type(self, typed: Iterable[Step]) -> None:
        """Add steps to the script; what runs until Ctrl-C runs in the background."""
        for step in typed:
            if step.file:
                (self._folder / step.machine / step.file).write_text(step.text)
            elif step.ends:
                pid = f'$(cat "$T/{step.machine}-{step.ends}.pid")'
                self._lines.append(f"kill -INT {pid}; wait {pid}")
            else:
                self._line(step)

    def check(self, line: str) -> None:
        self._lines.append(line)

    def _line(self, step: Step) -> None:
        if step.text.startswith("export "):
            self._exports = f'cd "$T/{step.machine}"; {step.text}; '
        at = self.at(step.machine)
        if needs := next((needed for start, needed in self._needed.items() if step.text.startswith(start)), ""):
            self._lines.append(f"({at} until_ {shlex.quote(needs)})")
        if step.text.startswith(("halimede gm", "halimede lc")):
            name = f"$T/{step.machine}-{step.text.split()[1]}"
            self._lines.append(f'({at} exec {step.text}) >> "{name}.log" 2>&1 &\necho $! > "{name}.pid"')
        else:
            self._lines.append(f"echo {shlex.quote(f'{step.machine}> {step.text}')}\n({at} {step.text})")

    def at(self, machine: str) -> str:
        """Return what puts a line on a machine: its home, its folder, its programs."""
        path = f'export PATH="$T/venvs/{machine}/bin:$PATH"'
        return f'export HOME="$T/{machine}"; {path}; cd; {self._exports if machine == "broker" else ""}'

    def run(self) -> str:
        """Run the script, as long as it shows further steps; return what it shows."""
        path = f"{self._folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "T": str(self._folder), "COLUMNS": "160", "HALIMEDE_HOME": ""}
        script, shown = self._folder / "script.sh", self._folder / "shown.txt"
        script.write_text("\n".join(self._lines))
        with shown.open("wb") as out:
            process = subprocess.Popen(
                [*SPACES, "bash", script],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            size = -1
            while process.returncode is None and size < (size := shown.stat().st_size):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience(STEP_S))
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, f"exit code {process.returncode}: {shown.read_text()[-9000:]}"
        return shown.read_text()
