"""The client of a connection, for tests of both clients."""

from __future__ import annotations

from typing import get_args

import pytest

from halimede.bus.settings import Client


@pytest.fixture(name="client", params=get_args(Client))
def _client(request: pytest.FixtureRequest) -> Client:
    """Each client in turn."""
    client: Client = request.param
    return client
