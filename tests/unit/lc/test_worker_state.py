"""What is computed of a worker's state: its phase, its patience, whether it can change its model, and its trouble."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from halimede.messages import ModelInUse, WorkerInfo
from halimede.models.desired_state import Desired, DesiredModel
from services.lc.paths import NodePaths
from services.lc.store import NodeStore
from services.lc.supervisor.process import Process, ProcessSpec, Start
from services.lc.supervisor.rollout_keeper import can_swap, model_report, trouble
from services.lc.supervisor.silence import hang_limit_s, is_late, patience_s
from services.lc.supervisor.supervisor import Supervisor, exit_text, grace
from services.lc.supervisor.worker_rollout import Refusal, RefusedSettings, WorkerRollout
from services.lc.supervisor.worker_state import ReportTimes, WorkerState, failure, phase_of
from tests.integration.lc_world import EDGE, HELMET, FakeLauncher
from tests.simulated import suspend

pytestmark = pytest.mark.simulated

MODEL = DesiredModel(name="small", path="/a", version="2", digest="a" * 64)
PROCESS = cast("Process", object())
OURS, SCRIPT = ("python", "-m", "halimede", "worker"), ("python", "script.py")


def info(status: Any, reason: str = "", message: str = "", model: ModelInUse | None = None) -> WorkerInfo:
    return WorkerInfo(
        name="w", namespace="default", owner_name="s", status=status, reason=reason, message=message, model=model
    )


def worker(argv: tuple[str, ...] = SCRIPT, env: dict[str, str] | None = None, **fields: Any) -> WorkerState:
    """A worker whose service has the model; ``fields``: of its state."""
    start = Start(EDGE, HELMET, "u1", "edge", ProcessSpec(argv, env or {}, ""), desired=Desired(models=[MODEL]))
    entry = WorkerState(EDGE, HELMET, "u1", "edge", "hash", "hash", start)
    for name, value in fields.items():
        setattr(entry, name, value)
    return entry


RUNS: dict[str, Any] = {"process": PROCESS}
ENDED: dict[str, Any] = {"failures": 1, "ending": "exit code 1"}
NEEDS_PERSON: dict[str, Any] = {**ENDED, "failures": 1, "needs_person": True, "ending": "exit code 2"}
LOOPS: dict[str, Any] = {**RUNS, **ENDED, "failures": 3}
CRASHED = "Failed", "CrashLoopBackOff", "exit code 1"
LATE = {**NEEDS_PERSON, "failure_report": info("failed", "HemUnknown", "use Margin")}
STUCK = "halimede worker: ModelStuck: it hangs"
MISTAKE = "halimede edge worker: SERVICE_NAME: write a name"


@pytest.mark.parametrize(
    ("fields", "ran_s", "expected"),
    [
        ({}, 0, ("Pending", "Starting", "")),
        ({**RUNS, "info": info("failed", "ModelInvalid", "no inputs")}, 0, ("Failed", "ModelInvalid", "no inputs")),
        ({**RUNS, "info": info("failed")}, 0, ("Failed", "WorkerFailed", "")),
        ({**RUNS, "info": info("starting", "ModelInvalid", "no inputs")}, 0, ("Failed", "ModelInvalid", "no inputs")),
        ({**RUNS, "info": info("starting")}, 99, ("Pending", "Starting", "")),
        ({**RUNS, "info": info("running", "Overloaded", "slow")}, 0, ("Running", "Overloaded", "slow")),
        ({**RUNS, "info": info("completed", "Done", "all")}, 0, ("Running", "", "")),
        ({**RUNS, "info": info("running"), "reports": ReportTimes(silence="x")}, 0, ("Running", "WorkerSilent", "x")),
        ({**RUNS, "reports": ReportTimes(unconnected="y")}, 4.9, ("Pending", "NotConnected", "y")),
        ({**RUNS, "info": info("running"), "reports": ReportTimes(unconnected="y")}, 0, ("Running", "", "")),
        (RUNS, 4.9, ("Pending", "Starting", "")),
        (RUNS, 5.0, ("Running", "", "")),
        ({**RUNS, "patience_s": 30.0}, 29.9, ("Pending", "Starting", "")),
        ({**RUNS, "argv": OURS}, 999, ("Pending", "Starting", "")),
        ({**RUNS, "argv": OURS, "adopted": True}, 0, ("Running", "", "")),
        (ENDED, 0, ("Pending", "Restarting", "exit code 1")),
        ({**ENDED, "info": info("failed", "Own")}, 0, ("Pending", "Restarting", "exit code 1")),
        ({**ENDED, "info": info("starting", "Own")}, 99, ("Pending", "Restarting", "exit code 1")),
        ({**ENDED, "info": info("running")}, 99, ("Pending", "Restarting", "exit code 1")),
        ({**ENDED, "failures": 2, "last_log_line": "oh"}, 0, ("Pending", "Restarting", "exit code 1: oh")),
        ({**ENDED, "failures": 3}, 0, CRASHED),
        (LOOPS, 29.9, CRASHED),
        (LOOPS, 30.0, ("Running", "", "")),
        ({**LOOPS, "info": info("starting")}, 29.9, CRASHED),
        ({**LOOPS, "info": info("starting")}, 30.0, ("Pending", "Starting", "")),
        ({**LOOPS, "info": info("running")}, 0, ("Running", "", "")),
        ({**LOOPS, "info": info("completed")}, 29.9, CRASHED),
        ({**LOOPS, "info": info("completed")}, 30.0, ("Running", "", "")),
        (NEEDS_PERSON, 0, ("Failed", "InvalidConfiguration", "exit code 2")),
        ({**NEEDS_PERSON, "reason": "HostPathMissing"}, 0, ("Failed", "HostPathMissing", "exit code 2")),
        ({**NEEDS_PERSON, **RUNS}, 29.9, ("Failed", "InvalidConfiguration", "exit code 2")),
        ({**NEEDS_PERSON, **RUNS}, 30.0, ("Running", "", "")),
        ({**NEEDS_PERSON, "last_log_line": STUCK}, 0, ("Failed", "ModelStuck", f"exit code 2: {STUCK}")),
        ({**NEEDS_PERSON, "last_log_line": MISTAKE}, 0, ("Failed", "InvalidConfiguration", f"exit code 2: {MISTAKE}")),
        ({**LATE, "last_log_line": "x"}, 0, ("Failed", "HemUnknown", "exit code 2: use Margin")),
    ],
)
def test_the_phase_of_a_worker_follows_from_its_process_its_reports_and_its_failures(
    fields: dict[str, Any], ran_s: float, expected: tuple[str, str, str]
) -> None:
    entry = worker(**fields, since=100.0)
    assert phase_of(entry, 100.0 + ran_s) == expected
    entry.stop.set()
    assert phase_of(entry, 100.0 + ran_s) == ("Pending", "Stopping", "")


def test_the_text_of_a_failure_has_the_last_line_of_the_log_if_there_is_no_report() -> None:
    for report, expected in ((info("failed"), "ended: line"), (info("failed", "R", "report"), "ended: report")):
        assert failure(worker(ending="ended", last_log_line="line", failure_report=report)) == expected


@pytest.mark.parametrize(
    ("code", "text"),
    [(None, "ended (exit code unknown)"), (-9, "killed by signal 9"), (0, "exit code 0"), (1, "exit code 1")],
)
def test_an_end_is_named_by_its_code_or_signal(code: int | None, text: str) -> None:
    assert exit_text(code) == text


@pytest.mark.parametrize(
    ("fields", "waited_s", "expected"),
    [
        ({**RUNS, "info": info("running", model=ModelInUse())}, 0, True),
        ({**RUNS, "info": info("starting", model=ModelInUse())}, 0, False),
        ({**RUNS, "info": info("running")}, 0, False),
        ({"info": info("running", model=ModelInUse())}, 0, False),
        (RUNS, 4.9, None),
        (RUNS, 5.0, False),
        ({**RUNS, "adopted": True}, 29.9, None),
        ({**RUNS, "adopted": True}, 30.0, False),
    ],
)
async def test_a_worker_can_change_its_model_if_it_has_reported_one(
    fields: dict[str, Any], waited_s: float, expected: bool | None
) -> None:
    entry = worker(**fields)
    suspend(waited_s)
    assert can_swap(entry) is expected
    entry.stop.set()
    assert can_swap(entry) is False


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"period_s": 3.0}, 10.0),
        ({"period_s": 20.0}, 60.0),
        ({}, float("inf")),
        ({"argv": OURS}, float("inf")),
        ({"argv": OURS, "adopted": True}, 10.0),
        ({"argv": OURS, "adopted": True, "info": info("running")}, float("inf")),
        ({"argv": SCRIPT, "adopted": True}, float("inf")),
        ({"start": None, "adopted": True}, float("inf")),
    ],
)
def test_a_worker_that_reports_has_three_of_its_periods_and_ten_seconds_at_least(
    fields: dict[str, Any], expected: float
) -> None:
    assert patience_s(worker(**fields)) == expected


@pytest.mark.parametrize(
    ("timeout", "limit_s"),
    [("", 70), ("4.9", 15), ("5", 15), ("5.1", 15.1), ("0.1", 15), ("0.09", 70), ("86400", 86_410), ("86401", 70)],
)
def test_a_worker_may_hang_for_ten_seconds_beyond_its_model_timeout(timeout: str, limit_s: float) -> None:
    assert hang_limit_s(worker(env={"MODEL_TIMEOUT_S": timeout})) == pytest.approx(limit_s)
    assert hang_limit_s(worker(start=None)) == 70


@pytest.mark.parametrize("status", ["starting", "running", "completed", "failed", None])
def test_a_report_is_late_while_the_process_runs_and_is_not_stopped(status: Any) -> None:
    entry = worker(**RUNS, period_s=3.0, info=info(status) if status else None, reports=ReportTimes(last_at=100.0))
    assert [is_late(entry, now, 5.0, 2.0) for now in (106.0, 106.1)] == [False, status not in {"completed", "failed"}]
    entry.process = None
    assert not is_late(entry, 200.0, 5.0, 2.0)
    entry.process = PROCESS
    entry.stop.set()
    assert not is_late(entry, 200.0, 5.0, 2.0)


def test_the_grace_is_that_of_the_settings_and_ten_seconds_without_a_plan() -> None:
    assert (grace(worker()), grace(worker(start=None))) == (10.0, 10.0)


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    """A supervisor that starts nothing."""
    tasks = cast("asyncio.TaskGroup", None)
    return Supervisor(
        NodePaths(tmp_path, "edge0"), FakeLauncher(), cast("NodeStore", None), tasks,
        changed=lambda _: None, missing=lambda _: None, connected=lambda: True, adopted=lambda _: None,
    )  # fmt: skip


async def test_a_stop_waits_for_the_longest_grace_and_twelve_seconds_at_most(supervisor: Supervisor) -> None:
    await supervisor.stop_all()
    assert asyncio.get_running_loop().time() == 0
    supervisor._entries[EDGE] = worker(task=asyncio.create_task(asyncio.sleep(60)))
    await supervisor.stop_all()
    assert asyncio.get_running_loop().time() == 10 + 1 + 10 + 1


REFUSED = WorkerRollout(refused=Refusal(model_mark=MODEL.fingerprint, digest="b", reason="Bad", message="two inputs"))
OTHER = WorkerRollout(refused=Refusal(model_mark="other", reason="Bad"))
SETTINGS = WorkerRollout(refused_settings=RefusedSettings(spec_hash="hash", message="exit code 2"))
NEW = "version 2 of model small was refused"
OLD_SETTINGS = "it cannot start with its new settings, the previous ones are kept: exit code 2"


@pytest.mark.parametrize(
    ("rollout", "error", "report", "expected"),
    [
        (WorkerRollout(), "", None, ("", "")),
        (OTHER, "", ModelInUse(), ("", "")),
        (REFUSED, "", None, ("RolloutFailed", f"{NEW}, the previous version is kept: Bad: two inputs")),
        (REFUSED, "", ModelInUse(), ("RolloutFailed", f"{NEW}, the previous version is kept: Bad: two inputs")),
        (REFUSED, "x", ModelInUse(version="1"), ("RolloutFailed", f"{NEW}, version 1 is kept: Bad: two inputs")),
        (OTHER, "full disk", ModelInUse(reason="Own", message="own"), ("RolloutFailed", "full disk")),
        (OTHER, "", ModelInUse(reason="Own", message="own"), ("RolloutFailed", "own")),
        (OTHER, "", ModelInUse(reason="Own", message="own", refused="c" * 64), ("", "")),
        (SETTINGS, "x", None, ("SettingsRefused", OLD_SETTINGS)),
    ],
)
def test_a_worker_that_runs_without_its_settings_or_model_says_why(
    rollout: WorkerRollout, error: str, report: ModelInUse | None, expected: tuple[str, str]
) -> None:
    entry = worker(info=info("running", model=report))
    entry.assignment.rollout, entry.assignment.error = rollout, error
    assert trouble(entry) == expected


@pytest.mark.parametrize(
    ("status", "own", "reason"),
    [("running", "", "RolloutFailed"), ("running", "Overloaded", "Overloaded"), ("starting", "", "Starting")],
)
async def test_a_running_worker_without_a_reason_of_its_own_reports_its_trouble(
    supervisor: Supervisor, status: str, own: str, reason: str
) -> None:
    entry = worker(**RUNS, info=info(status, own))
    entry.assignment.rollout = REFUSED
    assert supervisor.report(entry).reason == reason


@pytest.mark.parametrize(
    ("rollout", "report", "expected"),
    [
        (REFUSED, None, None),
        (WorkerRollout(), ModelInUse(version="1"), ModelInUse(version="1")),
        (OTHER, ModelInUse(version="1"), ModelInUse(version="1")),
        (REFUSED, ModelInUse(refused="c"), ModelInUse(refused="c")),
        (REFUSED, ModelInUse(version="1"), ModelInUse(version="1", refused="b", reason="Bad", message="two inputs")),
    ],
)
def test_the_report_on_a_model_has_what_was_refused_before_a_restart(
    rollout: WorkerRollout, report: ModelInUse | None, expected: ModelInUse | None
) -> None:
    entry = worker(info=info("running", model=report))
    entry.assignment.rollout = rollout
    assert model_report(entry) == expected


def test_the_files_of_the_next_process_are_those_of_the_proven_and_the_desired_model_and_others() -> None:
    entry = worker()
    entry.assignment.rollout = WorkerRollout(good=DesiredModel(name="small", path="/good"))
    start = Start(EDGE, HELMET, "u1", "edge", ProcessSpec((), {}, ""), Path("/first"), files=(Path("/code"),))
    for settings, files in ((entry.start, "/good /a"), (start, "/good /first /code"), (None, "")):
        entry.start = settings
        assert entry.files == tuple(Path(file) for file in files.split())
