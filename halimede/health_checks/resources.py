"""The checks of resources: the phase of each one, its conditions, and the remedy for the reason of its phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, get_args

from halimede.api.base import convert
from halimede.api.class_names import different_names
from halimede.api.jointinference import JointInferenceServiceSpec
from halimede.api.model import ModelSpec
from halimede.errors import InvalidFieldError
from halimede.health_checks.check import Check, CheckRule, ok
from halimede.health_checks.facts import SystemFacts
from halimede.health_checks.resource_fields import condition_text, current_condition, dig, phase, reason
from halimede.learning_loop.states import State
from halimede.messages.file_facts import CONTENT_UNUSABLE, NO_SAMPLES, SAMPLES_REPEATED
from halimede.messages.operator import OVERLOAD
from halimede.messages.training import STARVED

#: phases from the worst to the best; one that is not listed counts as the worst
WORST_FIRST = (
    "Failed", "Degraded", "Pending", "Terminating", *get_args(State), "Stopped", "Unused", "Running", "Ready", "Done",
)  # fmt: skip
#: phases without a row
FINE = frozenset({"Running", "Ready", "Done", "Unused", "Stopped", "Terminating", *get_args(State)})
#: reasons with a row in a fine phase as well: a training of a learning loop has the loop's state as its phase
URGENT_REASONS = frozenset({STARVED})
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
    "NotConnected": "correct what the message names; `halimede doctor` tries what the broker lacks",
    "CodeMissing": "put the file that the message names back on the node, or correct the service",
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
#: the remedy for every other reason, and its second command for kinds with workers
OTHER_REMEDY = "`halimede describe {kind} {name} -n {ns}`"
LOGS_REMEDY = ", `halimede logs {name} -n {ns}`"
KINDS_WITH_LOGS = frozenset({"ji", "mei", "tm"})
#: the names of the checks of kinds; all other kinds count as services
NAMES = {"model": "models", "dataset": "datasets"}
#: what to do about a phase in general; a row has the remedy of its reason instead
SEE_REASON = "see [its reason](../troubleshooting.md#by-reason): the row names the next step"
#: the rules of phases that are not fine, by the name of their check
FAILED = {
    name: CheckRule(name, "problem", f"{thing} is `Failed`", follows, SEE_REASON, fails=True)
    for name, thing, follows in (
        ("services", "a service", "no edge worker runs: its frames are not answered"),
        ("models", "a Model", "no worker starts with it; services keep the model that they have"),
        ("datasets", "a Dataset", "a training that names it does not begin"),
    )
}
UNFINISHED = {
    name: CheckRule(
        name, "warning", f"{thing} is `Pending`, `Degraded` or in an unknown phase", follows, SEE_REASON, fails=True
    )
    for name, thing, follows in (
        ("services", "a service", "a worker, a node or a resource is missing; of a `Degraded` one the edge answers"),
        ("models", "a Model", "services that name it wait for it"),
        ("datasets", "a Dataset", "a training that names it waits for it"),
    )
}

#: the rules of conditions that need attention while they are True, whatever the phase is, by type
CONDITIONS = {
    "Drift": CheckRule(
        "services",
        "warning",
        "the condition `Drift`: a service's samples differ from those of its calibration",
        "the accuracy that the calibration has measured is in doubt",
        "calibrate again (`halimede calibrate`)",
    ),
    OVERLOAD: CheckRule(
        "services",
        "warning",
        f"the condition `{OVERLOAD}`: the cloud takes fewer samples than are hard",
        "the edge answers the others alone, and at once: their results are `degraded`",
        "more cloud workers, a faster model, or a lower `targetUploadRatio`: docs/uploads.md, Overload",
    ),
}

#: the rule of a Dataset that is Ready although its samples are no use
DOUBTFUL = CheckRule(
    "datasets",
    "warning",
    f"a Dataset has the reason `{NO_SAMPLES}` or `{SAMPLES_REPEATED}`",
    "a training or an evaluation finds no sample in it, or the same samples several times",
    "correct what the message names: docs/datasets.md, Conditions",
)
#: the rules of reasons that need attention in a fine phase as well, by kind and reason
REASONS = {
    ("model", CONTENT_UNUSABLE): CheckRule(
        "models",
        "warning",
        f"a Model has the reason `{CONTENT_UNUSABLE}`",
        "the content before stays in use",
        "correct the file at its url: docs/operations.md, Files that change behind a url",
    ),
    ("dataset", NO_SAMPLES): DOUBTFUL,
    ("dataset", SAMPLES_REPEATED): DOUBTFUL,
}


#: the rule of a service whose Models name their classes differently
CLASSES = CheckRule(
    "services",
    "warning",
    "the Models of a service name their classes differently, or one has no `labels`",
    "`results` mixes both names, and no answer of one model counts as right for the other",
    "set `spec.labels` of both Models to the same names: docs/processing.md, Names of classes",
)


def phase_rank(phase: str) -> int:
    """Return the place of a phase in ``WORST_FIRST``, 0 if it has none there: a sort key."""
    return WORST_FIRST.index(phase) if phase in WORST_FIRST else 0


def rank(body: Mapping[str, Any]) -> tuple[int, str, str]:
    """Return a sort key of resources' bodies: the worst phase first, then by namespace and name."""
    return phase_rank(phase(body)), str(dig(body, "metadata", "namespace")), str(dig(body, "metadata", "name"))


