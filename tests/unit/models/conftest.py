"""These tests' servers are on this machine, which the fetcher leaves alone unless its operator says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.models import Cache
from halimede.models.address_policy import VARIABLE


@pytest.fixture(autouse=True)
def _servers_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "loopback")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")
