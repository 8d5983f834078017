"""A pytest plugin of ``make test-brokers``: only tests that use the broker under test run."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests over the broker in memory, and those that start a Mosquitto of their own."""
    chosen = [item for item in items if isinstance(item, pytest.Function) and _uses_broker(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _uses_broker(test: pytest.Function) -> bool:
    parameters = test.callspec.params if hasattr(test, "callspec") else {}
    if "_broker_of_world" in parameters:
        return bool(parameters["_broker_of_world"] != "memory")
    return "mosquitto" in test.fixturenames or "test_access_matrix" in test.nodeid
