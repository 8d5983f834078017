from __future__ import annotations

from collections.abc import Mapping

import pytest

from halimede.inference import Model
from tests.staged import open_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Model]:
    return open_models(tmp_path_factory.mktemp("models"))
