"""Reads the samples that an edge worker of a service has kept, for training.

A label is the next tier's answer if it is sure, or a person's. The worker keeps hard samples and audited easy ones with
different probabilities: these are the strata of its stream. Counts of the stream say for how many samples a kept one
stands, so that the training set is distributed as the stream. Some groups of samples are held out: they judge the
trained model, and calibrate it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halimede.api.model import ModelSpec
from halimede.errors import DecodeError
from halimede.frames.encodings import decode
from halimede.frames.payloads import open_payload
from halimede.hard_samples.store import NAME, stored_samples
from halimede.hard_samples.stream_counts import STREAM, MiningSettings, read_mining, read_stream
from halimede.inference import Array, SampleError, preprocess
from halimede.inference.decoding import Decoding, decoding_of
from halimede.inference.geometry import scale_of
from halimede.learning_loop.comparison import HeldOut
from halimede.learning_loop.labels import LabelSettings, SettledLabel, settle, sure_label, why_contested
from halimede.learning_loop.sampling import LabelledSample, SampleSets, Strata, StratumName, is_held_out, split
from halimede.messages import KeptSample, Prediction
from halimede.training.data import LEAST_SAMPLES, NodeData, TrainingDataError
from halimede.training.trainer import TrainingData

#: share of the groups that is held out
HELD_OUT = 0.3
#: share of a training set that comes from the data set that the user gave for training
REPLAY = 0.3
#: least and most samples of a training set: it has twice as many samples as are labelled, within these bounds, because
#: it repeats some by weight
LEAST_SIZE, MOST_SIZE = 2000, 20_000
#: bytes of the samples that are read, and as many of the training set made of them
MOST_SAMPLE_BYTES = 256 * 1024**2
#: nanoseconds of one camera whose samples are one group
GROUP_NS = 10 * 10**9
#: digits of the share of audits in the name of a period
DIGITS = 6


@dataclass(frozen=True, slots=True)
class UnseenSample:
    """A held-out sample for the calibration: it needs no label, but the next tier's answer ``cloud``.

    ``image``: the decoded picture; ``pixels``: after the Model's pre-processing.
    """

    sample: LabelledSample
    image: Array
    pixels: Array
    cloud: Prediction


@dataclass(frozen=True, slots=True)
class KeptData:
    """The kept samples since a time.

    Attributes:
        node: what a trainer gets: the training set, which repeats samples by weight, and the labelled held-out samples.
        judged: the same held-out samples, for the comparison of models.
        unseen: held-out samples with an answer of the next tier, with or without a label, for the calibration.
        stream: the number of samples of the stream in each stratum and period.
        mining: how the worker decides which samples are hard; None if unknown.

    """

    node: NodeData
    judged: list[HeldOut]
    unseen: list[UnseenSample]
    stream: Strata
    mining: MiningSettings | None


@dataclass(frozen=True, slots=True)
class _ReadSample:
    """One kept sample.

    Attributes:
        facts: its id, label, stratum, period and group.
        settled: its label with its origin; the label is None if there is none.
        image: the decoded picture of a held-out sample; None if it is not held out.
        pixels: the picture after the Model's pre-processing.
        cloud: the next tier's answer; None without one.

    """

    facts: LabelledSample
    settled: SettledLabel
    image: Array | None
    pixels: Array
    cloud: Prediction | None


def is_kept(folder: Path) -> bool:
    """Whether a folder has the samples that an edge worker keeps, and is no data set."""
    if not folder.is_dir():
        return False
    return (folder / STREAM).exists() or any(NAME.fullmatch(path.name) for path in folder.glob("*.json"))


def read_kept(
    folder: Path,
    spec: ModelSpec,
    since_s: float = 0.0,
    *,
    most_bytes: int = MOST_SAMPLE_BYTES,
    last: str | None = None,
) -> KeptData:
    """Read the samples that were kept since a time, the newest ones if not all fit. Raises TrainingDataError.

    Args:
        folder: the samples that an edge worker keeps.
        spec: the spec of the Model that is trained.
        since_s: the time, in seconds since 1970.
        most_bytes: bytes of the samples that are read, and as many of the training set.
        last: the file name of the newest sample to read; None: all may be read.

    """
    if not spec.labels:
        raise TrainingDataError("DatasetInvalid", "spec.labels of the Model is empty: list its classes in their order")
    try:
        mining = read_mining(folder)
        stream = _strata(folder, since_s)
        samples, full = _newest(_read(folder, spec, since_s, mining, last), most_bytes)
    except OSError as error:
        raise TrainingDataError("DatasetInvalid", f"{folder} cannot be read: {error.strerror or error}") from error
    if why := why_contested((sample.settled for sample in samples), LabelSettings()):
        raise TrainingDataError("LabelsContested", why)
    samples = _of_one_shape(samples)
    labelled = {sample.facts.id: sample for sample in samples if sample.settled.label is not None}
    division = _training_division(labelled, stream, most_bytes, full=full)
    index = {label: number for number, label in enumerate(spec.labels)}
    train = _arrays([labelled[id_] for id_ in division.training], index)
    if len(set(train.labels.tolist())) == 1:
        raise TrainingDataError("DatasetOneClass", "all kept samples have one class: nothing is learned from it alone")
    judged = [labelled[sample.id] for sample in division.held_out]
    unseen = [
        UnseenSample(sample.facts, sample.image, sample.pixels, sample.cloud)
        for sample in samples
        if sample.cloud is not None and sample.image is not None  # with an image it is held out
    ]
    data = NodeData(train, _arrays(judged, index, like=train))
    return KeptData(data, [HeldOut(sample.facts, sample.pixels) for sample in judged], unseen, stream, mining)


def _training_division(labelled: dict[str, _ReadSample], stream: Strata, most_bytes: int, *, full: bool) -> SampleSets:
    """Return which labelled samples, by id, are held out, and which ones are the training set.

    ``full``: older samples did not fit into ``most_bytes``. Raises TrainingDataError for too few samples to train on.
    """
    samples = [sample.facts for sample in labelled.values()]
    most_samples = most_bytes // max([1, *(sample.pixels.nbytes for sample in labelled.values())])
    size = min(MOST_SIZE, max(LEAST_SIZE, 2 * len(samples)), most_samples)
    division = split(samples, stream, size=size, seed=0, share=HELD_OUT)
    if division.distinct < LEAST_SAMPLES:
        text = f"{division.distinct} kept samples with a label to train on: {LEAST_SAMPLES} are needed"
        if full or most_samples < LEAST_SAMPLES:
            raise TrainingDataError("OutOfMemory", f"{text}, and no more fit into memory: raise memoryMb")
        raise TrainingDataError("DatasetEmpty", text)
    return division


def with_replay(data: NodeData, reference: NodeData | None) -> NodeData:
    """Return kept samples with some of ``reference``, so that the model does not forget what that data set has taught.

    ``reference``: the data set that the user gave for training. If it is None, or its samples have another shape, the
    kept samples are returned alone.
    """
    if reference is None or reference.train.samples.shape[1:] != data.train.samples.shape[1:]:
        return data
    first, number = reference.train, round(len(data.train) * REPLAY / (1 - REPLAY))
    chosen = np.random.default_rng(0).choice(len(first), number, replace=number > len(first))
    train = TrainingData(
        np.concatenate([data.train.samples, first.samples[chosen].astype(data.train.samples.dtype)]),
        np.concatenate([data.train.labels, first.labels[chosen]]),
        data.train.classes,
    )
    return NodeData(train, data.held_out)


def _read(
    folder: Path, spec: ModelSpec, since_s: float, mining: MiningSettings | None, last: str | None = None
) -> Iterator[_ReadSample]:
    """Yield the samples since a time whose picture can be read, the newest first.

    A label that is no class of the Model counts as none. Raises OSError if the folder cannot be read.
    """
    settings = LabelSettings(temperature=mining.temperature) if mining else LabelSettings()
    decoding = decoding_of(spec.decode, spec.preprocess)
    for stored, picture in stored_samples(folder, newest_first=True, last=last):
        if stored.kept_ns < since_s * 1e9:
            continue
        is_judge = is_held_out(_group(stored), HELD_OUT)
        try:
            image = _image(picture, stored, decoding)
            pixels = preprocess.apply(spec.preprocess, image)
            if is_judge and scale_of(image) > 1:  # mining sees pictures at full size, and its calibration must, too
                image = _image(picture, stored)
        except (OSError, DecodeError, SampleError):
            continue  # removed or damaged meanwhile, or of a kind that the model does not read
        cloud = stored.result.prediction if stored.result.by == "cloud" else None
        settled = settle(sure_label(cloud, settings), [label.label for label in stored.labels])
        if settled.label not in spec.labels:
            settled = SettledLabel(by=settled.by, doubly=settled.doubly, contested=settled.contested)
        yield _ReadSample(_facts(stored, settled), settled, image if is_judge else None, pixels, cloud)


def _newest(newest_first: Iterator[_ReadSample], most_bytes: int) -> tuple[list[_ReadSample], bool]:
    """Return the newest samples that fit into ``most_bytes``, the oldest first, and whether others do not fit."""
    samples: list[_ReadSample] = []
    for sample in newest_first:
        most_bytes -= sample.pixels.nbytes + (sample.image.nbytes if sample.image is not None else 0)
        if most_bytes < 0:
            return samples[::-1], True
        samples.append(sample)
    return samples[::-1], False


def _facts(stored: KeptSample, settled: SettledLabel) -> LabelledSample:
    """Return what the division into training set and held-out samples needs to know of a kept sample."""
    stratum: StratumName = "easy" if stored.result.audit else "hard"
    return LabelledSample(
        id=stored.id,
        label=settled.label or "",
        stratum=stratum,
        period=_period(stored.edge_model, stored.audit_share),
        group=_group(stored),
        by=settled.by,
    )


def _group(stored: KeptSample) -> str:
    """Return the name of a sample's group: samples of one camera near in time, which are held out together."""
    return f"{stored.result.camera}/{stored.kept_ns // GROUP_NS}"


