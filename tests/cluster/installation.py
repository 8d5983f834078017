"""Halimede in the cluster, installed and removed by the commands of the documents, typed in as they stand."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cluster.kubectl import Body, Kubectl, KubectlError, until
from tests.cluster.settings import ROOT
from tests.cluster.traffic import CONFIG, SECRET, Load, PodProgram, prepare
from tests.e2e.running import digits

GUIDE, SHORT = ROOT / "docs/deploy.md", ROOT / "docs/kubernetes.md"
BROKER = "mqtt://halimede-broker.halimede.svc:1883"
BROKER_TLS = "mqtts://halimede-broker.halimede.svc:8883"
IMAGE = "halimede/worker:0.1.0"
#: nodes of this cluster, by their names in the documents
NODES = {name: os.environ.get(f"HALIMEDE_{name.upper()}", name) for name in ("edge0", "cloud0")}
#: pictures that the load repeats
PICTURES = 40
SERVICE = "jointinferenceservice.sedna.io/name=digits"
EDGE, CLOUD = (f"{SERVICE},jointinferenceservice.sedna.io/worker-type={role}" for role in ("edge", "cloud"))
GM, LC, MOSQUITTO = (f"app.kubernetes.io/name=halimede-{name}" for name in ("gm", "lc", "broker"))


def typed_lines(document: Path, section: str = "") -> list[str]:
    """Return the commands of a document, or of one of its sections, in order, without comments."""
    text = document.read_text()
    if section:
        found = re.search(rf"^(##+) {re.escape(section)}\n", text, re.MULTILINE)
        assert found, f"{document.name} has no section {section}"
        # up to the next heading of this level or a higher one
        text = re.split(rf"^#{{2,{len(found[1])}}} ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [re.split(r"\s+# ", line)[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


class Installation:
    """The system, and a folder of its operator with the site's credentials."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        self.kubectl = kubectl
        self.folder = folder
        self.first_answer_s: float | None = None
        self.broker = BROKER
        for name in ("deploy", "examples"):
            (folder / name).symlink_to(ROOT / name)

    def type(self, line: str, seconds: float = 180.0) -> str:
        """Run a line as an operator's shell does, in the operator's folder, and return its output."""
        return self.kubectl.shell(self._shell(line), cwd=self.folder, seconds=seconds)

    @contextmanager
    def running_command(self, line: str, ready: str, seconds: float = 30.0) -> Iterator[None]:
        """Run a line that has no end while the block runs, once its output has the text ``ready``."""
        log = self.folder / "command.log"
        with log.open("wb") as output:
            process = self.kubectl.start(self._shell(f"exec {line}"), output, cwd=self.folder)
        try:
            until(f"{ready!r} of {line!r}", lambda: ready in log.read_text(), seconds)
            yield
            assert process.poll() is None, f"{line} has ended: {log.read_text()}"
        finally:
            process.terminate()
            process.wait()

    def _shell(self, line: str) -> list[str]:
        for name, own in NODES.items():
            line = re.sub(rf"\b{name}\b", own, line)
        # one node may be both: then it is named once
        line = re.sub(r"( --node \S+)\1\b", r"\1", line)
        path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
        return ["env", path, f"HOME={self.folder}", "bash", "-o", "pipefail", "-c", line]

    def install(self) -> None:
        """Type the five commands of docs/kubernetes.md, with a camera that publishes before there is a service."""
        labels = [line for line in typed_lines(GUIDE) if line.startswith("kubectl label node") and "place" not in line]
        # watching has no end
        *system, example, watch = [line.replace(" --watch", "") for line in typed_lines(SHORT)]
        for line in [*labels, *system]:
            self.type(line)
        for what in ("deployment/halimede-gm", "deployment/halimede-broker", "daemonset/halimede-lc"):
            self.kubectl.run("-n", "halimede", "rollout", "status", what, "--timeout=240s", seconds=260)
        self.prepare_load()
        with self.load() as load:
            applied, at = time.monotonic(), time.time()
            self.type(example)
            self.type(watch)
            self.running()
            self.running_s = time.monotonic() - applied
            until("the first answer", lambda: load.now().get("answered"), 60.0)
        self.first_answer_s = round(load.raw["first_at"] - at, 1)

    def running(self, name: str = "digits", namespace: str = "default", seconds: float = 240.0) -> None:
        """Wait until a service is Running."""
        until(f"{name} Running", lambda: self.status(name, namespace).get("phase") == "Running", seconds)

    def edit(self, threshold: str) -> None:
        """Change the threshold of the example's edge worker, and wait until the change runs."""
        self.change_threshold(threshold)
        until("the edit runs", self.runs_as_edited, 180.0)

    def change_threshold(self, threshold: str) -> None:
        """Change the threshold of the example's edge worker."""
        mining = {"name": "Margin", "parameters": [{"key": "threshold_margin", "value": threshold}]}
        patch = {"spec": {"edgeWorker": {"hardExampleMining": mining}}}
        self.kubectl.run("patch", "ji", "digits", "--type=merge", "-p", json.dumps(patch))

    def runs_as_edited(self) -> bool:
        """Whether the example is Running with its last change."""
        body = self.kubectl.body("ji", "digits")
        status = body.get("status") or {}
        return status.get("observedGeneration") == body["metadata"]["generation"] and status.get("phase") == "Running"

    def status(self, name: str = "digits", namespace: str = "default") -> Body:
        """Return a service's status; empty if it has none."""
        return dict(self.kubectl.body("ji", name, "-n", namespace).get("status") or {})

    def names(self, text: str, namespace: str, name: str = "digits") -> None:
        """Wait until a service's status has a text: what an operator would look for."""
        until(f"{text!r} in the status", lambda: text in json.dumps(self.status(name, namespace)), 90)

    def prepare_load(self, namespace: str = "default", credentials: Path | None = None) -> None:
        """Create what load pods mount."""
        pictures = {}
        for number, picture in enumerate(digits()[:PICTURES]):
            path = self.folder / f"{number:03}.png"
            path.write_bytes(picture)
            pictures[path.name] = path
        prepare(self.kubectl, pictures, credentials or self.folder / "site/operators/admin", namespace)

    def load(self, namespace: str = "default") -> Load:
        """Return load on the example: 25 frames a second from a pod."""
        program = PodProgram(self.kubectl, broker=self.broker, image=IMAGE, namespace=namespace)
        return Load(self.kubectl, program, namespace)

    def remove_load(self) -> None:
        """Remove what load pods mount."""
        for kind, name in (("configmap", CONFIG), ("secret", SECRET)):
            self.kubectl.run("delete", kind, name, "--ignore-not-found")

    def remove(self) -> None:
        """Type the lines of the section Removal; nothing of it has to be there."""
        for line in typed_lines(GUIDE, "Removal"):
            if line.startswith("kubectl delete"):
                with suppress(KubectlError):
                    self.type(line)
