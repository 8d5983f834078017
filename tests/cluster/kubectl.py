"""The cluster as its operator sees it: `kubectl`, and waiting for a fact with a deadline."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from tests.cluster.settings import ROOT

Body = dict[str, Any]
T = TypeVar("T")
#: seconds for one command
COMMAND_S = 120.0


class KubectlError(AssertionError):
    """A command failed; the message has the command and its output."""


class Kubectl:
    """Commands as the administrator of KUBECONFIG."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = dict(environment)

    def run(self, *words: str, stdin: str = "", seconds: float = COMMAND_S) -> str:
        """Run a command and return its standard output. Raises KubectlError."""
        return self.shell(["kubectl", *words], stdin=stdin, seconds=seconds)

    def shell(self, command: list[str], *, stdin: str = "", seconds: float = COMMAND_S, cwd: Path = ROOT) -> str:
        """Run any command with this cluster's kubeconfig."""
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=self._environment,
            cwd=cwd,
            check=False,
        )
        if done.returncode:
            raise KubectlError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def start(self, command: list[str], output: IO[bytes], *, cwd: Path = ROOT) -> subprocess.Popen[bytes]:
        """Start a command with this cluster's kubeconfig."""
        return subprocess.Popen(command, stdout=output, stderr=output, env=self._environment, cwd=cwd)

    def apply(self, manifest: str, *words: str) -> None:
        """Apply a manifest's text."""
        self.run("apply", "-f", "-", *words, stdin=manifest)

    def body(self, *words: str) -> Body:
        """Return what ``kubectl get`` shows, as JSON."""
        found: Body = json.loads(self.run("get", *words, "-o", "json"))
        return found

    def items(self, *words: str) -> list[Body]:
        """Return the objects of a list."""
        return list(self.body(*words)["items"])

    def pods(self, selector: str, namespace: str = "default") -> list[Body]:
        """Return pods that are not to end and have not ended, oldest first."""
        found = self.items("pods", "-n", namespace, "-l", selector)
        there = [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]
        return sorted(
            (pod for pod in there if pod["status"].get("phase") not in {"Failed", "Succeeded"}),
            key=lambda pod: pod["metadata"]["creationTimestamp"],
        )

    def ready(self, selector: str, namespace: str = "default", number: int = 1) -> bool:
        """Whether so many pods are ready, and no other ones are there."""
        found = self.pods(selector, namespace)
        return len(found) == number and all(condition(pod, "Ready") == "True" for pod in found)


def condition(body: Mapping[str, Any], kind: str) -> str:
    """Return the status of a condition: ``True``, ``False``, ``Unknown``; empty if it is not there."""
    return next((each["status"] for each in body.get("status", {}).get("conditions") or [] if each["type"] == kind), "")


def until(what: str, look: Callable[[], T], seconds: float = 120.0, *, every: float = 0.5) -> T:
    """Call ``look`` until it returns something true, and return that. Raises AssertionError with the last value."""
    end = time.monotonic() + seconds
    last: T | Exception | None = None
    while True:
        try:
            if last := (value := look()):
                return value
        except (KubectlError, subprocess.TimeoutExpired) as error:
            last = error
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s; last: {last}"
        time.sleep(every)
