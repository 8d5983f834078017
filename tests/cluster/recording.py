"""States that a real kubelet, scheduler or controller leaves, as files that the double of ``tests/kubernetes`` replays.

    python -m tests.cluster.recording

makes each case on the cluster of KUBECONFIG, where halimede runs, and writes ``tests/kubernetes/recordings/``:
``{"case", "kubernetes", "pods": [...], "nodes": [...], "events": [...], "objects": [...]}``. Addresses and what tells
machines apart are left out.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.kubectl import Body, Kubectl, condition, until
from tests.cluster.power import Power
from tests.cluster.settings import ROOT

FOLDER = ROOT / "tests/kubernetes/recordings"
#: fields that say which machine it was, or what the API server made of a write
LEFT_OUT = frozenset({
    "managedFields", "resourceVersion", "imageID", "containerID", "nodeInfo", "images", "addresses", "daemonEndpoints",
    "podIP", "podIPs", "hostIP", "hostIPs", "kubectl.kubernetes.io/last-applied-configuration", "features", "uidMap",
    "runtimeHandlers", "user", "allocatedResources", "podCIDR", "podCIDRs",
})  # fmt: skip
_address = re.compile(r"\b10\.\d+\.\d+\.\d+\b")

SERVICE = """\
apiVersion: sedna.io/v1alpha1
kind: JointInferenceService
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  edgeWorker:
    model: {{name: digits-small}}
    hardExampleMining: {{name: Margin, parameters: [{{key: threshold_margin, value: "0.19"}}]}}
    source: {{cameras: [{name}]}}
    template: {{spec: {spec}}}
  cloudWorker:
    model: {{name: digits-big}}
    template:
      spec:
        nodeSelector: {{halimede.io/node: ""}}
        containers: [{{name: cloud, image: "halimede/worker:0.1.0"}}]
"""
IMAGE = "halimede/worker:0.1.0"


def stripped(value: Any) -> Any:
    """Return a body without fields that differ from machine to machine."""
    if isinstance(value, dict):
        return {key: stripped(each) for key, each in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [stripped(each) for each in value]
    return _address.sub("192.0.2.1", value) if isinstance(value, str) else value


def event(body: Body) -> Body:
    """Return what a person sees of an event."""
    fields = (
        "type",
        "reason",
        "message",
        "count",
        "involvedObject",
        "reportingComponent",
        "firstTimestamp",
        "lastTimestamp",
    )
    found = {name: body.get(name) for name in fields if body.get(name) is not None}
    found["involvedObject"] = {name: body["involvedObject"].get(name) for name in ("kind", "name", "fieldPath")}
    return dict(stripped(found))


class Recorder:
    """Makes cases, one after the other."""

    def __init__(self, kubectl: Kubectl, power: Power, namespace: str = "default") -> None:
        self.kubectl, self.power, self.namespace = kubectl, power, namespace
        self.version = json.loads(kubectl.run("version", "-o", "json"))["serverVersion"]["gitVersion"]

    @contextmanager
    def service(self, name: str, spec: Body, namespace: str = "") -> Iterator[None]:
        """A service whose edge worker has this pod template, for the block."""
        where = namespace or self.namespace
        self.kubectl.apply(SERVICE.format(name=name, namespace=where, spec=json.dumps(spec)))
        try:
            yield
        finally:
            self.kubectl.run("delete", "ji", name, "-n", where, "--wait=true", "--timeout=60s")

    def pods(self, name: str, namespace: str = "") -> list[Body]:
        """Return all pods of a service's edge worker, ended ones as well."""
        selector = f"jointinferenceservice.sedna.io/name={name},jointinferenceservice.sedna.io/worker-type=edge"
        return self.kubectl.items("pods", "-n", namespace or self.namespace, "-l", selector)

    def write(
        self,
        case: str,
        *,
        pods: list[Body] | None = None,
        nodes: list[str] | None = None,
        objects: list[Body] | None = None,
    ) -> None:
        """Write a case with the events of what it has."""
        bodies = [*(pods or []), *(objects or [])]
        names = {body["metadata"]["name"] for body in bodies} | set(nodes or [])
        namespaces = {body["metadata"]["namespace"] for body in bodies} | ({"default"} if nodes else set())
        events = [each for where in sorted(namespaces) for each in self.kubectl.items("events", "-n", where)]
        content = {
            "case": case,
            "kubernetes": self.version,
            "pods": [stripped(pod) for pod in pods or []],
            "nodes": [stripped(self.kubectl.body("node", name)) for name in nodes or []],
            "objects": [stripped(body) for body in objects or []],
            "events": [event(each) for each in events if each["involvedObject"].get("name") in names],
        }
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{case}.json").write_text(json.dumps(content, indent=1) + "\n")
        print(case, [pod["status"].get("phase") for pod in pods or []], len(content["events"]), flush=True)


