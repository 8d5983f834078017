"""The dashboards: what an operator looks at first is declared here, all other metrics follow from their declarations.

``fleet`` answers whether something needs a person, ``service`` has the rates, errors and durations of one service,
``node`` the use, saturation and errors of one node, ``broker`` the connections and messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scripts.monitoring.panels import RATE, Panel, Query, Scope, panels_of

#: of the metrics of services, and of their workers: the selection by the variables of the dashboard
SERVICE = 'namespace=~"$namespace", service=~"$service"'
WORKER = 'halimede_namespace=~"$namespace", halimede_service=~"$service"'
#: of the metrics of a node and of the workers on it
NODE = 'halimede_node=~"$node"'
#: of the ``process_*`` of our processes: without the role, ``.*`` matches those of all other programs
PROCESS = f'{NODE}, halimede_role!=""'
#: the variables of dashboards, with the query for their values
SERVICE_VARIABLES = {
    "namespace": "label_values(halimede_service_queued_frames, namespace)",
    "service": 'label_values(halimede_service_queued_frames{namespace=~"$namespace"}, service)',
}
NODE_VARIABLES = {"node": "label_values(halimede_gm_node_state, node)"}
#: labels that name a worker in a legend
ONE_WORKER = ("halimede_worker",)
#: alerts that fire
FIRING = 'ALERTS{alertname=~"Halimede.*", alertstate="firing"}'


@dataclass(frozen=True, slots=True)
class Row:
    """Panels below a title. ``collapsed``: they are shown, and queried, at a click."""

    title: str
    panels: list[Panel]
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard: its title, what it is for, its rows, and its variables by name with the query for their values."""

    title: str
    text: str
    rows: tuple[Row, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def dashboards() -> dict[str, Dashboard]:
    """Return all dashboards by name: ``halimede-NAME`` is the uid. Raises IncompleteError for an unknown metric."""
    return {"fleet": _fleet(), "service": _service(), "node": _node(), "broker": _broker()}


def _share(part: str, whole: str, selector: str, by: str) -> str:
    """Return the share of one counter's rate in that of another."""
    rates = [f"sum by ({by}) (rate({name}{{{selector}}}[{RATE}]))" for name in (part, whole)]
    return " / ".join(rates)


def _shares(selector: str) -> list[Panel]:
    """Return the panels of shares of answers, for each service."""
    parts = {
        "Answers by the cloud": ("cloud_answers", "Answers that the next tier gave."),
        "Hard samples": ("hard_samples", "Samples that the mining found hard."),
        "Degraded answers": ("degraded_answers", "Hard samples that the edge had to answer."),
    }
    by, answers = "namespace, service", "halimede_service_answers_total"
    return [
        Panel(
            title,
            (Query(_share(f"halimede_service_{name}_total", answers, selector, by), "{{namespace}}/{{service}}"),),
            "percentunit",
            f"{text} As a share of all answers.",
        )
        for title, (name, text) in parts.items()
    ]


def _number(title: str, expression: str, text: str = "", unit: str = "short") -> Panel:
    """Return a panel of one number."""
    return Panel(title, (Query(expression),), unit, text, "number")


def _table(title: str, expression: str, text: str = "") -> Panel:
    """Return a panel with a line for each series."""
    return Panel(title, (Query(expression),), "short", text, "table")


def _fleet() -> Dashboard:
    services = Scope("service_", SERVICE, ("namespace", "service"), ("node",))
    overview = [
        _number("Nodes online", "sum(halimede_gm_nodes_online)"),
        _number("Nodes known", "sum(halimede_gm_nodes)"),
        _number("Unhealthy resources", "count(halimede_gm_unhealthy_resources) or vector(0)"),
        _number("Alerts that fire", f"count({FIRING}) or vector(0)"),
        _number("Answers a second", f"sum(rate(halimede_service_answers_total[{RATE}]))", unit="cps"),
        _number("Frames inside workers", "sum(halimede_service_queued_frames)"),
        _table("Alerts that fire, by name", FIRING, "Empty on a calm system."),
        _table(
            "Unhealthy resources, by name",
            "max by (plural, namespace, name, phase, reason) (halimede_gm_unhealthy_resources)",
            "Empty on a calm system. docs/troubleshooting.md explains each reason.",
        ),
        _table("Nodes", "max by (node, drained) (halimede_gm_node_state)", "1: online."),
        _table("Versions", "count by (role, version) (halimede_build_info)", "Processes of each version."),
    ]
    each_service = [
        *panels_of(services, ["service_answers"]),
        *_shares(SERVICE),
        *panels_of(services, ["service_edge_seconds", "service_lost_frames"]),
    ]
    return Dashboard(
        "Halimede: fleet",
        "All nodes and services, and GM: whether something needs a person.",
        (
            Row("Overview", overview),
            Row("Services", each_service),
            Row("Global manager", panels_of(Scope("gm_"))),
            Row("Camera processes", panels_of(Scope("camera_", "", ("camera",))), collapsed=True),
            Row("Model servers", panels_of(Scope("serve_")), collapsed=True),
            Row("Routers", panels_of(Scope("router_")), collapsed=True),
        ),
        SERVICE_VARIABLES,
    )


def _service() -> Dashboard:
    services, workers = Scope("service_", SERVICE, ("service",), ("node",)), Scope("worker_", WORKER, ONE_WORKER)
    rates = ["service_answers", "service_cloud_answers", "service_hard_samples", "service_uploaded_bytes"]
    errors = [
        "service_degraded_answers", "service_lost_frames", "service_rejected_frames", "service_skipped_frames",
        "service_unreceived_results", "service_late_replies", "service_model_errors", "service_mining_errors",
        "service_withheld_samples",
    ]  # fmt: skip
    durations = ["service_edge_seconds", "service_offload_seconds", "service_queue_seconds", "service_compute_seconds"]
    uploads = Panel(
        "Uploads, and their target",
        (
            Query(
                _share("halimede_worker_uploads_total", "halimede_worker_answers_total", WORKER, "halimede_worker"),
                "{{halimede_worker}}",
            ),
            Query(f"max by (halimede_worker) (halimede_worker_upload_target_ratio{{{WORKER}}})", "target"),
        ),
        "percentunit",
        "Share of samples that went up, of each edge worker; with a budget also its target.",
    )
    shown = {panel.title for panel in panels_of(services, [*rates, *errors, *durations])}
    other = [panel for panel in panels_of(services) if panel.title not in shown]
    return Dashboard(
        "Halimede: service",
        "One service: rates, errors and durations of its samples, its uploads, its workers.",
        (
            Row("Rates", panels_of(services, rates)),
            Row("Shares and uploads", [*_shares(SERVICE), uploads]),
            Row("Errors", panels_of(services, errors)),
            Row("Durations", panels_of(services, durations)),
            Row("More of the service", other, collapsed=True),
            Row("Workers", panels_of(workers), collapsed=True),
            Row("Learning loop", panels_of(Scope("loop_", SERVICE, ("service",))), collapsed=True),
            Row("Training", panels_of(Scope("training_", WORKER, ONE_WORKER)), collapsed=True),
        ),
        SERVICE_VARIABLES,
    )


def _node() -> Dashboard:
    process = ("halimede_role", "halimede_worker")
    legend, by = "{{halimede_role}} {{halimede_worker}}", ", ".join(process)
    busy = f'rate(halimede_worker_edge_seconds_sum{{{NODE}, step="model"}}[{RATE}])'
    use = [
        Panel(
            "Processors",
            (Query(f"sum by ({by}) (rate(process_cpu_seconds_total{{{PROCESS}}}[{RATE}]))", legend),),
            "short",
            "Cores that each process of halimede uses.",
        ),
        Panel(
            "Memory",
            (Query(f"sum by ({by}) (process_resident_memory_bytes{{{PROCESS}}})", legend),),
            "bytes",
            "Resident memory of each process.",
        ),
        Panel(
            "Model calls",
            (Query(f"sum by (halimede_worker) ({busy})", "{{halimede_worker}}"),),
            "percentunit",
            "Share of time in which the model of an edge worker runs.",
        ),
    ]
    saturation = [
        *panels_of(
            Scope("worker_", NODE, ONE_WORKER),
            ["worker_queued_frames", "worker_outbox_results", "worker_oldest_frame_seconds", "worker_circuit_state"],
        ),
        Panel(
            "Open files",
            (
                Query(
                    f"sum by ({by}) (process_open_fds{{{PROCESS}}}) / sum by ({by}) (process_max_fds{{{PROCESS}}})",
                    legend,
                ),
            ),
            "percentunit",
            "Share of the files and sockets that a process may open.",
        ),
    ]
    errors = [
        *panels_of(Scope("lc_", NODE, ("halimede_node",)), ["lc_worker_restarts", "lc_refused_reports"]),
        Panel(
            "Failed checks",
            (
                Query(
                    f"sum by ({by}, check) (1 - halimede_health_check_state{{{NODE}}})",
                    "{{check}} " + legend,
                ),
            ),
            "short",
            "1: /healthz or /readyz names the check.",
        ),
    ]
    return Dashboard(
        "Halimede: node",
        "One node: use, saturation and errors of its local controller and workers.",
        (
            Row(
                "State",
                [
                    _table("Nodes", 'max by (node, drained) (halimede_gm_node_state{node=~"$node"})', "1: online."),
                    _table("Workers", f"sum by (halimede_node, role, phase) (halimede_lc_workers{{{NODE}}})"),
                ],
            ),
            Row("Use", use),
            Row("Saturation", saturation),
            Row("Errors", errors),
            Row("Local controller", panels_of(Scope("lc_", NODE, ("halimede_node",))), collapsed=True),
        ),
        NODE_VARIABLES,
    )


def _broker() -> Dashboard:
    clients = Scope("bus_", "", ("halimede_role", "halimede_node"))
    end = "min by (halimede_role, halimede_node, client) (halimede_bus_certificate_end_seconds) - time()"
    overview = [
        _number("Connected clients", "sum(halimede_bus_connected)"),
        _number("Clients without a connection", "count(halimede_bus_connected == 0) or vector(0)"),
        _number("Connections in an hour", "sum(increase(halimede_bus_connects_total[1h]))"),
        _number("Dead letters in an hour", "sum(increase(halimede_gm_dead_letters_total[1h]))"),
        Panel(
            "Time until a certificate ends",
            (Query(end, "{{client}}"),),
            "s",
            "Of each client with TLS: of its own certificate or that of the broker. Empty without TLS.",
        ),
        Panel(
            "Bytes through the broker",
            (
                Query(f"sum(rate(halimede_worker_uploaded_bytes_total[{RATE}]))", "uploaded samples"),
                Query(f"sum(rate(halimede_camera_bytes_total[{RATE}]))", "frames of camera processes"),
                Query(f"sum(rate(halimede_lc_sent_bytes_total[{RATE}]))", "files"),
            ),
            "Bps",
            "As their senders count them. The broker's own metrics ($SYS) are not read.",
        ),
    ]
    management = [
        "gm_downstream_messages", "gm_downstream_repeats", "gm_downstream_acknowledgements", "gm_api_request_seconds",
        "gm_intake_depth", "gm_intake_dropped_messages",
    ]  # fmt: skip
    return Dashboard(
        "Halimede: broker",
        "The connections of all processes to the broker, and what they send.",
        (
            Row("Overview", overview),
            Row("Clients", [panel for panel in panels_of(clients) if "certificate" not in panel.title]),
            Row("Management", panels_of(Scope("gm_"), management)),
            Row("Results", panels_of(Scope("worker_", "", ONE_WORKER), ["worker_outbox_results"])),
        ),
    )
