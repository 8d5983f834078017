"""Two global managers with different stores never share a broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.broker import MosquittoProcess
from tests.faults.control import Child
from tests.simulated import eventually

CONNECTED = '"client": "halimede-gm"'


@contextmanager
def gm(store: Path, broker: MosquittoProcess, log: Path) -> Iterator[Child]:
    command = [sys.executable, "-m", "halimede", "gm", "--store", str(store), "--broker", broker.url]
    child = Child(command, log, {"HALIMEDE_LOG": "json"})
    try:
        yield child
    finally:
        child.kill()


async def test_a_second_gm_with_another_store_is_refused_and_the_first_goes_on(
    tmp_path: Path, mosquitto: MosquittoProcess
) -> None:
    store = tmp_path / "first"
    with gm(store, mosquitto, tmp_path / "first.log") as first:
        await eventually(lambda: first.says(CONNECTED), 20)
        with gm(tmp_path / "second", mosquitto, tmp_path / "second.log") as second:
            await eventually(lambda: second.process.poll() is not None, 20)
        assert second.process.returncode == 2
        assert "another global manager" in second.log.read_text().splitlines()[-1]
        assert first.process.poll() is None
    # its will says that it is gone, so its successor on the same store may come at once
    with gm(store, mosquitto, tmp_path / "again.log") as again:
        await eventually(lambda: again.says(CONNECTED), 20)
        assert await again.stop() == 0
