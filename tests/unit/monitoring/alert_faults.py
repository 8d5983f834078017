"""For each alert the series of a fault, and the seconds from its begin until the alert fires.

Series are promtool's, one value each 15 s. The fault begins after ten minutes of health.
"""

from __future__ import annotations

from dataclasses import dataclass

#: seconds between two values, and the number of healthy ones
STEP_S, HEALTHY = 15, 41
#: the number of values after the fault's begin: an hour and a half
FAULTY = 360


@dataclass(frozen=True)
class Fault:
    """What happens, in which series, the seconds until the alert fires, and whether it fires as long as the fault.

    ``watched_s``: for how many seconds after it fires; more than the ranges in its expression.
    """

    text: str
    series: dict[str, str]
    seconds: int
    lasts: bool = True
    watched_s: int = 600


def turns(before: str, after: str) -> str:
    """Return a gauge that changes from one value to another."""
    return f"{before}x{HEALTHY - 1} {after}x{FAULTY}"


def appears(value: str = "1") -> str:
    """Return a gauge that has no values before."""
    return f"_x{HEALTHY} {value}x{FAULTY}"


def grows(before: float, after: float) -> str:
    """Return a counter that grows by so much in each step."""
    end = before * (HEALTHY - 1) + after
    return f"0+{before:g}x{HEALTHY - 1} {end:g}+{after:g}x{FAULTY}"


SERVICE = 'plural="jointinferenceservices",namespace="default",service="digits"'
WORKER = (
    'halimede_namespace="default",halimede_service="digits",halimede_node="edge0",halimede_worker="digits-edge-edge0"'
)


def unhealthy_series(plural: str, phase: str, reason: str, name: str = "n") -> str:
    labels = f'plural="{plural}",namespace="default",name="{name}",phase="{phase}",reason="{reason}"'
    return f"halimede_gm_unhealthy_resources{{{labels}}}"


def unhealthy(plural: str, phase: str, reason: str, later: str) -> dict[str, str]:
    """Return a resource whose reason changes after half a minute."""
    return {
        unhealthy_series(plural, phase, reason): f"_x{HEALTHY} 1 1 stale",
        unhealthy_series(plural, phase, later): f"_x{HEALTHY + 2} 1x{FAULTY}",
    }


def share(counter: str, per_step: float) -> dict[str, str]:
    """Return a counter of a service that begins to grow, beside its answers: 10 a second."""
    growth = {counter: grows(0, per_step), "answers": grows(150, 150)}
    return {f"halimede_service_{name}_total{{{SERVICE}}}": values for name, values in growth.items()}


def fails(series: str) -> dict[str, str]:
    """Return a gauge that turns from 1 to 0."""
    return {series: turns("1", "0")}


def happens(text: str, series: str, times: int) -> Fault:
    """Return what raises an alert at once, and not for long."""
    return Fault(text, {series: turns("0", f"{times}")}, 0, lasts=False)


#: labels of processes
GM, EDGE0 = 'halimede_role="gm",client="halimede-gm"', 'halimede_node="edge0"'
OUTCOMES = 'namespace="default",service="digits",training_model="t"'
JOINT = "jointinferenceservices"
HARD = {f"halimede_worker_hard_samples_total{{{WORKER}}}": grows(40, 40)}

