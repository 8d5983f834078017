"""Attack 10: pictures that inflate. Memory is bounded by the size that was checked, time by passes over that size.

What a bomb hides outside of its pixels (texts, profiles, animations, thumbnails) is never inflated at all.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from halimede.errors import DecodeError
from halimede.frames import decode
from halimede.frames.encodings import measure
from halimede.image_headers import MAX_CHUNKS, MAX_SEGMENTS, MAX_TABLES, read_jpeg, read_png
from tests.attacks.test_attack_09_pictures_of_65k_pixels_a_side import MIB, frame, peak
from tests.digits import Digits, slow
from tests.hostile_pictures import PNG_MAGIC, chunk, jpeg, jpeg_with_scans, jpeg_with_segments, png, zeros
from tests.integration.workers import ROOT, Site
from tests.programs import run_python
from tests.requester import Requester
from tests.simulated import eventually

pytestmark = pytest.mark.timeout(400)

GIB_OF_ZEROS = zeros(1024)
BOMB = png(4000, 4000)
#: workers keep 256 MiB of decoded frames, and need some more while they decode one
ENOUGH_MIB = 500
REMARKS = {
    "zTXt": chunk(b"zTXt", b"Comment\0\0" + GIB_OF_ZEROS),
    "iTXt": chunk(b"iTXt", b"Comment\0\1\0\0\0" + GIB_OF_ZEROS),
    "iCCP": chunk(b"iCCP", b"profile\0\0" + GIB_OF_ZEROS),
    "many zTXt": chunk(b"zTXt", b"Comment\0\0" + zeros(1)) * 3000,
    "many iCCP": chunk(b"iCCP", b"profile\0\0" + zeros(1)) * 3000,
    "an animation": chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)) + chunk(b"fdAT", bytes(4) + GIB_OF_ZEROS),
}


def cost(encoding: str, data: bytes, folder: Path) -> tuple[float, int]:
    """Decode in a process of its own; return the seconds of CPU that it took, and the most memory it had."""
    (folder / "bomb").write_bytes(data)
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from halimede.errors import DecodeError\n"
        "from halimede.frames import decode\n"
        "from halimede.messages import Frame\n"
        "frame = Frame(id=bytes(16), encoding=sys.argv[1], data=memoryview(Path(sys.argv[2]).read_bytes()))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF)\n"
        "try:\n    decode(frame)\nexcept DecodeError:\n    pass\n"
        "after = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(after.ru_utime - before.ru_utime, after.ru_maxrss)\n"
    )
    run = run_python("-c", code, encoding, folder / "bomb", check=True, cwd=ROOT, timeout_s=120)
    seconds, kibibytes = run.stdout.split()
    return float(seconds), int(kibibytes) * 1024


def is_cheap(bomb: bytes, folder: Path, within_s: float) -> None:
    """Insist that a bomb of 8 x 8 pixels costs about as much memory as a plain picture, and little time."""
    seconds, memory = cost("png", bomb, folder)
    _, plain = cost("png", png(8, 8), folder)
    assert memory - plain < len(bomb) * 4 + 8 * MIB
    assert seconds < within_s


@pytest.mark.parametrize("name", list(REMARKS))
def test_attack_10_what_is_beside_the_pixels_is_never_inflated(name: str, tmp_path: Path) -> None:
    bomb = png(8, 8, REMARKS[name])
    assert decode(frame("png", bomb)).shape == (8, 8, 3)
    assert b"".join(read_png(memoryview(bomb)).parts) == png(8, 8)
    is_cheap(bomb, tmp_path, 2)


def test_attack_10_pixel_data_beyond_the_picture_is_not_inflated(tmp_path: Path) -> None:
    bomb = png(8, 8, pixels=GIB_OF_ZEROS)
    assert measure(frame("png", bomb)) == 8 * 8 * 3
    is_cheap(bomb, tmp_path, 5)


@pytest.mark.parametrize("scans", [500, 50_000])
def test_attack_10_a_jpeg_of_endless_scans_is_refused_by_the_work_that_it_asks_for(scans: int) -> None:
    with pytest.raises(DecodeError, match="scans"):
        decode(frame("jpeg", jpeg_with_scans(2048, scans)))


def test_attack_10_a_usual_progressive_jpeg_is_none() -> None:
    assert decode(frame("jpeg", jpeg_with_scans(2048, 4))).shape == (2048, 2048)
    assert read_jpeg(memoryview(jpeg(64, 64, progressive=True))).scans < 16


@pytest.mark.parametrize(
    ("encoding", "data", "said"),
    [
        ("png", PNG_MAGIC + png(8, 8)[8:33] + chunk(b"IDAT", b"") * (MAX_CHUNKS + 1) + png(8, 8)[33:], "chunks"),
        ("jpeg", jpeg_with_segments(MAX_SEGMENTS + 1), "segments"),
        ("jpeg", jpeg_with_segments(MAX_TABLES // 69 + 1, b"\xff\xdb\x00\x43\x00" + b"\1" * 64), "tables"),
    ],
)
def test_attack_10_more_parts_than_any_writer_makes_are_refused(encoding: str, data: bytes, said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        decode(frame(encoding, data))


@pytest.mark.slow
async def test_attack_10_an_edge_worker_decodes_no_more_than_it_has_memory_for(s: Site, digits: Digits) -> None:
    """Files of 48 KB are 46 MiB each once they are decoded, and the model is slow and wants them whole."""
    edge = await s.run_script("edge", slow(1.0, role="edge"), MODEL_SPEC="")
    await s.send_all(digits.pictures[:2])
    before = peak(edge)
    await s.send([BOMB] * 16, fps=500)
    await s.answered(90)
    assert set(s.copies.values()) == {1}
    assert (peak(edge) - before) / MIB < ENOUGH_MIB
    await eventually(lambda: s.counts(s.edge).inference_number == len(s.sent))


@pytest.mark.slow
async def test_attack_10_a_cloud_worker_takes_no_more_at_once_than_it_has_memory_for(s: Site, digits: Digits) -> None:
    cloud = await s.run_script("cloud", slow(0.02), MODEL_SPEC="")
    requester = await Requester(s).listen()
    for data in digits.pictures[:10]:
        await requester.ask(frame("png", data))
    before = peak(cloud)
    await asyncio.gather(*(requester.send(frame("png", BOMB)) for _ in range(20)))
    await eventually(lambda: len(set(requester.read(lambda reply: reply.id))) == 30, 270)
    assert all(reply.prediction is not None for reply in requester.bodies)
    assert (peak(cloud) - before) / MIB < ENOUGH_MIB
