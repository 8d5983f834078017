"""These tests' servers are on this machine, which the fetcher leaves alone unless its operator says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halimede.models import Cache
from halimede.models.address_policy import VARIABLE
from tests.origins import Origin, serving


@pytest.fixture(autouse=True)
def _servers_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "loopback")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def origin(request: pytest.FixtureRequest) -> Iterator[Origin]:
    """Serve the ``BODY`` of the test's module."""
    with serving(request.module.BODY) as origin:
        yield origin
