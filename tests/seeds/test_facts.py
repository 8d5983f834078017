"""Each fact of the documents that define the system holds for the product: on one machine, and on Kubernetes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import cluster, machine
from tests.seeds.facts import CHECKS, FACTS, KEYS, MANIFESTS, WORLDS, check, facts, with_columns

#: a real API server and six systems on it, all at once
PATIENCE = 300


@pytest.fixture(scope="module", name="machine")
def on_one_machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return machine.documents(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module", name="kubernetes")
def on_kubernetes(tmp_path_factory: pytest.TempPathFactory, real_server: tuple[Path, bool] | None) -> dict[str, Any]:
    lives = cluster.documents(real_server, tmp_path_factory.mktemp("kubernetes"), MANIFESTS)
    return with_columns(asyncio.run(lives))


def rows() -> list[Any]:
    slow = {"kubernetes": [pytest.mark.slow, pytest.mark.timeout(PATIENCE)]}
    return [
        pytest.param(world, fact, marks=slow.get(world, ()), id=f"{world}:{fact['document']}:{fact['path']}")
        for world in WORLDS
        for fact in facts(world)
    ]


def test_the_table_names_what_it_is_about_and_nothing_twice() -> None:
    assert all(len(CHECKS & fact.keys()) == 1 and fact.keys() <= KEYS for fact in FACTS)
    assert all(fact.get("only", "machine") in WORLDS and ("kubernetes" not in fact or "note" in fact) for fact in FACTS)
    named = [tuple(sorted((key, str(value)) for key, value in fact.items())) for fact in FACTS]
    assert len(named) == len(set(named)) > 100


@pytest.mark.parametrize(("world", "fact"), rows())
def test_the_product_has_the_fact(world: str, fact: dict[str, Any], request: pytest.FixtureRequest) -> None:
    check(fact, request.getfixturevalue(world))
