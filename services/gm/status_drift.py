"""The condition that says that a service's samples are no longer what it was calibrated for. Pure.

It stands beside the phase: the service runs, and answers, but what calibration promised of its answers is in doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from halimede.messages import Condition, TaskInfo
from halimede.stats.agreement import Estimate

DRIFT = "Drift"
BEGUN, OVER = "SamplesChanged", "SamplesAsCalibrated"


def drift_condition(
    earlier: Sequence[Condition],
    counted: Iterable[TaskInfo],
    agreement: Estimate | None,
    generation: int,
    now: str,
) -> Condition | None:
    """Return the condition as it stands now; None: there has been no drift yet.

    ``counted`` is what workers say of themselves, ``agreement`` how often answers are the cloud's.
    """
    before = next((condition for condition in earlier if condition.type == DRIFT), None)
    drifting = sum(info.drifting for info in counted)
    if before is None and not drifting:
        return None
    status: Literal["True", "False"] = "True" if drifting else "False"
    same = before is not None and before.status == status
    return Condition(
        type=DRIFT,
        status=status,
        observed_generation=generation,
        last_heartbeat_time=now,
        last_transition_time=before.last_transition_time if before and same else now,
        reason=BEGUN if drifting else OVER,
        message=_message(drifting, agreement),
    )


def _message(drifting: int, agreement: Estimate | None) -> str:
    found = ""
    if agreement:
        low, high = 100 * agreement.low, 100 * agreement.high
        found = f"; {100 * agreement.value:.1f} % of answers are the cloud's ({low:.1f} to {high:.1f} by audits)"
    if not drifting:
        return f"samples are again as they were when it was calibrated{found}"
    who = "1 worker sees" if drifting == 1 else f"{drifting} workers see"
    return f"{who} other samples than it was calibrated for{found}: calibrate again (`halimede calibrate`)"
