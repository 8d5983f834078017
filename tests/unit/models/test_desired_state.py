"""The file that says which model a process answers with, as it is followed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from halimede.models.desired_state import Desired, DesiredModel, changes, write
from tests.waiting import patience


async def test_a_place_that_cannot_be_looked_at_is_waited_for(tmp_path: Path) -> None:
    place, wish = tmp_path / "worker", Desired(models=[DesiredModel(name="m", path="/m.onnx")])
    place.write_text("no folder")
    following = changes(place / "model.json", "MODEL_FILE")
    found = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0.1)
    assert not found.done()
    place.unlink()
    write(place / "model.json", wish)
    async with asyncio.timeout(patience(30)):
        assert await found == wish
