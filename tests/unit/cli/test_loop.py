"""What `halimede loop` shows of a service's learning loop, and the command that begins a round."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pytest

from halimede.cli.commands.loop import document, find, kubectl, line, lines, next_command, row, state_of
from halimede.errors import HalimedeError
from halimede.health_checks.resources import examine_kind
from halimede.learning_loop.states import LoopState, RoundRecord
from halimede.stats.agreement import Estimate

RECORD = RoundRecord(
    round=1, trigger="Drift", version="again-0123456789ab", outcome="RolledOut", reason="CanaryAuditsHold",
    gain=Estimate(0.2, 0.1, 0.3), before=Estimate(0.7, 0.6, 0.8), after=Estimate(0.95, 0.9, 0.98), ended_s=1e9,
)  # fmt: skip
STATE = LoopState(
    state="Labelling", since_s=1e9, round=2, trigger="Command", base="again-0123456789ab", rolled_out=1,
    history=[RECORD],
)  # fmt: skip


def body(name: str = "again", service: str = "digits", state: LoopState | None = STATE) -> dict[str, Any]:
    status = {
        "phase": "Labelling",
        "conditions": [{"type": "Labelling", "reason": "Command", "message": "12 of 800 labelled samples"}],
        "loop": msgspec.to_builtins(state) if state else None,
    }
    spec = {"model": {"name": "small"}, "loop": {"service": {"name": service}, "command": 3}}
    metadata = {"name": name, "namespace": "default"}
    kind = {"apiVersion": "sedna.io/v1alpha1", "kind": "TrainingModel"}
    return {**kind, "metadata": metadata, "spec": spec, "status": status}


class Api:
    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.bodies = list(bodies)

    async def list(self, plural: str, namespace: str) -> tuple[list[dict[str, Any]], bool]:
        assert (plural, namespace) == ("trainingmodels", "default")
        return self.bodies, False


def test_the_state_is_shown_with_versions_counts_and_the_last_rounds() -> None:
    shown = "\n".join(lines(body(), STATE, {"labelled": "12", "labelledEasy": "5", "canaryAnswered": "100"}))
    for part in ("Labelling since 2001-09-09 01:46:40", "Command: 12 of 800 labelled samples", "again-0123456789ab",
                 "1 rolled out, 0 candidates refused", "12 samples, 5 of them easy"):  # fmt: skip
        assert part in shown
    assert row(RECORD)[6:] == ("+0.200 (+0.100 to +0.300)", "0.700 (0.600 to 0.800)", "0.950 (0.900 to 0.980)")
    assert row(RoundRecord(round=2, trigger="Drift", outcome="Withdrawn", reason="TimedOut"))[6:] == ("-", "-", "-")


def test_a_change_is_one_line_and_the_whole_state_is_json() -> None:
    assert line(body()) == "round 2 Labelling Command: 12 of 800 labelled samples"
    assert document(body())["history"][0]["gain"] == {"value": 0.2, "low": 0.1, "high": 0.3}
    assert document(body(state=None)) == {"name": "again", "phase": "Labelling"}


async def test_a_service_without_a_loop_is_an_error_that_names_what_to_do() -> None:
    with pytest.raises(HalimedeError, match=r"spec\.loop\.service\.name is helmets"):
        await find(Api(body()), "helmets", "default")  # type: ignore[arg-type]
    with pytest.raises(HalimedeError, match="again, more have a loop"):
        await find(Api(body(), body("more")), "digits", "default")  # type: ignore[arg-type]
    assert (await find(Api(body(), body("b", "other")), "digits", "default"))["metadata"]["name"] == "again"  # type: ignore[arg-type]


def test_a_state_of_a_newer_version_is_an_error_and_none_is_the_first_state() -> None:
    with pytest.raises(HalimedeError, match="newer halimede"):
        state_of({"status": {"loop": {"state": "Dreaming"}}})
    assert state_of({}) == LoopState()


def test_on_kubernetes_it_prints_the_command_that_begins_a_round() -> None:
    words = shlex.split(kubectl(body(), 4))
    assert words[:3] == ["kubectl", "patch", "trainingmodels.sedna.io"]
    assert words[-1] == '{"spec": {"loop": {"command": 4}}}'


def test_a_command_begins_a_round_also_after_a_manifest_with_a_lower_number() -> None:
    assert next_command(body()) == 4
    assert next_command(body(state=msgspec.structs.replace(STATE, served=7))) == 8


def test_states_of_a_loop_are_no_problem() -> None:
    assert examine_kind("tm", [body()]) == []
