"""Remedies for problems, in one line each, for ``status`` and ``doctor``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from halimede.bus.port import refusal_text
from halimede.cli import tables
from halimede.learning_loop.states import State
from halimede.messages import NodeInfo

#: phases from the worst to the best; an unknown one counts as the worst
WORST_FIRST = ("Failed", "Degraded", "Pending", "Terminating", *get_args(State), "Running", "Ready", "Done")
FINE = frozenset({"Running", "Ready", "Done", "Unused", "Stopped", "Terminating", *get_args(State)})
#: the remedy for a condition's reason, or for that of one kind; ``{kind}``, ``{name}`` and ``{ns}`` are the resource's
REMEDIES = {
    "ModelNotFound": "apply the Model that it uses: `halimede apply -f FILE`",
    "DatasetNotFound": "apply the Dataset that it uses: `halimede apply -f FILE`",
    "NodeNotFound": "start the local controller of that node, or use another node (`halimede nodes`)",
    "NoNode": "set nodeName or nodeSelector to match a node (`halimede nodes -o json` shows labels)",
    "NodeOffline": "start the node's local controller; if the node is gone for good: `halimede delete node NODE`",
    "NodeDrained": "`halimede uncordon NODE`, or set another node",
    "WaitingForNode": "wait a few seconds; if it stays, see the log of the node's local controller",
    "Updating": "wait: the node is applying the new generation",
    "Preparing": "wait: the node is downloading the model",
    "dataset/DatasetNotFound": "put the data at spec.url on its node, or correct spec.url and apply the Dataset again",
    "dataset/HostPathNotMounted": "mount its folder into the local controllers: docs/deploy.md, Datasets",
    "dataset/NotCounted": "`kubectl label node NODE halimede.io/node=`: then a local controller runs there",
    "dataset/Preparing": "wait: the node counts it; if it stays, see the log of the node's local controller",
    "DatasetNotReady": "see what its Dataset waits for: `halimede get datasets`",
    "FrameworkNotSupported": "export the model to ONNX, or ask the operator to configure a server for its framework",
    "NotInstalled": "run the command in the message on the node: it continues within a minute",
    "ImageNotSupported": "remove spec.image and list the model's versions in spec.manifest, or use Kubernetes",
    "ReplicasNotSupported": "set spec.replicas to the number that the message has, or label more nodes",
    "NodeMismatch": "correct the field that the message names (`halimede nodes -o json` shows labels)",
    "WorkerSilent": "wait: LC restarts a worker that hangs; else check its connection to the broker",
    "Starved": "give the node less to do, or lower spec.cpuShare: docs/training.md, A busy node",
    "SeveralReaders": "set edgeWorker's nodeName; or publish the camera once, and name it in cameras: docs/cameras.md",
    "SettingsRefused": "the previous settings run on: correct what the message names, and apply the service again",
    "SubscriptionRefused": "grant it in the broker's access rules (docs/security.md), then restart the worker",
    "RolloutFailed": "the previous version runs on: apply a corrected one, or roll back (`halimede rollback --help`)",
}
#: remedies where Kubernetes runs the workers: its reasons stand in no other system
REMEDIES |= dict.fromkeys(
    ("CrashLoopBackOff", "OOMKilled", "Error", "FetchFailed"),
    "`kubectl logs --namespace {ns} --selector app.kubernetes.io/managed-by=halimede --prefix --previous`",
)
REMEDIES |= dict.fromkeys(
    ("Unschedulable", "ContainerCreating", "ImagePullBackOff", "ErrImagePull", "FailedMount", "FailedCreatePodSandBox"),
    "`kubectl describe pods --namespace {ns} --selector app.kubernetes.io/managed-by=halimede`",
)
REMEDIES["NodeUnreachable"] = "wait, its workers go on; see `kubectl get nodes`, and the node's link to the cluster"
#: the remedy for a component to which the broker refuses a subscription or birth
GRANT = "grant it in the broker's access rules (docs/security.md), then restart {}"
OTHERWISE = "`halimede describe {kind} {name} -n {ns}`"
#: only services have workers
LOGS = ", `halimede logs {name} -n {ns}`"
WITH_LOGS = frozenset({"ji", "mei", "tm"})


@dataclass(frozen=True, slots=True)
class Task:
    """A problem: its object, its description, and the next step."""

    about: str
    what: str
    do: str


def phase_rank(phase: str) -> int:
    """Return a sort key of phases: the worst first, with unknown ones."""
    return WORST_FIRST.index(phase) if phase in WORST_FIRST else 0


def rank(body: Mapping[str, Any]) -> tuple[int, str, str]:
    """Return a sort key of resources: the worst first, then by name."""
    return (
        phase_rank(tables.phase(body)),
        str(tables.dig(body, "metadata", "namespace")),
        str(tables.dig(body, "metadata", "name")),
    )


def reason(body: Mapping[str, Any]) -> str:
    """Return the reason of the current condition."""
    conditions = tables.dig(body, "status", "conditions") or []
    return str(conditions[-1].get("reason") or "") if conditions else ""


def on_resources(kind: str, bodies: Iterable[Mapping[str, Any]]) -> list[Task]:
    """Return the problems of resources, the worst first."""
    wrong = sorted((body for body in bodies if tables.phase(body) not in FINE), key=rank)
    return [_on_resource(kind, body) for body in wrong]


def on_manager(said: Mapping[str, Any]) -> list[Task]:
    """Return the problems that the global manager reports of itself."""
    tasks = []
    if said.get("store"):
        do = "free space; until then edits are refused, statuses are only in memory: docs/operations.md, A full disk"
        tasks.append(Task("gm", str(said["store"]), do))
    if names := said.get("refused"):
        tasks.append(Task("gm", refusal_text(names), GRANT.format("the global manager")))
    if said.get("quarantined"):
        do = "check its disk, apply missing resources (`halimede get`), then remove these files"
        tasks.append(Task("gm", str(said["quarantined"]), do))
    return tasks


def on_nodes(nodes: Sequence[NodeInfo], version: str) -> list[Task]:
    """Return the problems of nodes. ``version`` is GM's."""
    if not nodes:
        return [Task("nodes", "no local controller has ever connected", "start one: `halimede lc --node NAME`")]
    tasks = []
    for node in nodes:
        about = f"node/{node.name}"
        if not node.online and node.trouble:
            do = f"see `kubectl describe node {node.name}`; its workers go on meanwhile, and frames are answered there"
            tasks.append(Task(about, node.trouble, do))
            continue
        if not node.online:
            do = f"start its local controller; if it is gone for good: `halimede delete node {node.name}`"
            tasks.append(Task(about, "it is offline", do))
        elif node.version and version and node.version != version:
            what = f"its version {node.version} is not the global manager's {version}"
            tasks.append(Task(about, what, "install the same version on both"))
        if node.trouble:
            do = "free space on its disk or check it, then remove the quarantined files: docs/operations.md"
            tasks.append(Task(about, node.trouble, do))
        if node.refused:
            tasks.append(Task(about, refusal_text(node.refused), GRANT.format("its local controller")))
        if node.unknown:
            what = f"it holds resources that the global manager lost with its store: {', '.join(node.unknown)}"
            do = "apply them again: `halimede apply -f FILE`; or remove them: `halimede delete KIND NAME`"
            tasks.append(Task(about, what, do))
    return tasks


def _on_resource(kind: str, body: Mapping[str, Any]) -> Task:
    namespace, name = (str(tables.dig(body, "metadata", key)) for key in ("namespace", "name"))
    otherwise = OTHERWISE + LOGS if kind in WITH_LOGS else OTHERWISE
    why = reason(body)
    remedy = REMEDIES.get(f"{kind}/{why}", REMEDIES.get(why, otherwise)).format(kind=kind, name=name, ns=namespace)
    return Task(f"{kind}/{name}", f"{tables.phase(body)}: {tables.condition(body)}", remedy)
