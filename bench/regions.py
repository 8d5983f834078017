"""Regions instead of frames: the share of the big model's objects that joint answers have, by the share of bytes.

    python -m bench.regions

Two pairs of detectors on pictures of their own: examples/detection (its scenes and models unedited) and the demo of
real faces, whose packages are installed into build/packages. For each pair `halimede calibrate`'s fit chooses a rule on
the pictures to calibrate on; every picture to test on is then uploaded, so no rule of mining takes part. An object is a
box of a score of 0.5 or more that the big model finds in a whole frame; a joint answer has it if a box of its class
overlaps it by half. Bytes are a share of those of all frames as received; in the last column of frames that have the
encoding, quality and scale of the regions.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from examples.detection import scenes
from examples.detection.train import COUNTS
from examples.real_pairs import faces, packages
from halimede.api.deferral import UploadEncoding
from halimede.calibration.calibrate import part as part_of
from halimede.calibration.measurement import share
from halimede.calibration.region_rule import RegionFit
from halimede.cli.output import to_yaml
from halimede.evaluation.data import LabelledPicture, read_labelled
from halimede.evaluation.region_uploads import RegionUploads, answer_function, answer_uploads, objects_in
from halimede.evaluation.service import EvaluatedTier, answers, file_of, read_resources
from halimede.frames.transcode_policy import SMALL_QUALITY, UploadFormat
from halimede.messages import Prediction
from halimede.mining.calibration_file import RegionRule

ROOT = Path(__file__).parents[1]
FACES = 240
#: frames in the encoding and quality of regions
SAME_QUALITY = {
    "as-it-came": UploadFormat(),
    "jpeg": UploadFormat(encoding="jpeg", best_quality=SMALL_QUALITY),
}
PADDINGS = (0.0, 0.15, 0.3, 0.5, 1.0)


@dataclass(frozen=True)
class Pair:
    """Two detectors, the small one first, and their pictures to calibrate and to test on."""

    name: str
    tiers: tuple[EvaluatedTier, EvaluatedTier]
    folders: tuple[Path, Path]


def scene_pair(folder: Path) -> Pair:
    """Return the detectors of examples/detection."""
    for part in ("calibrate", "test"):
        scenes.write(folder / part, scenes.scenes(part, COUNTS[part]))
    return _pair("scenes", ROOT / "examples/detection/1-models.yaml", folder)


def face_pair(folder: Path) -> Pair:
    """Return BlazeFace and CenterFace."""
    packages.install(faces.PACKAGES, report=print)
    for part in ("calibrate", "test"):
        faces.write_frames(folder / part, part, FACES)
    manifest = folder / "models.yaml"
    manifest.write_text("---\n".join(map(to_yaml, faces.write_models(folder / "models"))))
    return _pair("faces", manifest, folder)


#: the frames of faces are JPEG files already
ENCODINGS: dict[str, tuple[UploadEncoding, ...]] = {"scenes": ("as-it-came", "jpeg"), "faces": ("as-it-came",)}
PAIRS: dict[str, Callable[[Path], Pair]] = {"scenes": scene_pair, "faces": face_pair}


def _pair(name: str, manifest: Path, folder: Path) -> Pair:
    tiers = [
        EvaluatedTier(name=model.metadata.name, model=model.metadata.name, spec=model.spec, path=file_of(model.spec))
        for model in read_resources([manifest])
    ]
    small, big = sorted(tiers, key=lambda tier: tier.name, reverse=True)
    return Pair(name, (small, big), (folder / "calibrate", folder / "test"))


class Pictures:
    """Pictures with the answers of both models to whole frames."""

    def __init__(self, pair: Pair, folder: Path, upload_format: UploadFormat) -> None:
        self.data: LabelledPicture = read_labelled(folder)
        self.edge: list[Prediction]
        self.edge, self.cloud = (answers(tier, self.data) for tier in pair.tiers)
        self._format = upload_format
        self._answer = answer_function(pair.tiers[1])

    def upload(
        self, rule: RegionRule, indices: np.ndarray | None = None, upload_format: UploadFormat | None = None
    ) -> RegionUploads:
        """Upload pictures by a rule, in this format or in that of all uploads."""
        chosen = np.arange(len(self.data)) if indices is None else indices
        edge, cloud = ([answers[i] for i in chosen] for answers in (self.edge, self.cloud))
        data = part_of(self.data, chosen)
        return answer_uploads(
            data, edge, cloud, rule=rule, upload_format=upload_format or self._format, answer=self._answer
        )

    def row(self, name: str, rule: RegionRule, upload_format: UploadFormat | None = None) -> str:
        """Return a row of the table: objects with their 95 % interval, and bytes."""
        uploads = self.upload(rule, upload_format=upload_format)
        objects, matched = objects_in(self.cloud, uploads.joint)
        value, low, high = share(matched / np.maximum(1, objects), np.arange(len(objects)), objects.astype(float))
        frames = self.upload(
            RegionRule(sure=0.0, scale=rule.scale), upload_format=SAME_QUALITY[self._format.encoding]
        ).sizes.sum()
        sizes = uploads.sizes.sum()
        of_all, of_frames = sizes / sum(self.data.sizes), sizes / frames
        return f"| {name} | {value:.3f} ({low:.3f} to {high:.3f}) | {of_all:.3f} | {of_frames:.3f} |"


def main() -> None:
    """Print a table for each pair and encoding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=[*PAIRS, "all"], default="all")
    chosen = parser.parse_args().pair
    for name, make in PAIRS.items():
        if chosen in {name, "all"}:
            with tempfile.TemporaryDirectory() as folder:
                pair = make(Path(folder))
                for encoding in ENCODINGS[name]:
                    _print_table(pair, UploadFormat(encoding=encoding))


def _print_table(pair: Pair, upload_format: UploadFormat) -> None:
    calibrating, testing = (Pictures(pair, folder, upload_format) for folder in pair.folders)
    fit = RegionFit(calibrating.data.images, calibrating.edge, calibrating.cloud, calibrating.upload)
    fitted = fit.fit()
    print(f"\n{pair.name}, encoding {upload_format.encoding}\n")
    print("| upload | objects of the big model | bytes | of such frames |")
    print("|---|---|---|---|")
    print(testing.row("frames", RegionRule(sure=0.0)))
    if upload_format.encoding == "jpeg":
        print(testing.row("frames, at the quality of regions", RegionRule(sure=0.0), SAME_QUALITY["jpeg"]))
    print(testing.row("regions, without a calibration", RegionRule()))
    if rule := fitted.rule:
        if rule.scale < 1:
            print(testing.row("frames at the fitted scale", RegionRule(sure=0.0, scale=rule.scale)))
        for padding in PADDINGS:
            print(testing.row(f"regions, padding {padding:g}", msgspec.structs.replace(rule, padding=padding)))
        print(testing.row(f"**fitted**: {_described(rule)}", rule))
    for note in fitted.notes:
        print(f"\nNote: {note}")


def _described(rule: RegionRule) -> str:
    fields = ("sure", "padding", "scale", "canvas")
    return ", ".join(f"{name} {getattr(rule, name):g}" for name in fields) + f", {len(rule.cells)} cells"


if __name__ == "__main__":
    main()
