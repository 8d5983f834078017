"""Attack 30: raw frames of NaN and Inf, and pictures that lie about their size, at every scale of decoding.

Each is refused at the door, with its name: no native code writes beyond an array, and workers answer good frames all
the while, without more memory or files.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from halimede.frames import encode_image, new_frame, pack
from tests.attacks.test_attack_09_pictures_of_65k_pixels_a_side import MIB, frame, peak
from tests.digits import Digits
from tests.hostile_pictures import (
    jpeg,
    jpeg_of_kind,
    jpeg_that_claims,
    jpeg_that_hides,
    jpeg_with_rows,
    jpeg_with_two_sizes,
    jpeg_without_a_height,
    lossless_jpeg,
    png_that_claims,
)
from tests.integration.workers import PREPROCESS, ROOT, Site, Worker
from tests.programs import run_python
from tests.requester import Requester
from tests.simulated import eventually

pytestmark = pytest.mark.timeout(300)

#: pictures that lie, and what their refusal says
LIES = {
    "a jpeg of gigabytes": (jpeg_that_claims(65_000, 65_000), "65000 x 65000 pixels"),
    "a png of gigabytes": (png_that_claims(65_000, 65_000), "65000 x 65000 pixels"),
    "more pixels than bytes": (jpeg_that_claims(8000, 8000), "8000 x 8000 pixels"),
    "more pixels than bytes, progressive": (jpeg_that_claims(8000, 8000, progressive=True), "8000 x 8000 pixels"),
    "one long row": (jpeg_that_claims(16_384, 1000), "16384 x 1000 pixels"),
    "rows that its scan does not have": (jpeg_with_rows(jpeg(64, 64), 96), "pixels of the jpeg are missing"),
    "no row": (jpeg_that_claims(8, 0), "8 x 0 pixels"),
    "a height behind the scan": (jpeg_without_a_height(), "8 x 0 pixels"),
    "two sizes": (jpeg_with_two_sizes(4000, 4000), "its header is broken"),
    "a lossless picture, which has no smaller scale": (lossless_jpeg(1000, 1000), "SOF3"),
    "a lossless picture inside another one": (jpeg_that_hides(lossless_jpeg(64, 64), jpeg(64, 64)), "broken"),
    "12 bits": (jpeg_of_kind(0xC1, 12), "SOF1 with 12 bits"),
    "a progressive picture that is none": (jpeg_of_kind(0xC2), "damaged"),
    "a png of more pixels than bytes": (png_that_claims(2000, 2000), "damaged"),
}
NO_NUMBERS = {name: np.full((8, 8), value, np.float32) for name, value in (("nan", np.nan), ("inf", -np.inf))}
#: how often workers get all of them
TIMES = 10
#: open files and sockets of a worker vary by the connections of whoever asks for its metrics
FILES = 8
#: a picture is decoded in colours, or grey
STEPS = {"edge": [PREPROCESS[1], PREPROCESS[0], *PREPROCESS[2:]], "cloud": PREPROCESS}

CHILD = """
import sys
from pathlib import Path
from types import SimpleNamespace
from halimede.errors import DecodeError
from halimede.frames.encodings import decode
from halimede.frames.payloads import open_payload
frame = open_payload(Path(sys.argv[1]).read_bytes(), "")
for scale in (1, 2, 4, 8):
    for grey in (False, True):
        try:
            print(decode(frame, SimpleNamespace(grey=grey, scale=lambda *_: scale)).shape)
        except DecodeError as error:
            print(error)
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""


def decoded(folder: Path, data: bytes) -> tuple[list[str], int]:
    """Decode at each scale in a process of its own; return what it says, and the most memory that it had."""
    (folder / "picture").write_bytes(data)
    run = run_python("-c", CHILD, folder / "picture", cwd=ROOT)
    assert (run.returncode, run.stderr) == (0, "")
    *lines, kibibytes = run.stdout.splitlines()
    return lines, int(kibibytes) * 1024


