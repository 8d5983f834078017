"""What each way to write an upload costs and keeps: the table of docs/uploads.md.

    python -m bench.encodings

The test scenes of examples/detection, as a camera would show them: four times as large in each direction, in colour,
with noise. Each is written in that way, and answered by the example's big model, which takes 96 x 96 pixels. Bytes
are the mean of a picture, times the CPU time (median) to write and to read one in this process; ends with 1 where
JPEG of quality 90 costs more than a hundredth of the raw pictures' mAP.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from examples.detection.scenes import LABELS, Scene, scenes
from halimede.evaluation.detection import Detection
from halimede.evaluation.service import read_chain
from halimede.frames import Pixels, decode, encode_image, new_frame
from halimede.frames.transcode_policy import SizeEstimator, UploadFormat
from halimede.inference import Model, open_model
from halimede.inference.geometry import frame_geometry
from halimede.messages import Box, Frame, Prediction, Reply
from halimede.pipeline.inference import Inference, PlainSample
from halimede.pipeline.transcode import Upload, resized, write

T = TypeVar("T")
U = TypeVar("U")

EXAMPLE = Path(__file__).parent.parent / "examples" / "detection"
#: scenes; how much larger the camera sees them; its noise (deviation in steps of 256); its white
SCENES, LARGER, NOISE, WHITE = 300, 4, 3.0, (1.0, 0.97, 0.92)
#: of the raw pictures' mAP, what JPEG of quality 90 may lose
LOSS = 0.01


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=SCENES, help=f"test scenes (default {SCENES})")
    shown = scenes("test", parser.parse_args().scenes)
    pictures = [camera(scene, i) for i, scene in enumerate(shown)]
    tier = read_chain([EXAMPLE / "1-models.yaml", EXAMPLE / "2-service.yaml"]).tiers[-1]
    found: dict[str, tuple[float, float]] = {}
    print("| as it goes up | bytes | mAP@0.5 | mAP@0.5:0.95 | write, ms | read, ms |\n|---|---|---|---|---|---|")
    with open_model(tier.path, tier.spec) as model:
        for name, how in ways().items():
            uploads, writing = timed(how, pictures)
            _, reading = timed(decode, [upload.frame for upload in uploads])
            size = statistics.mean(upload.frame.data.nbytes for upload in uploads)
            found[name] = measured(model, shown, uploads)
            plain, strict = found[name]
            print(f"| {name} | {size:,.0f} | {plain:.3f} | {strict:.3f} | {writing:.2f} | {reading:.2f} |")
    return int(found["jpeg"][0] < (1 - LOSS) * found["raw"][0])


def camera(scene: Scene, seed: int) -> Pixels:
    """Return a scene as a camera shows it: ``[4 * SIDE, 4 * SIDE, 3]`` uint8."""
    side = LARGER * scene.picture.shape[0]
    large = np.asarray(Image.fromarray(scene.picture).resize((side, side), Image.Resampling.BICUBIC), np.float64)
    seen = large[..., np.newaxis] * np.array(WHITE)
    seen += np.random.default_rng(seed).normal(0, NOISE, seen.shape)
    shown: Pixels = seen.round().clip(0, 255).astype(np.uint8)
    return shown


def ways() -> dict[str, Callable[[Pixels], Upload]]:
    """Return the ways to write a picture, by their names in the table: what services can ask for, and by hand."""

    def asked(wish: UploadFormat) -> Callable[[Pixels], Upload]:
        densities = SizeEstimator()
        return lambda picture: write(new_frame(picture), wish, densities)

    def by_hand(quality: int, times: int) -> Callable[[Pixels], Upload]:
        def made(picture: Pixels) -> Upload:
            side = picture.shape[0] // times
            data = encode_image(resized(picture, frame_geometry(picture), side, side), "jpeg", quality)
            frame = Frame(id=bytes(16), encoding="jpeg", data=memoryview(data))
            return Upload(frame, (float(times), float(times)))

        return made

    return {
        "raw": lambda picture: Upload(new_frame(picture)),
        "png": asked(UploadFormat(encoding="png")),
        "jpeg": asked(UploadFormat(encoding="jpeg")),
        "jpeg of quality 75": by_hand(75, 1),
        "jpeg of quality 50": by_hand(50, 1),
        "half as wide and high, quality 90": by_hand(90, 2),
        "half, quality 75": by_hand(75, 2),
        "half, quality 50": by_hand(50, 2),
        "a quarter, quality 90": by_hand(90, 4),
        "a quarter, quality 75": by_hand(75, 4),
        "a quarter, quality 50": by_hand(50, 4),
        "an eighth, quality 90": by_hand(90, 8),
        **{f"maxBytes {most}": asked(UploadFormat(max_bytes=most)) for most in (16384, 8192, 4096, 2048)},
    }


def timed(work: Callable[[T], U], each: Sequence[T]) -> tuple[list[U], float]:
    """Do it to each; return what came of it, and the median CPU time of one in milliseconds."""
    made, taken = [], []
    for one in each:
        began = time.process_time()
        made.append(work(one))
        taken.append((time.process_time() - began) * 1000)
    return made, statistics.median(taken)


def measured(model: Model, shown: Sequence[Scene], uploads: Sequence[Upload]) -> tuple[float, float]:
    """Return mAP@0.5 and mAP@0.5:0.95 of what the big model says of them."""
    said: list[Prediction] = []
    for upload in uploads:
        (outcome,) = Inference(1)(model, [PlainSample(upload.frame)])
        reply = upload.read(Reply(id=bytes(16), worker="big", prediction=outcome.prediction))
        said.append(reply.prediction or Prediction())
    truths = [truth(scene) for scene in shown]
    plain, strict, _ = Detection(truths, said, said).measure(np.ones(len(shown), bool))
    return plain, strict


def truth(scene: Scene) -> list[Box]:
    """Return what there is to find, in the camera's pixels."""
    corners = (LARGER * scene.boxes).tolist()
    labels = [LABELS[label] for label in scene.labels.tolist()]
    return [Box(x1, y1, x2, y2, 1.0, label) for (x1, y1, x2, y2), label in zip(corners, labels, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