def _period(version: str, audit_share: float) -> str:
    """Return the name of the period in which samples were kept by the same rule: model version and share of audits."""
    return f"{version} {round(audit_share, DIGITS)}"


def _strata(folder: Path, since_s: float) -> Strata:
    """Return the number of samples of the stream since a time, by period and stratum. Raises OSError."""
    strata: Counter[tuple[str, StratumName]] = Counter()
    for period_counts in read_stream(folder):
        # if ``since_s`` lies within an interval, only the share of its samples after that time counts: earlier ones
        # belong to the stream before the drift
        share, period = period_counts.share_since(since_s), _period(period_counts.version, period_counts.audit_share)
        strata[period, "hard"] += round(period_counts.hard * share)
        strata[period, "easy"] += round(period_counts.easy * share)
    return strata


def _image(picture: Path, stored: KeptSample, decoding: Decoding | None = None) -> Array:
    """Return a stored picture, decoded as ``decoding`` allows; None: at its full size. Raises OSError, DecodeError."""
    if stored.image.form == "npy":
        try:
            # a copy: each mapped file would be an open one, and their number is limited
            return np.array(np.load(picture, mmap_mode="r", allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise DecodeError(f"{picture}: {error}") from error
    return decode(open_payload(picture.read_bytes(), stored.result.camera), decoding)


def _of_one_shape(samples: list[_ReadSample]) -> list[_ReadSample]:
    """Return the samples of the most frequent shape: without a resize in the Model, cameras may differ in size."""
    shapes = Counter(sample.pixels.shape for sample in samples)
    most = max(shapes, key=lambda shape: shapes[shape], default=())
    return [sample for sample in samples if sample.pixels.shape == most]


def _arrays(samples: list[_ReadSample], index: dict[str, int], like: TrainingData | None = None) -> TrainingData:
    """Return samples as arrays. ``index``: the index of each class; ``like``: gives shape and types without samples."""
    if not samples and like is not None:
        return TrainingData(like.samples[:0], like.labels[:0], len(index))
    labels = np.array([index[sample.settled.label or ""] for sample in samples], np.int64)
    return TrainingData(np.stack([sample.pixels for sample in samples]), labels, len(index))