def examine_resources(facts: SystemFacts) -> Iterator[Check]:
    """Yield a row for each resource that ``examine_kind`` has one for, else one row that all are without problems."""
    healthy = True
    for kind, bodies in facts.resources.items():
        for row in examine_kind(kind, bodies):
            healthy = False
            yield row
    if healthy:
        services, models = sum(1 for _ in facts.services()), len(facts.resources.get("model", ()))
        yield ok("services", f"{services} services and {models} models, without problems")


def examine_conditions(facts: SystemFacts) -> Iterator[Check]:
    """Yield a row for each true condition of ``CONDITIONS``, and for each reason of ``REASONS`` in a fine phase."""
    for kind, bodies in facts.resources.items():
        for body in bodies:
            about = f"{kind}/{dig(body, 'metadata', 'name')}"
            if (rule := REASONS.get((kind, reason(body)))) and phase(body) in FINE:
                yield rule.row(
                    condition_text(body), about, str(current_condition(body).get("lastTransitionTime") or "")
                )
            for condition in dig(body, "status", "conditions") or []:
                rule = CONDITIONS.get(str(condition.get("type")))
                if rule and condition.get("status", "True") == "True":
                    what = f"{condition.get('reason')}: {condition.get('message')}"
                    yield rule.row(what, about, str(condition.get("lastTransitionTime") or ""))


def examine_classes(facts: SystemFacts) -> Iterator[Check]:
    """Yield a row for each service whose Models name their classes differently."""
    models: dict[str, dict[str, ModelSpec]] = {}
    for body in facts.resources.get("model", ()):
        with suppress(InvalidFieldError):  # of another version of GM
            spec = convert(dig(body, "spec"), ModelSpec, "spec")
            models.setdefault(str(dig(body, "metadata", "namespace")), {})[str(dig(body, "metadata", "name"))] = spec
    for body in facts.resources.get("ji", ()):
        with suppress(InvalidFieldError):
            service = convert(dig(body, "spec"), JointInferenceServiceSpec, "spec")
            if difference := different_names(service, models.get(str(dig(body, "metadata", "namespace")), {})):
                yield CLASSES.row(difference, f"ji/{dig(body, 'metadata', 'name')}")


def examine_kind(kind: str, bodies: Iterable[Mapping[str, Any]]) -> list[Check]:
    """Return the rows of the resources of one kind whose phase is not fine, or whose reason is urgent, the worst first.

    ``kind`` is the kind's short name, ``bodies`` are the resources with their status.
    """
    unhealthy = sorted((body for body in bodies if phase(body) not in FINE or reason(body) in URGENT_REASONS), key=rank)
    return [_row(kind, body) for body in unhealthy]


def _row(kind: str, body: Mapping[str, Any]) -> Check:
    """Return the row of a resource that needs attention, with the remedy for its reason."""
    namespace, name = (str(dig(body, "metadata", key)) for key in ("namespace", "name"))
    cause, other = reason(body), OTHER_REMEDY + LOGS_REMEDY if kind in KINDS_WITH_LOGS else OTHER_REMEDY
    remedy = REMEDIES.get(f"{kind}/{cause}", REMEDIES.get(cause, other)).format(kind=kind, name=name, ns=namespace)
    rule = (FAILED if phase(body) == "Failed" else UNFINISHED)[NAMES.get(kind, "services")]
    since = str(current_condition(body).get("lastTransitionTime") or "")
    return rule.row(f"{phase(body)}: {condition_text(body)}", f"{kind}/{name}", since, remedy)
