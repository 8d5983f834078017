"""Load on a service, from a pod of the cluster (``load.py``)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cluster.kubectl import Kubectl, KubectlError, until
from tests.cluster.report import Outcome

#: frames a second
FPS = 25
START_S = 120.0
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
        - {{name: SERVICE, value: "{service}"}}
        - {{name: CAMERA, value: "{camera}"}}
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


class Load:
    """Frames at a fixed rate while the block runs; then ``outcome`` and ``raw`` are known."""

    def __init__(
        self,
        kubectl: Kubectl,
        *,
        broker: str,
        image: str,
        service: str = "digits",
        camera: str = "cam0",
        namespace: str = "default",
        fps: int = FPS,
    ) -> None:
        self._kubectl = kubectl
        self._namespace, self._service = namespace, service
        self._name = f"halimede-test-load-{secrets.token_hex(3)}"
        self._manifest = POD.format(
            name=self._name, namespace=namespace, image=image, broker=broker, service=service, camera=camera, fps=fps
        )
        self.raw: dict[str, Any] = {}
        self.outcome: Outcome | None = None

    def __enter__(self) -> Load:
        self._lost = self._lost_now()
        self._kubectl.apply(self._manifest)
        until("frames", lambda: self.now().get("sent"), START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._finish()
        self._kubectl.run("delete", "pod", self._name, "-n", self._namespace, "--wait=false")

    def now(self) -> dict[str, Any]:
        """Return the counts of a second ago at most."""
        lines = self._kubectl.run("logs", self._name, "-n", self._namespace, "--tail=1").splitlines()
        return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}

    def wait_answered(self, number: int, seconds: float = 120.0) -> None:
        """Wait until so many more frames were answered than now."""
        wanted = self.now().get("answered", 0) + number
        until(f"{wanted} answers", lambda: self.now().get("answered", 0) >= wanted, seconds)

    def _finish(self) -> None:
        self._kubectl.run("exec", self._name, "-n", self._namespace, "--", "sh", "-c", "kill -TERM 1")
        until("the last answers", lambda: self.now().get("running") is False, 90.0)
        self.raw = self.now()
        # the status follows the workers' reports within seconds
        lost = self._lost_now() - self._lost
        self.outcome = Outcome.of(self.raw, lost)

    def _lost_now(self) -> int:
        # in a tuple: 0 is a count too
        return until("the count of lost frames", lambda: (self._lost_in_status(),), LOST_S)[0]

    def _lost_in_status(self) -> int:
        try:
            body = self._kubectl.body("jointinferenceservices.sedna.io", self._service, "-n", self._namespace)
        except KubectlError as error:
            # a load may begin before its service
            if "(NotFound)" in str(error):
                return 0
            raise
        metrics = body.get("status", {}).get("metrics", [])
        return int(next((float(each["value"]) for each in metrics if each["key"] == "lost"), 0))
