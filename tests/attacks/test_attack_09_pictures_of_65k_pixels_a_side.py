"""Attack 9: a small file that claims 65k x 65k pixels. It is refused by its header: decoded it would take 12 GiB.

At workers, attack 30 sends such files among others: their memory stays where it is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.codec import MAX_BYTES
from halimede.errors import DecodeError
from halimede.frames import decode, new_id
from halimede.frames.encodings import measure
from halimede.messages import Frame
from tests.hostile_pictures import jpeg_that_claims, png_that_claims
from tests.integration.workers import Worker
from tests.serving_world import Server

pytestmark = pytest.mark.timeout(180)

MIB = 1024 * 1024
CLAIMS = {
    "png": [png_that_claims(65_000, 65_000), png_that_claims(2**31 - 1, 1), png_that_claims(10_000, 10_000)],
    "jpeg": [jpeg_that_claims(65_000, 65_000), jpeg_that_claims(65_535, 1), jpeg_that_claims(10_000, 10_000)],
}
EACH = [(encoding, data) for encoding, files in CLAIMS.items() for data in files]


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
