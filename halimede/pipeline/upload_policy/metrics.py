"""What deferral did, for Prometheus: the budget and how it is held, what was withheld, audits, drift."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from halimede.messages.counters import Count, ExportedBy
from halimede.observe.metrics import Samples, counter, gauge, ledger_counters
from halimede.pipeline.upload_policy.budget import Budget
from halimede.pipeline.upload_policy.policy import UploadPolicy
from halimede.stats.agreement import agreement_of
from halimede.stats.ledger import Ledger


def figures(triage: UploadPolicy, ledger: Ledger) -> Iterator[Metric]:
    """Return the figures of one worker; counts go on over a restart, reasons are this process's own."""
    yield from ledger_counters(ledger, ExportedBy.UPLOAD_POLICY)
    withheld = [({"reason": reason}, n) for reason, n in sorted(triage.withheld.items())]
    yield counter("worker_withheld_samples", "Hard samples that were not sent up, by reason.", withheld)
    yield from _of_budget(triage.budget, ledger)
    found = agreement_of(ledger.info())
    bounds = [({"bound": name}, getattr(found, name)) for name in ("value", "low", "high")] if found else []
    text = "Share of answers that are the next tier's, estimated from audits, with its 95 % interval."
    yield gauge("worker_agreement_ratio", text, bounds)
    drift = triage.drift
    state: Samples = [({}, float(drift.drifting))] if drift else []
    yield gauge("worker_drift_state", "1 if samples differ from those of the calibration, else 0.", state)
    changes = [({"of": name}, value) for name, value in drift.figures().items()] if drift else []
    text = "Change since calibration: of hardness and classes (stability index), of agreement (share lost)."
    yield gauge("worker_drift_index", text, changes)


def _of_budget(budget: Budget | None, ledger: Ledger) -> Iterator[Metric]:
    answered = ledger[Count.ANSWERED]
    error = ledger[Count.UPLOADED] / answered - budget.target if budget and answered else 0.0
    for name, text, value in (
        ("target_ratio", "Share of samples that shall go up.", budget.target if budget else None),
        ("error_ratio", "Share of uploaded samples so far, minus the target.", error if budget else None),
        ("cut_hardness", "Hardness from which samples go up; infinite while none may.", budget.cut if budget else None),
    ):
        yield gauge(f"worker_upload_{name}", text, [] if value is None else value)
