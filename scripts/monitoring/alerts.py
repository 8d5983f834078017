"""The alerts, each declared once: when it fires, what it means, and what mends it.

Expressions aggregate to the labels that a summary names: a restarted GM, or another pod, is the same alert. An alert
has a state that a user must act on: what the system mends by itself in less than ``lasts`` fires none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from halimede.health_checks.workers import DEGRADED_PROBLEM, DEGRADED_WARNING

#: ``critical``: samples are not answered, or will not be; ``warning``: they are, but worse or later than they should
Severity = Literal["critical", "warning"]
#: days before the end of a certificate
CERTIFICATE_DAYS = 14
#: seconds since the arrival of the oldest frame without an answer
LATE_S = 30
#: seconds since GM answered a sync, which a local controller sends every five minutes
SYNC_S = 900
#: share of a service's frames that are refused, or whose results nobody receives
BAD_SHARE = 0.05
#: the labels of a worker
WORKER = "halimede_namespace, halimede_service, halimede_node, halimede_worker"
#: the labels of a service
SERVICE = "plural, namespace, service"
#: what a text names of a service, and of a worker
THE_SERVICE = "{{ $labels.namespace }}/{{ $labels.service }}"
THE_WORKER = "{{ $labels.halimede_worker }} on {{ $labels.halimede_node }}"
THE_RESOURCE = "{{ $labels.plural }}/{{ $labels.name }} in {{ $labels.namespace }}"
#: the reasons of a version, or of settings, that were refused while the ones before go on
REFUSED = "RolloutFailed|SettingsRefused|CanaryFailed"
#: the reasons of what goes on, or waits as it should: a download, what waits for it, a trigger, an hour, a drained node
WAITING = "Downloading|Copying|Preparing|ModelNotReady|DatasetNotReady|TooFewSamples|OutsideHours|NodeDrained"
TRAININGS = "trainingmodels|federatedlearningjobs|incrementallearningjobs"
FILES = "models|datasets"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    Attributes:
        name: without the prefix ``Halimede``.
        severity: how bad it is.
        lasts: how long the expression must be true, as Prometheus writes durations.
        expression: in PromQL.
        summary: what is wrong, with the thing that it is about.
        description: what follows for users.
        command: what mends it, or shows the cause; a cell of a table, and an annotation.
        runbook: the part of the documents about it.

    """

    name: str
    severity: Severity
    lasts: str
    expression: str
    summary: str
    description: str
    command: str
    runbook: str

    @property
    def full(self) -> str:
        """The name in Prometheus."""
        return f"Halimede{self.name}"


def _rate(counter: str, labels: str = SERVICE) -> str:
    """Return the rate of a counter."""
    return f"sum by ({labels}) (rate({counter}[5m]))"


def _share(part: str, whole: str, labels: str = SERVICE) -> str:
    """Return the share of one counter's rate in that of another, which grows with it."""
    return f"{_rate(part, labels)} / {_rate(whole, labels)}"


def _unhealthy(condition: str) -> str:
    """Return the unhealthy resources that match. Without the reason: a change of it does not start the time anew."""
    return f"max by (plural, namespace, name) (halimede_gm_unhealthy_resources{{{condition}}}) > 0"


