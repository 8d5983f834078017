"""Which Models a service gets that selects them."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.api import Resource, parse
from halimede.messages import ChosenModel, ServedVersion, Status
from services.gm.controllers.model import MOST_VERSIONS, remember_version
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


@pytest.mark.parametrize(
    ("models", "best"),
    [
        ([one("a", "0.5"), one("b", "0.9")], "b"),
        ([one("b", "0.9"), one("a", "0.9")], "a"),
        ([one("a"), one("b", "0.1")], "b"),
        ([one("a"), one("b", "nonsense")], "a"),
        ([one("a", "9"), one("b", "10")], "b"),
        ([parse(model("other", task="x"))], ""),
        ([], ""),
    ],
)
def test_the_highest_measure_wins_then_the_name(models: list[Resource[Any]], best: str) -> None:
    assert chosen(*models).model == best


def test_as_good_is_no_reason_to_change_and_better_is() -> None:
    assert chosen(one("a", "0.9"), one("b", "0.9"), before="b") == ChosenModel(worker="edge", model="b")
    assert chosen(one("a", "0.91"), one("b", "0.9"), before="b", changes=2) == ChosenModel(
        worker="edge", model="a", changes=3
    )


def test_a_model_must_know_all_labels_and_be_measured_by_the_metric_that_is_asked_for() -> None:
    cats = one("cats", "0.9", labels=["cat"])
    both = parse(model("both", labels=["cat", "dog"], metrics=[{"key": "f1", "value": "0.1"}]))
    assert chosen(cats, both, labels=["dog"]).model == "both"
    assert chosen(cats, both, labels=["cat"]).model == "cats"
    assert chosen(cats, both, labels=["cat"], metric="f1").model == "both"


def test_a_model_must_have_all_metadata_that_a_selector_requires() -> None:
    plain = one("plain", "0.9")
    north = one("north", "0.5", metadata={"site": "north", "owner": "vision"})
    assert chosen(plain, north, metadata={"site": "north"}).model == "north"
    assert chosen(plain, north, task="t", metadata={"site": "north", "owner": "vision"}).model == "north"
    assert chosen(plain, north, metadata={"site": "north", "owner": "audio"}).model == ""
    assert chosen(plain, north, task="t").model == "plain"


def test_one_that_is_being_deleted_is_none() -> None:
    going = parse(put_deleted(model("going", task="t")))
    assert chosen(going).model == ""


def put_deleted(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


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
    for i in range(MOST_VERSIONS + 5):
        versions = remember_version(versions, ServedVersion(version=str(i), digest=f"{i:064}"))
    assert [each.version for each in versions] == [str(i) for i in range(14, 4, -1)]
    again = remember_version(versions, versions[3])
    assert [each.version for each in again][:3] == ["11", "14", "13"]
    assert remember_version(again, again[0]) == again