def spec_of(*, image: str = IMAGE, cpu: str = "50m", memory: str = "128Mi", **more: Any) -> Body:
    """Return a pod template's spec for the edge node."""
    container = {"name": "edge", "image": image, "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    container |= more.pop("container", {})
    return {"nodeSelector": {"node-role.kubernetes.io/edge": ""}, "containers": [container], **more}


def waiting(pods: list[Body], reason: str) -> bool:
    """Whether a container of a pod waits for this reason."""
    statuses = [
        each
        for pod in pods
        for kind in ("initContainerStatuses", "containerStatuses")
        for each in pod["status"].get(kind) or []
    ]
    return any((each["state"].get("waiting") or {}).get("reason") == reason for each in statuses)


def templates(recorder: Recorder) -> None:
    """Record what templates lead to that cannot run."""
    for case, spec, done in (
        ("unschedulable", spec_of(cpu="64"), lambda pods: condition(pods[0], "PodScheduled") == "False"),
        (
            "no-such-node",
            spec_of(nodeSelector={"kubernetes.io/hostname": "edge9"}),
            lambda pods: condition(pods[0], "PodScheduled") == "False",
        ),
        (
            "image-pull-back-off",
            spec_of(image="registry.example/none:1"),
            lambda pods: waiting(pods, "ImagePullBackOff"),
        ),
        (
            "crash-loop-back-off",
            spec_of(container={"command": ["sh", "-c", "echo 'Error: no model' | tee /dev/termination-log; exit 3"]}),
            lambda pods: waiting(pods, "CrashLoopBackOff"),
        ),
        (
            "pod-initializing",
            spec_of(initContainers=[{"name": "slow", "image": IMAGE, "command": ["sleep", "60"]}]),
            lambda pods: waiting(pods, "PodInitializing"),
        ),
        (
            "oom-killed",
            spec_of(
                container={
                    "command": ["python", "-c", "b = bytearray(200_000_000)"],
                    "resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "64Mi"}},
                }
            ),
            lambda pods: waiting(pods, "CrashLoopBackOff"),
        ),
        (
            "failed-mount",
            spec_of(
                container={"volumeMounts": [{"name": "code", "mountPath": "/code"}]},
                volumes=[{"name": "code", "secret": {"secretName": "not-there"}}],
            ),
            lambda pods: "FailedMount" in recorder.kubectl.run("get", "events", "-n", recorder.namespace),
        ),
    ):
        with recorder.service(f"case-{case}"[:40], spec):
            record_pods(recorder, case, f"case-{case}"[:40], done)


def record_pods(
    recorder: Recorder, case: str, name: str, done: Callable[[list[Body]], bool], seconds: float = 120.0
) -> None:
    """Wait until the pods of a service are in a state, and write them as they were seen: it may last a moment only."""

    def look() -> list[Body]:
        found = recorder.pods(name)
        return found if found and done(found) else []

    try:
        found = until(case, look, seconds)
    except AssertionError as error:
        print(error, flush=True)
        return
    recorder.write(case, pods=found)


def deployment(name: str, namespace: str, spec: Body) -> str:
    """Return the manifest of a Deployment whose pods have this spec."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    meta = {"name": name, "namespace": namespace, "labels": labels}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta}
    return json.dumps(body | {"spec": {"selector": {"matchLabels": labels}, "template": template}})


def past_the_scheduler(recorder: Recorder) -> None:
    """Record pods that a kubelet refuses: their node was set in the template, so no scheduler saw them."""
    for case, resources in (("out-of-cpu", {"cpu": "64"}), ("out-of-memory", {"memory": "900Gi"})):
        container = {"name": "edge", "image": IMAGE, "resources": {"requests": resources}}
        pod = {"nodeName": "edge0", "containers": [container]}
        recorder.kubectl.apply(deployment(case, recorder.namespace, pod))
        try:
            pods = until(case, lambda case=case: failed(recorder, case))
            recorder.write(case, pods=pods[:3])
        finally:
            recorder.kubectl.run("delete", "deployment", case, "-n", recorder.namespace)


def failed(recorder: Recorder, app: str) -> list[Body]:
    """Return failed pods with this label, once there are three."""
    found = recorder.kubectl.items("pods", "-n", recorder.namespace, "-l", f"app={app}")
    ended = [pod for pod in found if pod["status"].get("phase") == "Failed"]
    return ended if len(ended) >= 3 else []


def refused(recorder: Recorder) -> None:
    """Record pods that could not be created: a quota, and Pod Security."""
    quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: small}\nspec: {hard: {pods: '0'}}\n"
    for case, label, extra in (
        ("quota", "", quota),
        ("pod-security", "pod-security.kubernetes.io/enforce=restricted", ""),
    ):
        space = f"case-{case}"
        recorder.kubectl.run("create", "namespace", space)
        try:
            if label:
                recorder.kubectl.run("label", "namespace", space, label)
            if extra:
                recorder.kubectl.apply(extra, "-n", space)
            container = {"name": "edge", "image": IMAGE, "resources": {"requests": {"cpu": "50m"}}}
            folder = {"name": "cache", "hostPath": {"path": "/var/lib/halimede"}}
            recorder.kubectl.apply(deployment(case, space, {"containers": [container], "volumes": [folder]}))
            get = recorder.kubectl.items
            until(case, lambda space=space: "FailedCreate" in recorder.kubectl.run("get", "events", "-n", space))
            time.sleep(2.0)
            recorder.write(case, objects=[*get("deployments", "-n", space), *get("replicasets", "-n", space)])
        finally:
            recorder.kubectl.run("delete", "namespace", space, "--wait=false")


def unreachable(recorder: Recorder, name: str = "digits") -> None:
    """Record a node that the API server does not reach: its pods run on, until they are evicted."""
    node = "edge0"
    recorder.write("running", pods=recorder.pods(name), nodes=[node])
    with recorder.power.without_api(node):
        until("NotReady", lambda: condition(recorder.kubectl.body("node", node), "Ready") == "Unknown", 180)
        time.sleep(3.0)
        recorder.write("node-not-ready", pods=recorder.pods(name), nodes=[node])
        evicted = lambda: any(pod["metadata"].get("deletionTimestamp") for pod in recorder.pods(name))  # noqa: E731
        until("eviction", evicted, 480)
        time.sleep(3.0)
        recorder.write("evicted-unreachable", pods=recorder.pods(name), nodes=[node])
    until("Ready", lambda: condition(recorder.kubectl.body("node", node), "Ready") == "True", 180)
    recorder.write("node-back", pods=recorder.pods(name), nodes=[node])


def main() -> None:
    """Record all cases, or those named."""
    recorder = Recorder(Kubectl(), Power.here())
    groups = {each.__name__: each for each in (past_the_scheduler, refused, templates, unreachable)}
    for name in sys.argv[1:] or groups:
        groups[name](recorder)


if __name__ == "__main__":
    main()
