"""Attack 6, frames: whatever a camera or a forger sends is refused, counted, acknowledged and dead-lettered.

The stream goes on, no frame is counted as accepted that was not answered, and nothing hostile reaches a model. Beside
it, what else comes by the sample topics: picture sizes (9), breaking frames (11), hostile reply topics (12) and forged
answers (13).
"""

from __future__ import annotations

from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import topics
from halimede.bus import Delivery
from halimede.errors import DecodeError
from halimede.frames import decode, encode_image, new_frame, open_payload, pack
from halimede.messages import Box, Frame, Prediction, Reply
from tests.hostile_pictures import jpeg_that_claims, png_that_claims
from tests.properties import examples
from tests.simulated import eventually
from tests.unit.worker.world import EASY, HARD, NS, SERVICE, world

pytestmark = [pytest.mark.simulated, pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")]

PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def frame(**changes: object) -> bytes:
    body = {"v": 1, "id": bytes(range(16)), "encoding": "raw", "dtype": "uint8", "shape": [2, 2], "data": b"\1\2\3\4"}
    return msgpack.packb({**body, **changes})


HOSTILE = {
    "truncated": frame()[:-1],
    "wrong type of id": frame(id="text of sixteen."),
    "short id": frame(id=bytes(8)),
    "unknown version": frame(v=99),
    "unknown encoding": frame(encoding="pickle"),
    "object dtype": frame(dtype="object"),
    "structured dtype": frame(dtype="u1,O"),
    "no shape": frame(shape=[]),
    "negative shape": frame(shape=[-1, 4]),
    "zero shape": frame(shape=[0, 4]),
    "shape of another size": frame(shape=[3, 3]),
    "shape that overflows": frame(shape=[65535, 65535, 65535, 65535]),
    "five axes": frame(shape=[1, 1, 1, 1, 4]),
    "shape of floats": frame(shape=[2.5, 2]),
    "data as text": frame(data="text"),
    "data as a list": frame(data=[1, 2, 3, 4]),
    "negative deadline": frame(deadlineMs=-1.0),
    "boxes of text": frame(edge={"boxes": [["x"] * 5]}),
    "an array, no map": msgpack.packb([1, 2, 3]),
    "a timestamp, no map": b"\xd6\xff\xff\xff\xff\xff",
    "a reserved byte": b"\xc1",
    "a map that claims 2**32 entries": b"\xdf\xff\xff\xff\xff",
    "a jpeg of three bytes": b"\xff\xd8\xff",
    "a png of its magic": b"\x89PNG\r\n\x1a\n",
    "a png of 65k x 65k": png_that_claims(65_000, 65_000),
    "a png of 2**31 pixels a side": png_that_claims(2**31 - 1, 2**31 - 1),
    "a png of 10k x 10k": png_that_claims(10_000, 10_000),
    "a jpeg of 65k x 65k": jpeg_that_claims(65_000, 65_000),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_attack_06_frames_hostile_ones_are_refused(name: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(open_payload(HOSTILE[name], "cam0"))
    assert len(str(caught.value)) < 500


@given(st.data())
@examples(300)
def test_attack_06_frames_with_spoiled_bytes_decode_or_are_refused(data: st.DataObject) -> None:
    encoding = data.draw(st.sampled_from(["raw", "png", "jpeg"]))
    whole = bytearray(pack(new_frame(PICTURE, encoding=encoding)))  # type: ignore[arg-type]
    if data.draw(st.booleans()):
        whole = bytearray(encode_image(PICTURE, "png"))
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        pixels = decode(open_payload(bytes(whole), "cam0"))
    except DecodeError:
        return
    assert pixels.size <= 64 * 1024 * 1024 * 3


async def test_attack_06_frames_of_every_kind_leave_the_stream_as_it_was(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0"):
        for number, payload in enumerate(HOSTILE.values()):
            await w.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera="cam0"), payload, qos=1)
            if number % 7 == 0:
                await w.answer(await w.send(EASY))
        last = await w.send(EASY)
        await w.answer(last)
        await eventually(lambda: w.info("e0").rejected == len(HOSTILE))
        info = w.info("e0")
        assert (info.lost, info.inference_number) == (0, len(w.results))
        intake = next(link for name, link in w.broker.links.items() if name.startswith(f"intake.{NS}.e0"))
        await eventually(lambda: not intake.session.unacknowledged)
        assert 1 <= len(w.letters) <= len(HOSTILE)


async def test_attack_06_frames_cannot_pretend_to_be_another_camera_or_to_hold_an_answer(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0"):
        forged = new_frame(np.full((2, 2), EASY, np.uint8), camera="another")
        forged.edge = Prediction(label="forged", score=1.0)
        await w.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera="cam0"), pack(forged))
        result = await w.answer(forged.id.hex())
        assert (result.camera, result.label, result.edge) == ("cam0", "small", None)


@pytest.mark.parametrize(
    "prediction",
    [
        Prediction(score=float("nan")),
        Prediction(probabilities=[0.5, float("inf")]),
        Prediction(boxes=[Box(0, 0, float("nan"), 1, 0.5)]),
    ],
)
async def test_attack_06_frames_get_no_result_that_holds_nan(tmp_path: Path, prediction: Prediction) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0", deadline_s=1.0):

        async def answer(delivery: Delivery[Frame]) -> None:
            await w.camera.reply(delivery, topics.REPLY, Reply(id=delivery.body.id, worker="c9", prediction=prediction))

        await w.camera.subscribe(topics.REQUEST.filter(group="g", ns=NS, service=SERVICE), answer)
        result = await w.answer(await w.send(HARD))
        assert (result.by, result.reason, result.label) == ("edge", "deadline", "small")