@pytest.mark.parametrize("name", list(LIES))
def test_attack_30_a_picture_that_lies_is_refused_at_each_scale_in_the_memory_of_a_small_one(
    name: str, tmp_path: Path
) -> None:
    data, text = LIES[name]
    lines, memory = decoded(tmp_path, data)
    assert len(lines) == 8
    assert all(text in line for line in lines), lines
    _, plain = decoded(tmp_path, jpeg(64, 64))
    assert memory - plain < 32 * MIB


def scaled(role: str) -> dict[str, str]:
    """Return the changes for a worker of the digits' models that decodes at a smaller scale."""
    spec = {
        "url": "/none", "format": "onnx", "labels": list("0123456789"), "decode": "scaled",
        "preprocess": STEPS[role], "postprocess": {"output": "probabilities"},
    }  # fmt: skip
    return {"MODEL_SPEC": json.dumps(spec)}


def photo(picture: bytes) -> bytes:
    """Return a picture of a digit as a camera has it: a JPEG of 640 x 640, decoded at 1/8."""
    with Image.open(io.BytesIO(picture)) as small:
        large = np.asarray(small.convert("RGB").resize((640, 640), Image.Resampling.NEAREST))
    return encode_image(large, "jpeg", 90)


class Usage:
    """What a worker has taken since it began its work: memory and open files."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.process = worker, psutil.Process(worker.process.pid)
        self.memory, self.files = peak(worker), self.process.num_fds()

    def check(self) -> None:
        assert self.worker.process.poll() is None
        assert peak(self.worker) - self.memory < 48 * MIB
        assert self.process.num_fds() <= self.files + FILES


async def send_photos(s: Site, photos: list[bytes]) -> None:
    for data in photos:
        sample = frame("jpeg", data)
        s.sent[sample.id.hex()] = len(s.sent)
        await s.publish(pack(sample))


async def test_attack_30_at_an_edge_worker(s: Site, digits: Digits) -> None:
    edge = await s.run_edge(digits.small, **scaled("edge"))
    photos = [photo(picture) for picture in digits.pictures[:5]]
    await send_photos(s, photos)
    await s.answered()
    usage = Usage(edge)
    for _ in range(TIMES):
        for data, _ in LIES.values():
            await s.publish(data)
        for pixels in NO_NUMBERS.values():
            await s.publish(pack(new_frame(pixels)))
        await send_photos(s, photos)
        await s.answered()
    refused = TIMES * (len(LIES) + len(NO_NUMBERS))
    await eventually(lambda: s.counts(s.edge).rejected == refused)
    await eventually(lambda: s.counts(s.edge).inference_number == len(s.sent))
    assert s.counts(s.edge).lost == 0
    usage.check()
    texts = " ".join(letter.reason for letter in s.letters)
    assert any(text in texts for _, text in LIES.values()), texts


async def test_attack_30_at_a_cloud_worker(s: Site, digits: Digits) -> None:
    cloud = s.start("cloud", s.cloud, digits.big, **scaled("cloud"))
    await s.running(s.cloud)
    requester = await Requester(s).listen()
    good = photo(digits.pictures[0])
    label = (await requester.ask(frame("jpeg", good))).prediction
    assert label is not None
    usage = Usage(cloud)
    for _ in range(TIMES):
        bad = [(frame("png" if data[:1] == b"\x89" else "jpeg", data), text) for data, text in LIES.values()]
        bad += [(new_frame(pixels), name) for name, pixels in NO_NUMBERS.items()]
        for sample, text in bad:
            reply = await requester.ask(sample)
            assert (reply.prediction, reply.error) == (None, "invalid")
            assert text.lower() in reply.message.lower()
        again = (await requester.ask(frame("jpeg", good))).prediction
        assert again is not None
        assert again.label == label.label
    await eventually(lambda: s.counts(s.cloud).rejected == TIMES * (len(LIES) + len(NO_NUMBERS)))
    usage.check()
