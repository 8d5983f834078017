"""Which Models a service gets that selects them."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.api import Resource, parse
from halimede.messages import ChosenModel, ServedVersion, Status
from services.gm.controllers.model import MAX_STATUS_VERSIONS, remember_version
from services.gm.model_selection import choices, with_chosen_models
from tests.integration.gm_world import model, service


def selecting(**selector: Any) -> Resource[Any]:
    body = service()
    body["metadata"] |= {"uid": "u", "generation": 4}
    body["spec"]["edgeWorker"]["model"] = {"selector": selector or {"task": "t"}}
    return parse(body)


def one(name: str, value: str = "", **spec: Any) -> Resource[Any]:
    metrics = [{"key": "accuracy", "value": value}] if value else []
    return parse(model(name, task="t", metrics=metrics, **spec))


def chosen(*models: Resource[Any], before: str = "", changes: int = 0, **selector: Any) -> ChosenModel:
    known = [ChosenModel(worker="edge", model=before, changes=changes)] if before else []
    [found] = choices(selecting(**selector), models, known)
    return found


CATS = one("cats", "0.9", labels=["cat"])
BOTH = parse(model("both", labels=["cat", "dog"], metrics=[{"key": "f1", "value": "0.1"}]))
PLAIN, NORTH = one("plain", "0.9"), one("north", "0.5", metadata={"site": "north", "owner": "vision"})
GOING = parse({**model("going", task="t"), "metadata": {"name": "going", "deletionTimestamp": "2026-01-01T00:00:00Z"}})


@pytest.mark.parametrize(
    ("models", "selector", "best"),
    [
        ([one("a", "0.5"), one("b", "0.9")], {}, "b"),
        ([one("b", "0.9"), one("a", "0.9")], {}, "a"),
        ([one("a"), one("b", "0.1")], {}, "b"),
        ([one("a"), one("b", "nonsense")], {}, "a"),
        ([one("a", "9"), one("b", "10")], {}, "b"),
        ([parse(model("other", task="x"))], {}, ""),
        ([GOING], {}, ""),
        ([], {}, ""),
        ([CATS, BOTH], {"labels": ["dog"]}, "both"),
        ([CATS, BOTH], {"labels": ["cat"]}, "cats"),
        ([CATS, BOTH], {"labels": ["cat"], "metric": "f1"}, "both"),
        ([PLAIN, NORTH], {"metadata": {"site": "north"}}, "north"),
        ([PLAIN, NORTH], {"task": "t", "metadata": {"site": "north", "owner": "vision"}}, "north"),
        ([PLAIN, NORTH], {"metadata": {"site": "north", "owner": "audio"}}, ""),
        ([PLAIN, NORTH], {"task": "t"}, "plain"),
    ],
)
def test_of_the_models_with_all_that_is_required_the_highest_measure_wins_then_the_name(
    models: list[Resource[Any]], selector: dict[str, Any], best: str
) -> None:
    assert chosen(*models, **selector).model == best


def test_as_good_is_no_reason_to_change_and_better_is() -> None:
    assert chosen(one("a", "0.9"), one("b", "0.9"), before="b") == ChosenModel(worker="edge", model="b")
    better = chosen(one("a", "0.91"), one("b", "0.9"), before="b", changes=2)
    assert better == ChosenModel(worker="edge", model="a", changes=3)


def test_changes_are_counted_for_as_long_as_the_service_is_there() -> None:
    status = Status(chosen=[ChosenModel(worker="edge", model="best", changes=3)])
    made = with_chosen_models(selecting(), status)
    assert (made.metadata.generation, made.spec.edge_worker.model.name) == (7, "best")
    assert made.body["metadata"]["generation"] == 7
    named = parse({**service(), "metadata": {"name": "helmet", "uid": "u", "generation": 5}})
    assert with_chosen_models(named, status).metadata.generation == 8
    [kept] = choices(named, [], status.chosen)
    assert (kept.model, kept.changes) == ("", 3)


def test_versions_stand_once_the_latest_first_and_are_no_more_than_there_is_room_for() -> None:
    versions: list[ServedVersion] = []
    for i in range(MAX_STATUS_VERSIONS + 5):
        versions = remember_version(versions, ServedVersion(version=str(i), digest=f"{i:064}"))
    assert [each.version for each in versions] == [str(i) for i in range(14, 4, -1)]
    again = remember_version(versions, versions[3])
    assert [each.version for each in again][:3] == ["11", "14", "13"]
    assert remember_version(again, again[0]) == again
