"""Load on a service: ``load.py`` in a pod of the cluster or elsewhere, and what became of its frames."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cluster.kubectl import Kubectl, KubectlError, until
from tests.cluster.report import Outcome
from tests.cluster.settings import ROOT

#: frames a second
FPS = 25
START_S = 120.0
#: counts of a service's status: frames without an answer, and answers that no client received
NAMED = ("lost", "unreceived")
ANSWERED = "inferenceNumber"
#: seconds in which a failing `kubectl get` is repeated
LOST_S = 30.0
CONFIG, SECRET = "halimede-test-load", "halimede-test-operator"
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: {namespace}
  labels: {{app: halimede-test-load}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  nodeSelector: {{halimede.io/node: ""}}
  automountServiceAccountToken: false
  securityContext: {{runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: load
      image: {image}
      command: [python, /load/load.py, /load, "{fps}"]
      env:
        - {{name: HALIMEDE_BROKER, value: "{broker}"}}
        - {{name: HALIMEDE_CREDENTIALS, value: /credentials}}
        - {{name: NAMESPACE, value: "{namespace}"}}
      securityContext: {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{drop: [ALL]}}}}
      volumeMounts:
        - {{name: load, mountPath: /load, readOnly: true}}
        - {{name: credentials, mountPath: /credentials, readOnly: true}}
        - {{name: home, mountPath: /var/lib/halimede}}
        - {{name: tmp, mountPath: /tmp}}
  volumes:
    - {{name: load, configMap: {{name: halimede-test-load}}}}
    - {{name: credentials, secret: {{secretName: halimede-test-operator, defaultMode: 0440}}}}
    - {{name: home, emptyDir: {{}}}}
    - {{name: tmp, emptyDir: {{}}}}
"""


def prepare(kubectl: Kubectl, pictures: Mapping[str, Path], credentials: Path, namespace: str = "default") -> None:
    """Create what load pods mount: the program, pictures, and an operator's credentials."""
    program = Path(__file__).with_name("load.py")
    files = {"load.py": program, **pictures}
    for kind, name, content in (
        ("configmap", CONFIG, files),
        ("secret", SECRET, {path.name: path for path in credentials.iterdir()}),
    ):
        made = ["create", kind, *(["generic"] if kind == "secret" else []), name, "-n", namespace]
        made += [f"--from-file={key}={path}" for key, path in content.items()]
        kubectl.apply(kubectl.run(*made, "--dry-run=client", "-o", "yaml"), "--server-side", "--force-conflicts")


class PodProgram:
    """``load.py`` in a pod of the cluster. ``finish``: it publishes no more, but waits for the answers to come."""

    def __init__(self, kubectl: Kubectl, *, broker: str, image: str, namespace: str) -> None:
        self._kubectl = kubectl
        self._name, self._namespace = f"halimede-test-load-{secrets.token_hex(3)}", namespace
        self._manifest = POD.format(name=self._name, namespace=namespace, image=image, broker=broker, fps=FPS)

    def start(self) -> None:
        """Create the pod."""
        self._kubectl.apply(self._manifest)

    def last_line(self) -> str:
        """Return the last line of its log; empty if there is none yet."""
        lines = self._kubectl.run("logs", self._name, "-n", self._namespace, "--tail=1").splitlines()
        return lines[-1] if lines else ""

    def finish(self) -> None:
        """Send SIGTERM to its process."""
        self._kubectl.run("exec", self._name, "-n", self._namespace, "--", "sh", "-c", "kill -TERM 1")

    def remove(self) -> None:
        """Delete the pod."""
        self._kubectl.run("delete", "pod", self._name, "-n", self._namespace, "--wait=false")


class ProcessProgram:
    """``load.py`` as a process of this machine. ``command`` enters a network; ``folder`` has the pictures."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._command = [*command, sys.executable, "-m", "tests.cluster.load", str(folder), str(FPS)]
        self._environment = {**os.environ, **environment}
        self._log = folder / "load.log"

    def start(self) -> None:
        """Start the process."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment, cwd=ROOT)

    def last_line(self) -> str:
        """Return the last line of its log that has ended."""
        return self._log.read_text().rpartition("\n")[0].rpartition("\n")[2]

    def finish(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def remove(self) -> None:
        """Kill it, if it has not ended."""
        self._process.kill()
        self._process.wait()


class Load:
    """Frames at a fixed rate while the block runs; then ``outcome`` and ``raw`` are known."""

    def __init__(self, kubectl: Kubectl, program: PodProgram | ProcessProgram, namespace: str = "default") -> None:
        self._kubectl = kubectl
        self._program = program
        self._namespace = namespace
        self.raw: dict[str, Any] = {}
        self.outcome: Outcome | None = None

    def __enter__(self) -> Load:
        self._before = {name: self._count(name) for name in (*NAMED, ANSWERED)}
        self._program.start()
        until("frames", lambda: self.now().get("sent"), START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._finish()
        self._program.remove()

    def now(self) -> dict[str, Any]:
        """Return the counts of a second ago at most."""
        line = self._program.last_line()
        return json.loads(line) if line.startswith("{") else {}

    def wait_answered(self, number: int, seconds: float = 120.0) -> None:
        """Wait until so many more frames were answered than now."""
        shown = self.now().get("seconds", 0.0)
        # the last line is from before this call, and what was answered since is not in it
        first = until("new counts", lambda: (now := self.now()).get("seconds", 0.0) > shown and now, START_S)
        wanted = first["answered"] + number
        until(f"{wanted} answers", lambda: self.now().get("answered", 0) >= wanted, seconds)

    def _finish(self) -> None:
        self._program.finish()
        until("the last answers", lambda: self.now().get("running") is False, 90.0)
        self.raw = self.now()
        # the status follows the workers' reports within seconds
        counted = {name: self._count(name) - before for name, before in self._before.items()}
        # more answers than were received: some results reached nobody
        self.raw |= {"status": counted, "counted_as_answered": counted[ANSWERED]}
        lost = sum(counted[name] for name in NAMED)
        self.outcome = Outcome.of(self.raw, lost)

    def _count(self, name: str) -> int:
        # in a tuple: 0 is a count too
        return until("the service's counts", lambda: (self._shown(name),), LOST_S)[0]

    def _shown(self, name: str) -> int:
        try:
            body = self._kubectl.body("jointinferenceservices.sedna.io", "digits", "-n", self._namespace)
        except KubectlError as error:
            # a load may begin before its service
            if "(NotFound)" in str(error):
                return 0
            raise
        metrics = body.get("status", {}).get("metrics", [])
        return int(sum(float(each["value"]) for each in metrics if each["key"] == name))
