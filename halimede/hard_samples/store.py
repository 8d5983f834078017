"""``HardSampleStore``, a folder of samples bounded by bytes and by count, and ``HardSampleServer``, which sends them.

An edge worker has both. At the bounds, the oldest samples are removed first. A sample is two files, its picture and
then a JSON document; without the document it does not exist. Each file appears atomically under its name, and space is
freed before a write. So the bounds hold and the folder is readable whenever the process ends; incomplete samples are
removed at the next start. Files are not synced to disk, because the memory card of a small board is slow: if a power
failure damages a file, its digest shows it when it is read, and the sample is removed.

Pictures are stored as received, raw ones as PNG. Arrays that are no picture (other elements than bytes, or a row of
features) are stored in NumPy's own format, without loss.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import msgspec
import numpy as np

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcServer
from halimede.errors import TooLargeError
from halimede.frames.encodings import Pixels, decode, encode_image, is_picture
from halimede.image_headers import READERS
from halimede.messages import (
    Frame,
    KeptEntry,
    KeptImage,
    KeptReply,
    KeptRequest,
    KeptSample,
    PersonLabel,
    Prediction,
    Result,
)
from halimede.messages.hard_samples import MOST_LABELS
from halimede.system.files import write_atomic

#: files occupy a multiple of this on the disk
DISK_BLOCK = 4096
#: most documents that are read for one page: it may have fewer samples than requested, although older ones match
MAX_READ = 2000
#: most bytes of a document
MAX_DOCUMENT_BYTES = 1024 * 1024
#: name of a sample's file: number, id, and ending (``json`` for the document, else the form of the picture)
NAME = re.compile(r"(\d{12})-([0-9a-f]{32})\.(json|png|jpeg|npy)")
#: suffix of an incomplete file
INCOMPLETE_SUFFIX = ".new"
#: the error of a reply about a sample that was removed
REMOVED_ERROR = "it is no longer kept: newer ones needed the room"
#: the description of a file that does not exist yet: the writing thread makes the file and its description
NO_IMAGE = KeptImage(form="png", size=0, sha256="0" * 64)


@dataclass(frozen=True, slots=True)
class SampleLocation:
    """The files of a sample: number and form of its picture, which give their names, and their bytes on the disk."""

    number: int
    form: str
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class SamplePage:
    """Samples, the newest first, and the number before which the next page begins; 0: no next page."""

    entries: list[KeptEntry]
    next: int


class HardSampleStore:
    """The samples in ``folder``, which is made when first needed.

    ``most_bytes`` of disk space and ``most_samples`` are its bounds. All methods may be called from any thread. Public
    ones block on the disk, and raise OSError if it fails.
    """

    def __init__(self, folder: Path, most_bytes: int, most_samples: int) -> None:
        self.folder = folder
        #: bytes of disk space that the files take
        self.bytes = 0
        #: samples written since this object was made
        self.added = 0
        #: called with a sample, in the thread of ``label``, when it gets its first label of a person
        self.first_labelled: Callable[[KeptSample], None] | None = None
        self._most_bytes = most_bytes
        self._most_samples = most_samples
        self._locations: OrderedDict[str, SampleLocation] = OrderedDict()
        self._next = 1
        #: the attributes agree with the folder
        self._is_read = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._locations)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._locations

    def open(self) -> None:
        """Read the folder, remove incomplete samples, and enforce the bounds. Other public methods do so if needed."""
        with self._lock:
            self._open()

    def add(self, sample: KeptSample, data: bytes) -> None:
        """Store a sample and its picture; a sample of the same id is replaced. Older samples make space for it.

        Raises TooLargeError for a sample that is larger than the whole store, or whose document is too large.
        """
        text = msgspec.json.encode(sample)
        size = _disk_bytes(len(text)) + _disk_bytes(len(data))
        if size > self._most_bytes or len(text) > MAX_DOCUMENT_BYTES:
            raise TooLargeError(f"a sample of {len(data)} bytes and {len(text)} about it is too large to be kept")
        with self._lock:
            self._open()
            if sample.id in self._locations:
                self._remove(sample.id)
            self._evict(size, 1)
            location = SampleLocation(self._next, sample.image.form, size)
            self._is_read = False  # after an error here, read the folder again
            write_atomic(self._path(sample.id, location, location.form), data)
            write_atomic(self._path(sample.id, location, "json"), text)
            self._is_read = True
            self._next += 1
            self._locations[sample.id] = location
            self.bytes += size
            self.added += 1

    def get(self, id_: str) -> tuple[KeptSample, bytes] | None:
        """Return a sample and the bytes of its picture; None if it does not exist, or is damaged and thus removed."""
        with self._lock:
            self._open()
            location = self._locations.get(id_)
        if location is None:
            return None
        sample = self._sample(id_, location)
        if sample is None:
            return None
        try:
            data = self._path(id_, location, location.form).read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != sample.image.sha256:
            self._forget(id_, location)
            return None
        return sample, data

    def label(self, id_: str, label: PersonLabel) -> KeptSample | None:
        """Store a person's label of a sample, in the place of the person's earlier one; return the sample with it.

        Older samples make space for it. None if the sample does not exist, is damaged, or is removed to make space.
        Raises TooLargeError for more than MOST_LABELS persons.
        """
        with self._lock:
            self._open()
            location = self._locations.get(id_)
            try:
                sample = self._read_sample(id_, location) if location else None
            except msgspec.DecodeError:
                sample = None
            if location is None or sample is None:
                return None
            labels = [*(other for other in sample.labels if other.by != label.by), label]
            if len(labels) > MOST_LABELS:
                raise TooLargeError(f"hard sample {id_} has the labels of {MOST_LABELS} persons already")
            labelled = msgspec.structs.replace(sample, labels=labels)
            text = msgspec.json.encode(labelled)
            growth = _disk_bytes(len(text)) + _disk_bytes(sample.image.size) - location.disk_bytes
            self._evict(max(0, growth), 0)
            if id_ not in self._locations:
                return None
            write_atomic(self._path(id_, location, "json"), text)
            self._locations[id_] = SampleLocation(location.number, location.form, location.disk_bytes + growth)
            self.bytes += growth
        if self.first_labelled and not sample.labels:
            self.first_labelled(labelled)
        return labelled

    def page(self, request: KeptRequest) -> SamplePage:
        """Return the newest samples that match a request: at most its ``limit``, of ``MAX_READ`` documents."""
        with self._lock:
            self._open()
            older = (
                (id_, location)
                for id_, location in reversed(self._locations.items())
                if not request.before or location.number < request.before
            )
            locations = list(islice(older, MAX_READ + 1))
        entries: list[KeptEntry] = []
        for id_, location in locations[:MAX_READ]:
            sample = self._sample(id_, location)
            if sample is not None and matches(sample, request):
                entries.append(entry(sample, location.number))
                if len(entries) == request.limit:
                    return SamplePage(entries, location.number if location.number != locations[-1][1].number else 0)
        return SamplePage(entries, locations[MAX_READ - 1][1].number if len(locations) > MAX_READ else 0)

    # --- files ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Read the folder, unless it has been read, and remove incomplete samples. The caller holds the lock."""
        if self._is_read:
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        texts: dict[tuple[int, str], int] = {}
        pictures: dict[tuple[int, str], tuple[str, int]] = {}
        for file in list(os.scandir(self.folder)):
            if file.name.endswith(INCOMPLETE_SUFFIX):
                Path(file.path).unlink()
            elif (match := NAME.fullmatch(file.name)) and file.is_file(follow_symlinks=False):
                key, size = (int(match[1]), match[2]), file.stat(follow_symlinks=False).st_size
                if match[3] == "json":
                    texts[key] = size
                else:
                    pictures[key] = (match[3], size)
        self._locations = OrderedDict()
        self.bytes = 0
        self._next = max((number for number, _ in [*texts, *pictures]), default=0) + 1
        for key in sorted({*texts, *pictures}):
            (number, id_), text, (form, size) = key, texts.get(key), pictures.get(key, ("", 0))
            location = SampleLocation(number, form, _disk_bytes(text or 0) + _disk_bytes(size))
            if text is None or not form or id_ in self._locations:
                self._unlink(id_, location)
            else:
                self._locations[id_] = location
                self.bytes += location.disk_bytes
        self._evict(0, 0)
        self._is_read = True

    def _evict(self, size: int, samples: int) -> None:
        """Remove the oldest samples until ``size`` bytes and so many samples fit. The caller holds the lock."""
        while self._locations and (
            self.bytes + size > self._most_bytes or len(self._locations) + samples > self._most_samples
        ):
            self._remove(next(iter(self._locations)))

    def _remove(self, id_: str) -> None:
        """Remove a sample and its files. The caller holds the lock."""
        location = self._locations[id_]
        self._unlink(id_, location)
        del self._locations[id_]
        self.bytes -= location.disk_bytes

    def _forget(self, id_: str, location: SampleLocation) -> None:
        """Remove a damaged sample, unless another sample of the same id has replaced it."""
        with self._lock:
            if self._locations.get(id_) == location:
                self._remove(id_)

    def _unlink(self, id_: str, location: SampleLocation) -> None:
        """Remove the files of a sample, the document first, as far as they exist."""
        self._path(id_, location, "json").unlink(missing_ok=True)
        if location.form:
            self._path(id_, location, location.form).unlink(missing_ok=True)

    def _sample(self, id_: str, location: SampleLocation) -> KeptSample | None:
        """Return a sample's document; None, and remove the sample, if the document is damaged or missing."""
        try:
            return self._read_sample(id_, location)
        except msgspec.DecodeError:
            self._forget(id_, location)
            return None

    def _read_sample(self, id_: str, location: SampleLocation) -> KeptSample | None:
        """Return a sample's document; None if it is missing. Raises DecodeError of msgspec if it is damaged."""
        try:
            return msgspec.json.decode(self._path(id_, location, "json").read_bytes(), type=KeptSample)
        except FileNotFoundError:
            return None

    def _path(self, id_: str, location: SampleLocation, kind: str) -> Path:
        """Return the path of a sample's file. ``kind``: ``json`` or the form of its picture."""
        return self.folder / f"{location.number:012d}-{id_}.{kind}"


