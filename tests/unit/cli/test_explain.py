"""`halimede explain`: every field of every kind is found, and an unknown one names the nearest."""

from __future__ import annotations

from functools import cache

import pytest

from halimede.api import kinds
from halimede.api.crd.definition import definition
from halimede.api.crd.fields import field_at, resource
from tests.typed import typed


def explain(*words: str, code: int = 0) -> str:
    return typed("explain", *words, code=code).output


def test_it_shows_type_limits_default_and_meaning_of_each_field() -> None:
    shown = explain("ji.spec.edgeWorker")
    assert "FIELD:  spec.edgeWorker  <object>; required" in shown
    assert "  deadlineMs  <integer>; 1 to 600000; default 2000\n      Milliseconds that a hard sample" in shown
    assert '  fusion  <string>; one of cloud, mixture; default "cloud"' in shown
    assert "  hardExampleMining  <object>; required" in shown


def test_a_path_leads_through_lists_with_or_without_an_index() -> None:
    assert explain("ji.spec.tiers.maxBatchSize") == explain("ji.spec.tiers[0].maxBatchSize")
    assert "<integer>; 1 to 1024; default 32" in explain("ji.spec.tiers.maxBatchSize")


def test_recursive_shows_all_levels_with_indents() -> None:
    shown = explain("ji.spec.edgeWorker.model", "--recursive")
    assert "\n  selector  <object>\n    task  <string>; at most 128 characters\n" in shown


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("ji.spec.edgeWorkr", "did you mean spec.edgeWorker?"),
        ("ji.spec.cloudWorker.modl", "did you mean spec.cloudWorker.model?"),
        ("ji.deadlineMs", "did you mean spec.edgeWorker.deadlineMs?"),
        ("ji.spec.edgeWorker.deadlineMs.x", "spec.edgeWorker.deadlineMs has no fields"),
        ("dataset.spec.zzz", "use one of "),
        ("nothing", "use one of "),
    ],
)
def test_an_unknown_path_names_the_nearest(path: str, remedy: str) -> None:
    shown = explain(path, code=1)
    assert len(shown.splitlines()) == 1
    assert remedy in shown


def test_a_group_selects_among_kinds_of_one_name() -> None:
    assert "neptune.io/v1alpha1" in explain("ji", "--api-version", "neptune.io/v1alpha1")
    assert "use one of sedna.io/v1alpha1, neptune.io/v1alpha1" in explain("ji", "--api-version", "x/v1", code=1)


def test_every_field_of_every_kind_is_found_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.api.crd.fields.definition", cache(definition))  # else it is built for each path
    for kind in kinds():
        paths = [field.path for field in resource(kind).walk()]
        assert len(paths) > 20
        assert [field_at(kind, path.split(".")).path for path in paths] == paths