SYSTEM = (
    Alert(
        "GlobalManagerDown",
        "critical",
        "2m",
        "absent(halimede_gm_epoch)",
        "Prometheus reads no metrics of a global manager",
        "Edits, placement and statuses wait. Workers go on and frames are answered. Alerts about services and nodes "
        "are blind meanwhile.",
        "halimede doctor; kubectl -n halimede logs deployment/halimede-gm",
        "operations.md#after-a-failure",
    ),
    Alert(
        "BrokerUnreachable",
        "critical",
        "2m",
        "min by (halimede_role, halimede_node, client) (halimede_bus_connected) == 0",
        "{{ $labels.client }} has no connection to the broker",
        "A worker receives no frames then, and a local controller or GM no changes. Without Kubernetes only GM is "
        "named: the others leave `/targets`.",
        "halimede doctor",
        "troubleshooting.md#connection-to-the-broker",
    ),
    Alert(
        "ProcessNotReady",
        "warning",
        "5m",
        f'min by (halimede_role, {WORKER}, check) (halimede_health_check_state{{check!~"store|broker"}}) == 0',
        "{{ $labels.halimede_role }} {{ $labels.halimede_worker }} {{ $labels.halimede_node }} fails its check "
        "{{ $labels.check }}",
        "`granted`: the broker refuses a subscription. `synced`: GM does not answer. `work`: its start does not end. "
        "`model`: a model call hangs. `tasks`, `loop`: restart it.",
        "halimede status; curl http://ADDRESS/readyz",
        "observability.md",
    ),
    Alert(
        "StoreNotWritable",
        "critical",
        "1m",
        'min by (halimede_role, halimede_node) (halimede_health_check_state{check="store"}) == 0',
        "{{ $labels.halimede_role }} {{ $labels.halimede_node }} cannot write its store",
        "The disk is full, or cannot be written. Edits are refused, and statuses are only in memory.",
        "df -h; halimede status",
        "operations.md#archives-and-a-disk-that-is-full",
    ),
    Alert(
        "StoreLost",
        "warning",
        "5m",
        "min by (halimede_node) (halimede_lc_store_complete) == 0",
        "The store of node {{ $labels.halimede_node }} was lost, and GM has not sent its resources again",
        "Its workers go on, but nobody can change them.",
        "halimede nodes; halimede apply -f FILE",
        "operations.md#after-a-failure",
    ),
    Alert(
        "ProcessNotScraped",
        "warning",
        "5m",
        'min by (halimede_role, halimede_node, halimede_worker, instance) (up{halimede_role!=""}) == 0',
        "{{ $labels.halimede_role }} {{ $labels.halimede_worker }} at {{ $labels.instance }} does not answer",
        "It hangs, or a firewall is between; on Kubernetes also: its machine is gone. Its metrics are missing. Without "
        "Kubernetes a node that is offline leaves `/targets`: see `HalimedeNodeOffline`.",
        "halimede status; curl http://ADDRESS/healthz",
        "observability.md",
    ),
    Alert(
        "CertificateEnds",
        "warning",
        "1h",
        f"min by (halimede_role, halimede_node, client) (halimede_bus_certificate_end_seconds) - time() "
        f"< {CERTIFICATE_DAYS} * 86400",
        "The certificate of {{ $labels.client }} ends in {{ $value | humanizeDuration }}",
        "Afterwards connections fail. `halimede certs rotate` makes new ones. Of the broker's certificate: reload the "
        "broker, and restart the client or wait for its next connection.",
        "halimede certs show site/",
        "security.md#changes",
    ),
    Alert(
        "VersionsDiffer",
        "warning",
        "1h",
        "count(count by (version) (halimede_build_info)) > 1",
        "Processes have {{ $value }} versions of halimede",
        "One may not understand what another has sent. During an upgrade this is normal.",
        "halimede nodes; halimede status",
        "upgrade-and-removal.md",
    ),
    Alert(
        "MessagesUnreadable",
        "warning",
        "0m",
        "sum(increase(halimede_gm_dead_letters_total[10m])) > 0",
        "Clients received messages that they cannot read",
        "These messages have no effect: frames are not answered, or an edit does not arrive.",
        "halimede events --type Warning",
        "troubleshooting.md#by-reason",
    ),
    Alert(
        "ManagerOverloaded",
        "warning",
        "5m",
        "sum(increase(halimede_gm_intake_dropped_messages_total[5m])) > 0",
        "GM drops messages of nodes, because its queue is full",
        "Statuses are late. A node that sends far more than others is the usual cause.",
        "halimede top; halimede events --type Warning",
        "scale.md#gm-and-nodes",
    ),
)
NODES = (
    Alert(
        "NodeOffline",
        "warning",
        "5m",
        'max by (node) (halimede_gm_node_state{drained="false"}) == 0',
        "Node {{ $labels.node }} is offline",
        "Changes do not arrive there. Its workers go on as long as its machine runs. A drained node is not named. "
        "Start its local controller; delete the node if it is gone for good.",
        "halimede nodes",
        "commands.md#a-node-that-does-not-come-back",
    ),
    Alert(
        "NodeOutOfSync",
        "warning",
        "1m",
        f"max by (halimede_node) (halimede_lc_sync_age_seconds) > {SYNC_S}",
        "Node {{ $labels.halimede_node }} has no answer of GM since {{ $value | humanizeDuration }}",
        "It goes on with what it has: changes may be missing.",
        "halimede nodes; halimede doctor",
        "troubleshooting.md#by-symptom",
    ),
    Alert(
        "ReportsRefused",
        "warning",
        "5m",
        "sum by (halimede_node) (increase(halimede_lc_refused_reports_total[10m])) > 0",
        "The broker refuses reports of node {{ $labels.halimede_node }}",
        "The statuses of its services are old, or missing.",
        "halimede doctor",
        "security.md#changes",
    ),
    Alert(
        "WorkerRestarts",
        "warning",
        "0m",
        "sum by (halimede_node) (increase(halimede_lc_worker_restarts_total[15m])) > 2.5",
        "Workers of node {{ $labels.halimede_node }} ended {{ $value | humanize }} times in 15 minutes",
        "Each end loses time, and frames of cameras at QoS 0.",
        "halimede status; halimede events --type Warning",
        "troubleshooting.md#by-reason",
    ),
    Alert(
        "CameraSilent",
        "warning",
        "2m",
        "min by (camera, instance) (halimede_camera_running) == 0",
        "Camera {{ $labels.camera }} gives no frames",
        "A service that reads it gets no frames from it, although it is `Running`.",
        "halimede doctor",
        "cameras.md#status-of-a-camera",
    ),
    Alert(
        "CameraUnread",
        "warning",
        "5m",
        "sum by (camera) (increase(halimede_camera_frames_without_subscriber_total[5m])) > 0",
        "No worker reads camera {{ $labels.camera }}",
        "Its frames are not answered. `source.cameras` of a service must have its name.",
        "halimede get ji -A -o yaml",
        "troubleshooting.md#by-symptom",
    ),
)
SERVICES = (
    Alert(
        "ServiceFailed",
        "critical",
        "1m",
        _unhealthy(f'phase="Failed", plural!~"{TRAININGS}|{FILES}"'),
        f"{THE_RESOURCE} has failed",
        "No edge worker, or no server, runs: its frames or requests are not answered.",
        "halimede describe {{ $labels.plural }} {{ $labels.name }} -n {{ $labels.namespace }}",
        "troubleshooting.md#by-reason",
    ),
    Alert(
        "ServiceDegraded",
        "warning",
        "5m",
        _unhealthy(f'phase!="Failed", reason!~"{REFUSED}|{WAITING}", plural!~"{TRAININGS}|{FILES}"'),
        f"{THE_RESOURCE} is `Degraded` or `Pending`",
        "A worker, a node or a resource is missing. Of a `Degraded` service the edge answers.",
        "halimede describe {{ $labels.plural }} {{ $labels.name }} -n {{ $labels.namespace }}",
        "troubleshooting.md#by-reason",
    ),
    Alert(
        "RolloutRefused",
        "warning",
        "1m",
        _unhealthy(f'reason=~"{REFUSED}"'),
        f"A new version or new settings of {THE_RESOURCE} were refused",
        "The ones before go on. Apply corrected ones; `halimede rollback` returns to an earlier version of a Model.",
        "halimede describe {{ $labels.plural }} {{ $labels.name }} -n {{ $labels.namespace }}; halimede apply -f FILE",
        "commands.md#model-changes-and-rollback",
    ),
    Alert(
        "ModelNotReady",
        "warning",
        "5m",
        _unhealthy(f'plural=~"{FILES}", reason!~"{REFUSED}|{WAITING}"'),
        f"{THE_RESOURCE} is not ready",
        "Services that name it wait for it, or keep what they have.",
        "halimede describe {{ $labels.plural }} {{ $labels.name }} -n {{ $labels.namespace }}",
        "troubleshooting.md#by-reason",
    ),
    Alert(
        "TrainingFailed",
        "warning",
        "5m",
        _unhealthy(f'plural=~"{TRAININGS}", reason!~"{WAITING}"'),
        f"{THE_RESOURCE} does not advance",
        "The service goes on with its present model.",
        "halimede describe {{ $labels.plural }} {{ $labels.name }} -n {{ $labels.namespace }}",
        "training.md#failures",
    ),
    Alert(
        "FramesMissing",
        "warning",
        "0m",
        f"sum by ({SERVICE}) (increase(halimede_service_answers_total[10m])) == 0\n"
        f"  and sum by ({SERVICE}) (increase(halimede_service_answers_total[1d] offset 10m)) > 60\n"
        f"  and on ({SERVICE}) halimede_service_queued_frames >= 0",  # the service was not deleted
        f"Service {THE_SERVICE} has answered no frame for 10 minutes, and did within a day",
        "Its cameras are silent, its frames do not reach the broker, or its workers hang.",
        "halimede top; halimede doctor",
        "troubleshooting.md#by-symptom",
    ),
    Alert(
        "FramesLost",
        "warning",
        "0m",
        f"sum by ({SERVICE}) (increase(halimede_service_lost_frames_total[10m])) > 0",
        f"Service {THE_SERVICE} has lost {{{{ $value | humanize }}}} frames",
        "A worker ended before it could answer them.",
        "halimede describe {{ $labels.plural }} {{ $labels.service }} -n {{ $labels.namespace }}",
        "observability.md#lost-frames",
    ),
    Alert(
        "SessionLost",
        "warning",
        "0m",
        f"sum by ({WORKER}) (increase(halimede_worker_lost_sessions_total[10m])) > 0",
        f"The broker has lost the session of {THE_WORKER}",
        "Frames that the broker had accepted for it may be lost. A broker needs persistence to keep sessions when it "
        "restarts.",
        "halimede doctor",
        "security.md#sessions-of-edge-workers",
    ),
    Alert(
        "FramesRejected",
        "warning",
        "5m",
        # not the share of the answers alone: there may be none
        f"{_rate('halimede_service_rejected_frames_total')} / ({_rate('halimede_service_rejected_frames_total')} "
        f"+ {_rate('halimede_service_answers_total')}) > {BAD_SHARE}",
        f"Service {THE_SERVICE} refuses {{{{ $value | humanizePercentage }}}} of its frames",
        "They cannot be decoded, or do not fit the model.",
        "halimede events --type Warning",
        "troubleshooting.md#by-symptom",
    ),
    Alert(
        "ResultsUnreceived",
        "warning",
        "15m",
        f"{_share('halimede_service_unreceived_results_total', 'halimede_service_answers_total')} > {BAD_SHARE}",
        f"No client receives {{{{ $value | humanizePercentage }}}} of the results of service {THE_SERVICE}",
        "The program that reads the results does not run, or has lost its connection.",
        "halimede results -f {{ $labels.service }} -n {{ $labels.namespace }}",
        "observability.md#lost-frames",
    ),
    Alert(
        "AnswersLate",
        "warning",
        "2m",
        f"max by ({WORKER}) (halimede_worker_oldest_frame_seconds) > {LATE_S}",
        f"The oldest frame of {THE_WORKER} waits for {{{{ $value | humanizeDuration }}}}",
        "The model is slower than the camera, or the worker hangs.",
        "halimede top; halimede trace --last",
        "cameras.md#the-camera-process",
    ),
    Alert(
        "ResultsWait",
        "warning",
        "5m",
        f"min by ({WORKER}) (min_over_time(halimede_worker_outbox_results[2m])) > 0",
        f"{{{{ $value }}}} results of {THE_WORKER} wait for the broker",
        "The broker or the link is overloaded. When the outbox is full, the worker takes no more frames.",
        "halimede doctor",
        "scale.md#the-broker",
    ),
    Alert(
        "HardSamplesNotKept",
        "warning",
        "0m",
        f'sum by ({WORKER}) (increase(halimede_worker_unkept_samples_total{{reason="disk"}}[10m])) > 0',
        f"The disk refuses hard samples of {THE_WORKER}",
        "They are answered, but not stored for training.",
        "df -h",
        "hard-samples.md",
    ),
)
CLOUD = (
    Alert(
        "CloudAway",
        "critical",
        "5m",
        f"{_share('halimede_service_degraded_answers_total', 'halimede_service_answers_total')} > {DEGRADED_PROBLEM}",
        f"{{{{ $value | humanizePercentage }}}} of the answers of service {THE_SERVICE} are degraded",
        "The edge answers hard samples that the cloud should answer: the accuracy is that of the small model there.",
        "halimede describe {{ $labels.plural }} {{ $labels.service }} -n {{ $labels.namespace }}; halimede doctor",
        "troubleshooting.md#by-symptom",
    ),
    Alert(
        "AnswersDegraded",
        "warning",
        "10m",
        f"{_share('halimede_service_degraded_answers_total', 'halimede_service_answers_total')} > {DEGRADED_WARNING} "
        f"<= {DEGRADED_PROBLEM}",
        f"{{{{ $value | humanizePercentage }}}} of the answers of service {THE_SERVICE} are degraded",
        "The edge answers hard samples that the cloud should answer: the accuracy is that of the small model there.",
        "halimede describe {{ $labels.plural }} {{ $labels.service }} -n {{ $labels.namespace }}",
        "troubleshooting.md#by-symptom",
    ),
    Alert(
        "CircuitOpen",
        "warning",
        "5m",
        f"min by ({WORKER}) (halimede_worker_circuit_state) > 0\n"
        f"  and sum by ({WORKER}) (increase(halimede_worker_hard_samples_total[5m])) > 0",
        f"{THE_WORKER} sends no hard samples: its circuit breaker is open",
        "No worker of the next tier answers it.",
        "halimede get ji -A -o wide; halimede logs {{ $labels.halimede_service }} -n {{ $labels.halimede_namespace }}",
        "troubleshooting.md#by-symptom",
    ),
    Alert(
        "CloudTooSlow",
        "warning",
        "5m",
        "sum by (halimede_namespace, halimede_service) "
        '(rate(halimede_worker_degraded_answers_total{reason=~"shed|window-full"}[5m]))\n'
        "  > 0.1 * sum by (halimede_namespace, halimede_service) (rate(halimede_worker_hard_samples_total[5m]))",
        "The cloud takes fewer samples than are hard in service {{ $labels.halimede_namespace }}/"
        "{{ $labels.halimede_service }}",
        "The edge answers the others alone, and at once. Add cloud workers, or lower `targetUploadRatio`.",
        "halimede describe ji {{ $labels.halimede_service }} -n {{ $labels.halimede_namespace }}; halimede top",
        "uploads.md#overload",
    ),
    Alert(
        "Drift",
        "warning",
        "15m",
        f"max by ({SERVICE}) (halimede_service_drifting_workers) > 0",
        f"Samples of service {THE_SERVICE} differ from those of its calibration",
        "The accuracy that the calibration has measured is in doubt. Calibrate again, with new samples.",
        "halimede describe {{ $labels.plural }} {{ $labels.service }} -n {{ $labels.namespace }}",
        "uploads.md#drift",
    ),
    Alert(
        "EdgeModelFails",
        "critical",
        "2m",
        f"{_share('halimede_service_model_errors_total', 'halimede_service_answers_total')} > {DEGRADED_PROBLEM}",
        f"The model at the edge fails on {{{{ $value | humanizePercentage }}}} of the samples of service {THE_SERVICE}",
        "These samples count as hard, so uploads rise. `halimede rollback` returns to an earlier version of the Model.",
        "halimede describe {{ $labels.plural }} {{ $labels.service }} -n {{ $labels.namespace }}",
        "troubleshooting.md#by-reason",
    ),
    Alert(
        "ServerFails",
        "warning",
        "5m",
        f"{_share('halimede_serve_failures_total', 'halimede_serve_requests_total', 'model')} > 0.1",
        "{{ $value | humanizePercentage }} of the requests for model {{ $labels.model }} fail",
        "Clients of the server get errors; invalid requests count as well.",
        "halimede get im -A -o wide",
        "serving.md",
    ),
    Alert(
        "VersionRefused",
        "warning",
        "0m",
        "sum by (model) (increase(halimede_serve_refused_versions_total[15m])) > 0",
        "A server has refused a version of model {{ $labels.model }}",
        "The version before answers.",
        "halimede get im -A -o wide",
        "commands.md#model-changes-and-rollback",
    ),
    Alert(
        "CandidateRefused",
        "warning",
        "0m",
        "sum by (namespace, service, training_model) "
        '(increase(halimede_loop_candidates_total{outcome="refused"}[1h])) > 0',
        "The learning loop of service {{ $labels.namespace }}/{{ $labels.service }} has withdrawn a candidate",
        "The model before serves on. If each round ends so, its labels or its trainer are wrong.",
        "halimede loop {{ $labels.service }} -n {{ $labels.namespace }}",
        "learning-loop.md#states",
    ),
)
#: groups of rules by name
GROUPS = {"halimede-system": SYSTEM, "halimede-nodes": NODES, "halimede-services": SERVICES, "halimede-cloud": CLOUD}
