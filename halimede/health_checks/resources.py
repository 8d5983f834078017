"""The checks of resources: the phase of each, and the remedy for the reason of its condition."""

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
from halimede.health_checks.resource_fields import condition, current, dig, phase, reason
from halimede.learning_loop.states import State
from halimede.messages.file_facts import CONTENT_UNUSABLE, NO_SAMPLES, SAMPLES_REPEATED
from halimede.messages.operator import OVERLOAD
from halimede.messages.training import STARVED

#: phases from the worst to the best; an unknown one counts as the worst
WORST_FIRST = ("Failed", "Degraded", "Pending", "Terminating", *get_args(State), "Running", "Ready", "Done")
FINE = frozenset({"Running", "Ready", "Done", "Unused", "Stopped", "Terminating", *get_args(State)})
#: reasons that need attention in a fine phase as well: a training of a learning loop has the loop's state as its phase
UNWELL = frozenset({STARVED})
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
OTHERWISE = "`halimede describe {kind} {name} -n {ns}`"
#: only services have workers
LOGS = ", `halimede logs {name} -n {ns}`"
WITH_LOGS = frozenset({"ji", "mei", "tm"})
#: the names of the checks of kinds; a service that serves a model counts as a service
NAMES = {"model": "models", "dataset": "datasets"}
FAILED = tuple(
    CheckRule(
        name,
        "problem",
        f"{thing} is `Failed`",
        follows,
        "see its reason in [conditions](conditions.md): the row names the next step",
        fails=True,
    )
    for name, thing, follows in (
        ("services", "a service", "no edge worker runs: its frames are not answered"),
        ("models", "a Model", "no worker starts with it; services keep the model that they have"),
        ("datasets", "a Dataset", "a training that names it does not begin"),
    )
)
UNFINISHED = tuple(
    CheckRule(
        name,
        "warning",
        f"{thing} is `Pending`, `Degraded` or in an unknown phase",
        follows,
        "see its reason in [conditions](conditions.md): the row names the next step",
        fails=True,
    )
    for name, thing, follows in (
        ("services", "a service", "a worker, a node or a resource is missing; of a `Degraded` one the edge answers"),
        ("models", "a Model", "services that name it wait for it"),
        ("datasets", "a Dataset", "a training that names it waits for it"),
    )
)

#: conditions beside the phase that say that something is not as it should be, while they are True
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

DOUBTFUL = CheckRule(
    "datasets",
    "warning",
    f"a Dataset has the reason `{NO_SAMPLES}` or `{SAMPLES_REPEATED}`",
    "a training or an evaluation finds no sample in it, or the same samples several times",
    "correct what the message names: docs/datasets.md, Conditions",
)
#: reasons that need attention in a fine phase as well, by kind
NOTED = {
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


CLASSES = CheckRule(
    "services",
    "warning",
    "the Models of a service name their classes differently, or one has no `labels`",
    "`results` mixes both names, and no answer of one model counts as right for the other",
    "set `spec.labels` of both Models to the same names: docs/processing.md, Names of classes",
)


def phase_rank(phase: str) -> int:
    """Return a sort key of phases: the worst first, with unknown ones."""
    return WORST_FIRST.index(phase) if phase in WORST_FIRST else 0


def rank(body: Mapping[str, Any]) -> tuple[int, str, str]:
    """Return a sort key of resources: the worst first, then by name."""
    return phase_rank(phase(body)), str(dig(body, "metadata", "namespace")), str(dig(body, "metadata", "name"))


def examine_resources(facts: SystemFacts) -> Iterator[Check]:
    """Check the phases of all resources."""
    healthy = True
    for kind, bodies in facts.resources.items():
        for row in examine_kind(kind, bodies):
            healthy = False
            yield row
    if healthy:
        services, models = sum(1 for _ in facts.services()), len(facts.resources.get("model", ()))
        yield ok("services", f"{services} services and {models} models, without problems")


def examine_conditions(facts: SystemFacts) -> Iterator[Check]:
    """Check the conditions beside the phases, and those of resources whose phase is fine."""
    for kind, bodies in facts.resources.items():
        for body in bodies:
            about, why = f"{kind}/{dig(body, 'metadata', 'name')}", reason(body)
            if (noted := NOTED.get((kind, why))) and phase(body) in FINE:
                yield noted.row(condition(body), about, str(current(body).get("lastTransitionTime") or ""))
            for fact in dig(body, "status", "conditions") or []:
                rule = CONDITIONS.get(str(fact.get("type")))
                if rule and fact.get("status", "True") == "True":
                    what = f"{fact.get('reason')}: {fact.get('message')}"
                    yield rule.row(what, about, str(fact.get("lastTransitionTime") or ""))


def examine_classes(facts: SystemFacts) -> Iterator[Check]:
    """Check whether the Models of each service have a name of a class in common."""
    models: dict[str, dict[str, ModelSpec]] = {}
    for body in facts.resources.get("model", ()):
        with suppress(InvalidFieldError):  # of another version of GM
            spec = convert(dig(body, "spec"), ModelSpec, "spec")
            models.setdefault(str(dig(body, "metadata", "namespace")), {})[str(dig(body, "metadata", "name"))] = spec
    for body in facts.resources.get("ji", ()):
        with suppress(InvalidFieldError):
            service = convert(dig(body, "spec"), JointInferenceServiceSpec, "spec")
            if doubt := different_names(service, models.get(str(dig(body, "metadata", "namespace")), {})):
                yield CLASSES.row(doubt, f"ji/{dig(body, 'metadata', 'name')}")


def examine_kind(kind: str, bodies: Iterable[Mapping[str, Any]]) -> list[Check]:
    """Return the rows of the resources of one kind, the worst first."""
    wrong = sorted((body for body in bodies if phase(body) not in FINE or reason(body) in UNWELL), key=rank)
    return [_row(kind, body) for body in wrong]


def _row(kind: str, body: Mapping[str, Any]) -> Check:
    namespace, name = (str(dig(body, "metadata", key)) for key in ("namespace", "name"))
    otherwise = OTHERWISE + LOGS if kind in WITH_LOGS else OTHERWISE
    why = reason(body)
    remedy = REMEDIES.get(f"{kind}/{why}", REMEDIES.get(why, otherwise)).format(kind=kind, name=name, ns=namespace)
    rules = FAILED if phase(body) == "Failed" else UNFINISHED
    rule = next(rule for rule in rules if rule.name == NAMES.get(kind, "services"))
    since = str(current(body).get("lastTransitionTime") or "")
    return rule.row(f"{phase(body)}: {condition(body)}", f"{kind}/{name}", since, remedy)
