"""Attack 9: a small file that claims 65k x 65k pixels. It is refused by its header, at the edge and in the cloud.

Decoded it would take 12 GiB. The worker's memory stays where it is, the refusal is counted, the next frame answered.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest

from halimede.codec import MAX_BYTES
from halimede.errors import DecodeError
from halimede.frames import decode, new_frame, new_id
from halimede.frames.encodings import measure
from halimede.messages import Frame
from tests.digits import Digits
from tests.hostile_pictures import jpeg_that_claims, png_that_claims
from tests.integration.workers import Site, Worker
from tests.requester import Requester
from tests.serving_world import Server
from tests.simulated import eventually

pytestmark = pytest.mark.timeout(180)

MIB = 1024 * 1024
CLAIMS = {
    "png": [png_that_claims(65_000, 65_000), png_that_claims(2**31 - 1, 1), png_that_claims(10_000, 10_000)],
    "jpeg": [jpeg_that_claims(65_000, 65_000), jpeg_that_claims(65_535, 1), jpeg_that_claims(10_000, 10_000)],
}
EACH = [(encoding, data) for encoding, files in CLAIMS.items() for data in files]
TIMES = 20


def peak(worker: Worker | Server) -> int:
    """Return the most memory that a process has ever had, in bytes."""
    for line in Path(f"/proc/{worker.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("this system does not say")


def frame(encoding: str, data: bytes) -> Frame:
    assert len(data) < MAX_BYTES
    return Frame(id=new_id(), encoding=encoding, data=memoryview(data))  # type: ignore[arg-type]


@pytest.mark.parametrize(("encoding", "data"), EACH)
def test_attack_09_it_is_refused_before_anything_is_decoded(encoding: str, data: bytes) -> None:
    for read in (measure, decode):
        with pytest.raises(DecodeError, match="pixels"):
            read(frame(encoding, data))


async def test_attack_09_at_an_edge_worker(s: Site, digits: Digits) -> None:
    edge = await s.run_edge(digits.small)
    await s.send_all(digits.pictures[:20])
    before = peak(edge)
    for _ in range(TIMES):
        for _, data in EACH:
            await s.publish(data)
    await s.send_all(digits.pictures[:20])
    await eventually(lambda: s.counts(s.edge).rejected == TIMES * len(EACH))
    assert peak(edge) - before < 32 * MIB
    await eventually(lambda: s.counts(s.edge).inference_number == len(s.sent))
    assert s.counts(s.edge).lost == 0
    assert any("pixels" in letter.reason for letter in s.letters)


async def test_attack_09_at_a_cloud_worker(s: Site, digits: Digits) -> None:
    cloud = s.start("cloud", s.cloud, digits.big)
    await s.running(s.cloud)
    requester = await Requester(s).listen()
    assert (await requester.ask(new_frame(np.zeros((8, 8), np.uint8)))).prediction is not None
    before = peak(cloud)
    for number in range(TIMES * len(EACH)):
        reply = await requester.ask(frame(*EACH[number % len(EACH)]), s.cloud if number % 2 else "")
        assert (reply.prediction, reply.error) == (None, "invalid")
        assert "pixels" in reply.message
    assert (await requester.ask(new_frame(np.ones((8, 8), np.uint8)))).prediction is not None
    assert peak(cloud) - before < 32 * MIB
    await eventually(lambda: s.counts(s.cloud).rejected == TIMES * len(EACH))
    assert psutil.pid_exists(cloud.process.pid)