def last_stored(folder: Path) -> str:
    """Return the name of the newest document of a store; empty: there is none."""
    return max((path.name for path in folder.glob("*.json") if NAME.fullmatch(path.name)), default="")


def stored_samples(
    folder: Path, *, newest_first: bool = False, last: str | None = None
) -> Iterator[tuple[KeptSample, Path]]:
    """Yield the samples of another process's store, each with the path of its picture, which may be missing.

    The oldest sample is first, unless ``newest_first``. ``last``: the name of the newest document to read, of
    ``last_stored``; None: read all. Nothing is written. Samples whose document is damaged, or removed meanwhile, are
    left out. Raises OSError.
    """
    for text in sorted(folder.glob("*.json"), reverse=newest_first):
        if NAME.fullmatch(text.name) and (last is None or text.name <= last):
            with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
                sample = msgspec.json.decode(text.read_bytes(), type=KeptSample)
                yield sample, text.with_suffix(f".{sample.image.form}")


def _disk_bytes(size: int) -> int:
    """Return the bytes that a file of this size occupies on the disk."""
    return -(-size // DISK_BLOCK) * DISK_BLOCK


def labels(sample: KeptSample) -> Iterator[str]:
    """Yield the labels of the small model's answer and of the final answer, also those of their boxes."""
    for prediction in (sample.edge, sample.result.prediction):
        if prediction and prediction.label is not None:
            yield prediction.label
        for box in (prediction.boxes if prediction else None) or ():
            yield str(box.label)


def matches(sample: KeptSample, request: KeptRequest) -> bool:
    """Whether a sample matches a request, except for the names of its worker, and for ``before``."""
    result, edge = sample.result, sample.edge
    return (
        (not request.camera or result.camera == request.camera)
        and (not request.by or result.by == request.by)
        and (not request.reason or result.reason == request.reason)
        and (not request.label or request.label in labels(sample))
        and (not request.disagree or (edge is not None and edge.label != result.label))
        and (not request.stratum or (request.stratum == "easy") == result.audit)
        and sample.kept_ns >= request.since_ns
    )


def entry(sample: KeptSample, number: int) -> KeptEntry:
    """Return a sample without its predictions; ``number`` is that of its files."""
    result, edge = sample.result, sample.edge
    return KeptEntry(
        id=sample.id,
        number=number,
        kept_ns=sample.kept_ns,
        camera=result.camera,
        by=result.by,
        degraded=result.degraded,
        reason=result.reason,
        hardness=result.hardness,
        cut=result.cut,
        edge_label=((edge.label if edge else None) or "")[:1024],
        edge_score=edge.score if edge else None,
        label=(result.label or "")[:1024],
        score=result.score,
        labels=sample.labels,
        image=sample.image,
    )


def describe(
    result: Result,
    edge: Prediction | None,
    *,
    namespace: str,
    now_ns: int,
    model: str,
    digest: str,
    audit_share: float = 0.0,
) -> KeptSample:
    """Return the document of a sample, without its picture. ``edge`` is the small model's prediction.

    ``now_ns``: the time in nanoseconds since 1970. ``model`` and ``digest`` are version and SHA-256 of the small model,
    ``audit_share`` is the share of easy samples that is audited. Features of predictions are left out.
    """
    return KeptSample(
        id=result.id,
        namespace=namespace,
        kept_ns=now_ns,
        result=msgspec.structs.replace(result, prediction=_without_embeddings(result.prediction), edge=None),
        edge=_without_embeddings(edge) if edge else None,
        edge_model=model[:256],
        edge_digest=digest[:256],
        audit_share=audit_share,
        image=NO_IMAGE,
    )


def picture(frame: Frame) -> tuple[KeptImage, bytes]:
    """Return the description of a frame's file, and its bytes. Raises DecodeError if the frame is broken."""
    if frame.encoding == "raw":
        image, data = _encode(decode(frame))
    else:
        claimed, data = READERS[frame.encoding](frame.data), bytes(frame.data)
        image = _image(frame.encoding, data, claimed.width, claimed.height)
    image.file = frame.file
    return image, data


def _encode(pixels: Pixels) -> tuple[KeptImage, bytes]:
    """Return an array as a PNG if it is a picture, else in NumPy's format, with the file's description."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if is_picture(pixels):
        data = encode_image(pixels, "png")
        return _image("png", data, pixels.shape[1], pixels.shape[0]), data
    out = io.BytesIO()
    np.save(out, pixels, allow_pickle=False)
    return _image("npy", out.getvalue(), 0, 0), out.getvalue()


def _image(form: Literal["png", "jpeg", "npy"], data: bytes, width: int, height: int) -> KeptImage:
    """Return the description of a file; ``width`` and ``height``: pixels, 0 if it is no picture."""
    digest = hashlib.sha256(data).hexdigest()
    return KeptImage(form=form, size=len(data), sha256=digest, width=width, height=height)


def _without_embeddings(prediction: Prediction) -> Prediction:
    """Return a prediction without features, which may take a megabyte."""
    return msgspec.structs.replace(prediction, embeddings=None) if prediction.embeddings else prediction


P = ParamSpec("P")
T = TypeVar("T")


class Thread(Protocol):
    """Runs blocking disk operations outside the event loop. ``ModelThread`` of the pipeline implements it."""

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what ``work`` returns in the thread, or raise what it raises."""


class HardSampleServer(RpcServer[KeptRequest, KeptReply]):
    """An ``RpcServer`` that answers requests for stored samples, and stores labels of persons.

    Each reply has ``names``: the values of namespace, service, worker and node. A label that is not in ``classes``, the
    names of the model's classes, is refused; if ``classes`` is empty, each label is accepted.
    """

    def __init__(
        self, bus: Bus, store: HardSampleStore, names: Mapping[str, str], thread: Thread, classes: Sequence[str] = ()
    ) -> None:
        super().__init__(
            bus,
            topics.KEPT_REQUEST.filter(),
            topics.KEPT_REPLY,
            self._answer,
            too_large=lambda error: self._reply_with(error=str(error)),
            optional=True,
        )
        self._store = store
        self._names = names
        self._thread = thread
        self._classes = list(classes)

    async def _answer(self, delivery: Delivery[KeptRequest]) -> KeptReply | None:
        """Return the reply to a request; None if the request names other workers."""
        request = delivery.body
        names = {name: getattr(request, name) for name in self._names}
        if any(value and value != self._names[name] for name, value in names.items()):
            return None
        return await self._thread.call(self._reply, request)

    def _reply(self, request: KeptRequest) -> KeptReply | None:
        """Return the reply to a request; None for a sample that is not here, unless the request names this worker."""
        try:
            if not request.id:
                page = self._store.page(request)
                return self._reply_with(entries=page.entries, next=page.next)
            if request.person:
                return self._label(request.id, request.person, named=bool(request.worker))
            sample_and_data = self._store.get(request.id)
        except OSError as error:
            return self._reply_with(error=f"its store cannot be read: {error.strerror or error}")
        if sample_and_data:
            return self._reply_with(sample=sample_and_data[0], data=sample_and_data[1])
        return self._reply_with(error=REMOVED_ERROR) if request.worker else None

    def _label(self, id_: str, label: PersonLabel, *, named: bool) -> KeptReply | None:
        """Store a person's label, and return the reply; None for a sample that is not here, unless ``named``.

        A label that is no class of the model is refused. ``named``: the request names this worker.
        """
        if self._classes and label.label not in self._classes:
            if id_ not in self._store:
                return None
            classes = ", ".join(self._classes[:20])
            return self._reply_with(error=f"label {label.label[:64]!r} is no class of the model: use one of {classes}")
        try:
            sample = self._store.label(id_, label)
        except TooLargeError as error:
            return self._reply_with(error=str(error))
        if sample is None:
            return self._reply_with(error=REMOVED_ERROR) if named else None
        return self._reply_with(sample=sample)

    def _reply_with(self, **fields: Any) -> KeptReply:
        """Return a reply with the names of this worker, the size of its store, and further fields."""
        names: Mapping[str, Any] = self._names
        return KeptReply(samples=len(self._store), room=self._store.bytes, **names, **fields)
