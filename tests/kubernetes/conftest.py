"""The API server for tests: see ``apiserver``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.apiserver import ASSETS, Api, kind_of_server, on_double, on_server
from tests.kubernetes.binaries import Binaries


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, bool] | None]:
    """The kubeconfig of a real server, and whether its controllers run; None: the double serves."""
    kind = kind_of_server()
    if kind == "cluster":
        yield Path(os.environ["KUBECONFIG"]), True
    elif kind == "binaries":
        binaries = Binaries(Path(os.environ[ASSETS]), tmp_path_factory.mktemp("apiserver"))
        try:
            yield binaries.start(), False
        finally:
            binaries.stop()
    else:
        yield None


@pytest.fixture
async def api(real_server: tuple[Path, bool] | None, tmp_path: Path) -> AsyncIterator[Api]:
    """An API server, with a namespace of the test's own."""
    server = on_server(real_server[0], tmp_path, managed=real_server[1]) if real_server else on_double(tmp_path)
    async with server as found:
        yield found


@pytest.fixture
async def secured(api: Api, tmp_path: Path) -> AsyncIterator[Api]:
    """The API server over TLS: kubectl sends no token in plain text."""
    if api.double is None:
        yield api
        return
    (tmp_path / "tls").mkdir()
    async with on_double(tmp_path / "tls", tls=True) as found:
        yield found
