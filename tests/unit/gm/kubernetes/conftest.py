"""An API server in memory."""

from __future__ import annotations

import pytest

from tests.unit.gm.kubernetes.shelf import Shelf


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()