FAULTS = {
    "GlobalManagerDown": Fault("GM is killed", {"halimede_gm_epoch": f"1x{HEALTHY - 1} stale _x{FAULTY}"}, 120),
    "BrokerUnreachable": Fault("the broker stops", fails(f"halimede_bus_connected{{{GM}}}"), 120),
    "ProcessNotReady": Fault(
        "a model call hangs", fails(f'halimede_health_check_state{{{WORKER},check="model"}}'), 300
    ),
    "StoreNotWritable": Fault(
        "the disk of a node is full",
        fails(f'halimede_health_check_state{{halimede_role="lc",{EDGE0},check="store"}}'),
        60,
    ),
    "StoreLost": Fault("a node's store is deleted", fails(f"halimede_lc_store_complete{{{EDGE0}}}"), 300),
    "ProcessNotScraped": Fault(
        "a worker hangs", fails(f'up{{{WORKER},halimede_role="edge-worker",instance="127.0.0.1:9"}}'), 300
    ),
    "CertificateEnds": Fault(
        "a certificate has 13 days",
        {'halimede_bus_certificate_end_seconds{client="lc.edge0"}': turns(str(30 * 86400), str(13 * 86400))},
        3600,
    ),
    "VersionsDiffer": Fault(
        "a node is upgraded alone",
        {
            'halimede_build_info{role="gm",version="1"}': turns("1", "1"),
            'halimede_build_info{role="lc",version="2"}': appears(),
        },
        3600,
    ),
    "MessagesUnreadable": happens("a client publishes nonsense", "halimede_gm_dead_letters_total", 3),
    "ManagerOverloaded": Fault("a node floods GM", {"halimede_gm_intake_dropped_messages_total": grows(0, 100)}, 300),
    "NodeOffline": Fault(
        "a local controller is killed", fails('halimede_gm_node_state{node="edge0",drained="false"}'), 300
    ),
    "NodeOutOfSync": Fault(
        "GM does not answer a node",
        {f"halimede_lc_sync_age_seconds{{{EDGE0}}}": f"100x{HEALTHY - 1} 115+15x{FAULTY}"},
        855,
    ),
    "ReportsRefused": Fault(
        "access rules are too narrow", {f"halimede_lc_refused_reports_total{{{EDGE0}}}": grows(0, 1)}, 300
    ),
    "WorkerRestarts": Fault(
        "a worker ends every 15 s",
        {f"halimede_lc_worker_restarts_total{{{EDGE0}}}": grows(0, 1)},
        30,
        watched_s=1800,
    ),
    "CameraSilent": Fault(
        "a camera is unplugged", fails('halimede_camera_running{camera="cam0",instance="127.0.0.1:9"}'), 120
    ),
    "CameraUnread": Fault(
        "no worker reads a camera",
        {'halimede_camera_frames_without_subscriber_total{camera="cam0"}': grows(0, 75)},
        300,
    ),
    "ServiceFailed": Fault("all edge workers fail", unhealthy(JOINT, "Failed", "CannotStart", "WorkerFailed"), 60),
    "ServiceDegraded": Fault(
        "the cloud worker cannot start", unhealthy(JOINT, "Degraded", "NodeOffline", "CannotStart"), 300
    ),
    "RolloutRefused": Fault(
        "a version is broken", unhealthy(JOINT, "Degraded", "SettingsRefused", "RolloutFailed"), 60
    ),
    "ModelNotReady": Fault(
        "a file has another digest", unhealthy("models", "Failed", "FetchFailed", "DigestMismatch"), 300
    ),
    "TrainingFailed": Fault(
        "a trainer fails", unhealthy("trainingmodels", "Failed", "CannotStart", "TrainerFails"), 300
    ),
    "FramesMissing": Fault(
        "frames stop to arrive",
        {
            f"halimede_service_answers_total{{{SERVICE}}}": grows(150, 0),
            f"halimede_service_queued_frames{{{SERVICE}}}": turns("0", "0"),
        },
        585,
        watched_s=STEP_S * FAULTY,
    ),
    "FramesLost": happens("a worker is killed", f"halimede_service_lost_frames_total{{{SERVICE}}}", 4),
    "SessionLost": happens("a broker restarts empty", f"halimede_worker_lost_sessions_total{{{WORKER}}}", 1),
    "FramesRejected": Fault(
        "all cameras send another format",
        {
            f"halimede_service_rejected_frames_total{{{SERVICE}}}": grows(0, 150),
            f"halimede_service_answers_total{{{SERVICE}}}": grows(150, 0),
        },
        315,
    ),
    "ResultsUnreceived": Fault("the program that reads results ends", share("unreceived_results", 150), 915),
    "AnswersLate": Fault(
        "the model is slower than the camera",
        {f"halimede_worker_oldest_frame_seconds{{{WORKER}}}": f"0x{HEALTHY - 1} 15+15x{FAULTY}"},
        150,
    ),
    "ResultsWait": Fault(
        "the broker is overloaded", {f"halimede_worker_outbox_results{{{WORKER}}}": turns("0", "20")}, 420
    ),
    "HardSamplesNotKept": happens(
        "the worker's disk is full", f'halimede_worker_unkept_samples_total{{{WORKER},reason="disk"}}', 1
    ),
    "CloudAway": Fault("the cloud's link is cut", share("degraded_answers", 120), 480),
    "AnswersDegraded": Fault("the cloud's link is slow", share("degraded_answers", 30), 750),
    "CircuitOpen": Fault(
        "no cloud worker runs", {f"halimede_worker_circuit_state{{{WORKER}}}": turns("0", "2"), **HARD}, 300
    ),
    "CloudTooSlow": Fault(
        "the cloud is too slow for what is hard",
        {f'halimede_worker_degraded_answers_total{{{WORKER},reason="shed"}}': grows(0, 20), **HARD},
        360,
    ),
    "Drift": Fault("the light changes", {f"halimede_service_drifting_workers{{{SERVICE}}}": turns("0", "1")}, 900),
    "EdgeModelFails": Fault("a model does not fit its input", share("model_errors", 150), 270),
    "ServerFails": Fault(
        "requests are invalid",
        {
            'halimede_serve_failures_total{model="m"}': grows(0, 30),
            'halimede_serve_requests_total{model="m"}': grows(150, 150),
        },
        450,
    ),
    "VersionRefused": happens("a version is broken", 'halimede_serve_refused_versions_total{model="m"}', 1),
    "CandidateRefused": happens(
        "a candidate is worse than the model", f'halimede_loop_candidates_total{{{OUTCOMES},outcome="refused"}}', 1
    ),
}
#: an hour that needs no person: traffic, and what the system mends by itself
CALM = {
    "halimede_gm_epoch": "1x240",
    "halimede_gm_dead_letters_total": "7x240",
    "halimede_gm_intake_dropped_messages_total": "0x240",
    # a reconnect, the restart of a node, a service that starts: each shorter than its alert waits
    'halimede_bus_connected{halimede_role="gm",client="halimede-gm"}': "1x100 0x4 1x134",
    'halimede_gm_node_state{node="edge0",drained="false"}': "1x60 0x12 1x166",
    'halimede_gm_node_state{node="edge1",drained="true"}': "0x240",
    'up{halimede_role="lc",halimede_node="edge0",instance="127.0.0.1:9"}': "1x60 0x12 1x166",
    unhealthy_series(JOINT, "Degraded", "NodeOffline", "digits"): "_x61 1x12 stale _x165",
    # what waits as it should
    unhealthy_series("models", "Pending", "Downloading", "big"): "1x80 stale",
    unhealthy_series(JOINT, "Pending", "ModelNotReady", "new"): "1x80 stale",
    unhealthy_series("incrementallearningjobs", "Pending", "TooFewSamples"): "1x240",
    unhealthy_series("trainingmodels", "Pending", "DatasetNotReady"): "1x80 stale",
    unhealthy_series(JOINT, "Degraded", "NodeDrained", "drained"): "1x240",
    f'halimede_health_check_state{{{WORKER},check="work"}}': "1x30 0x3 1x206",
    'halimede_health_check_state{halimede_role="lc",halimede_node="edge0",check="store"}': "1x240",
    'halimede_lc_store_complete{halimede_node="edge0"}': "1x60 0x2 1x177",
    'halimede_lc_sync_age_seconds{halimede_node="edge0"}': " ".join(["0+15x20"] * 12),
    'halimede_lc_refused_reports_total{halimede_node="edge0"}': "2x240",
    'halimede_lc_worker_restarts_total{halimede_node="edge0"}': "4x80 5x80 6x80",
    'halimede_bus_certificate_end_seconds{client="lc.edge0"}': "31536000x240",
    'halimede_build_info{role="gm",version="1"}': "1x240",
    'halimede_build_info{role="lc",version="1"}': "1x240",
    'halimede_camera_running{camera="cam0",instance="127.0.0.1:9"}': "1x20 0x3 1x216",
    'halimede_camera_frames_without_subscriber_total{camera="cam0"}': "12x240",
    f"halimede_service_answers_total{{{SERVICE}}}": "0+150x240",
    f"halimede_service_queued_frames{{{SERVICE}}}": "0x240",
    # a service that stops, with all its nodes' counts, is deleted later
    'halimede_service_answers_total{namespace="default",service="deleted"}': "0+150x80 12000x41 stale",
    'halimede_service_queued_frames{namespace="default",service="deleted"}': "0x100 stale",
    f"halimede_service_degraded_answers_total{{{SERVICE}}}": "0+7x240",
    f"halimede_service_lost_frames_total{{{SERVICE}}}": "2x240",
    f"halimede_service_rejected_frames_total{{{SERVICE}}}": "0+1x240",
    f"halimede_service_unreceived_results_total{{{SERVICE}}}": "0+2x240",
    f"halimede_service_model_errors_total{{{SERVICE}}}": "0+1x240",
    f"halimede_service_drifting_workers{{{SERVICE}}}": "0x100 1x20 0x119",
    f"halimede_worker_lost_sessions_total{{{WORKER}}}": "1x240",
    f"halimede_worker_oldest_frame_seconds{{{WORKER}}}": "0.2x100 40x2 0.2x137",
    f"halimede_worker_outbox_results{{{WORKER}}}": "0x100 30x8 0x131",
    f'halimede_worker_unkept_samples_total{{{WORKER},reason="busy"}}': "0+1x240",
    f"halimede_worker_circuit_state{{{WORKER}}}": "0x100 2x8 0x131",
    # nothing is hard, so nothing closes the circuit breaker
    'halimede_worker_circuit_state{halimede_worker="idle"}': "2x240",
    'halimede_worker_hard_samples_total{halimede_worker="idle"}': "7x240",
    f'halimede_worker_degraded_answers_total{{{WORKER},reason="shed"}}': "0+1x240",
    f"halimede_worker_hard_samples_total{{{WORKER}}}": "0+40x240",
    'halimede_serve_failures_total{model="m"}': "0+1x240",
    'halimede_serve_requests_total{model="m"}': "0+150x240",
    'halimede_serve_refused_versions_total{model="m"}': "1x240",
    f'halimede_loop_candidates_total{{{OUTCOMES},outcome="refused"}}': "1x240",
}
