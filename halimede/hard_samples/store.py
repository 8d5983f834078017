"""A folder of hard samples, bounded by bytes and by count, with its server: the oldest samples are removed first.

A sample is two files, its picture and then a JSON document; it exists only with the second one. Each file appears
atomically under its name, and space is freed before a write. So the bounds hold and the folder is readable whenever the
process ends; incomplete samples are removed at the next start. Files are not synced to disk (the card of a small board
would set the pace): a file that a power failure damaged is detected by its digest when it is read, and removed.

Pictures are stored as received, raw ones as PNG. Numbers that are not a picture (another type than bytes, or a row of
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
from halimede.frames.encodings import Pixels, decode, encode_image
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
BLOCK = 4096
#: most documents that are read for one page: a short page has the position of the next one
READ = 2000
#: most bytes of a document
MOST_TEXT = 1024 * 1024
NAME = re.compile(r"(\d{12})-([0-9a-f]{32})\.(json|png|jpeg|npy)")
#: suffix of an incomplete file
NEW = ".new"
#: the error of a reply about a sample that was removed
GONE = "it is no longer kept: newer ones needed the room"
#: no file yet: the writing thread makes it
NOTHING = KeptImage(form="png", size=0, sha256="0" * 64)


@dataclass(frozen=True, slots=True)
class SampleLocation:
    """The files of a sample: their number and form, which give their names, and their disk space in bytes."""

    number: int
    form: str
    room: int


@dataclass(frozen=True, slots=True)
class SamplePage:
    """Samples, the newest first, and the number before which the next page begins; 0: no next page."""

    entries: list[KeptEntry]
    next: int


class HardSampleStore:
    """The samples in ``folder``, which is made when first needed. All methods may be called from any thread.

    They raise OSError if the disk fails.
    """

    def __init__(self, folder: Path, most_bytes: int, most_samples: int) -> None:
        self.folder = folder
        #: disk space of the files
        self.bytes = 0
        #: samples written since this object was made
        self.added = 0
        #: called with each sample that a person labels first
        self.first_labelled: Callable[[KeptSample], None] | None = None
        self._most_bytes = most_bytes
        self._most_samples = most_samples
        self._places: OrderedDict[str, SampleLocation] = OrderedDict()
        self._next = 1
        self._read = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._places

    def open(self) -> None:
        """Read the folder, remove incomplete samples, and enforce the bounds. Repeated after a failure."""
        with self._lock:
            self._open()

    def add(self, sample: KeptSample, data: bytes) -> None:
        """Store a sample and its picture; replace one of the same id. Raises TooLargeError if it never fits."""
        text = msgspec.json.encode(sample)
        room = _disk_bytes(len(text)) + _disk_bytes(len(data))
        if room > self._most_bytes or len(text) > MOST_TEXT:
            raise TooLargeError(f"a sample of {len(data)} bytes and {len(text)} about it is too large to be kept")
        with self._lock:
            self._open()
            if sample.id in self._places:
                self._remove(sample.id)
            self._evict(room, 1)
            place = SampleLocation(self._next, sample.image.form, room)
            self._read = False  # after an error here, read the folder again
            write_atomic(self._path(sample.id, place, place.form), data)
            write_atomic(self._path(sample.id, place, "json"), text)
            self._read = True
            self._next += 1
            self._places[sample.id] = place
            self.bytes += room
            self.added += 1

    def get(self, id_: str) -> tuple[KeptSample, bytes] | None:
        """Return a sample and its picture; None if it does not exist any more."""
        with self._lock:
            self._open()
            place = self._places.get(id_)
        if place is None:
            return None
        sample = self._sample(id_, place)
        if sample is None:
            return None
        try:
            data = self._path(id_, place, place.form).read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != sample.image.sha256:
            self._forget(id_, place)
            return None
        return sample, data

    def label(self, id_: str, given: PersonLabel) -> KeptSample | None:
        """Store a person's label of a sample, in the place of an earlier one; None if the sample does not exist.

        Raises TooLargeError for more than MOST_LABELS persons.
        """
        with self._lock:
            self._open()
            place = self._places.get(id_)
            try:
                sample = self._read_sample(id_, place) if place else None
            except msgspec.DecodeError:
                sample = None
            if place is None or sample is None:
                return None
            labels = [*(each for each in sample.labels if each.by != given.by), given]
            if len(labels) > MOST_LABELS:
                raise TooLargeError(f"hard sample {id_} has the labels of {MOST_LABELS} persons already")
            labelled = msgspec.structs.replace(sample, labels=labels)
            text = msgspec.json.encode(labelled)
            more = _disk_bytes(len(text)) + _disk_bytes(sample.image.size) - place.room
            self._evict(max(0, more), 0)
            if id_ not in self._places:
                return None
            write_atomic(self._path(id_, place, "json"), text)
            self._places[id_] = SampleLocation(place.number, place.form, place.room + more)
            self.bytes += more
        if self.first_labelled and not sample.labels:
            self.first_labelled(labelled)
        return labelled

    def page(self, wanted: KeptRequest) -> SamplePage:
        """Return the newest matching samples, as many as requested or readable in a moment."""
        with self._lock:
            self._open()
            older = ((i, p) for i, p in reversed(self._places.items()) if not wanted.before or p.number < wanted.before)
            places = list(islice(older, READ + 1))
        entries: list[KeptEntry] = []
        for id_, place in places[:READ]:
            sample = self._sample(id_, place)
            if sample is not None and fits(sample, wanted):
                entries.append(entry(sample, place.number))
                if len(entries) == wanted.limit:
                    return SamplePage(entries, place.number if place.number != places[-1][1].number else 0)
        return SamplePage(entries, places[READ - 1][1].number if len(places) > READ else 0)

    # --- files ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._read:
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        texts: dict[tuple[int, str], int] = {}
        pictures: dict[tuple[int, str], tuple[str, int]] = {}
        for file in list(os.scandir(self.folder)):
            if file.name.endswith(NEW):
                Path(file.path).unlink()
            elif (match := NAME.fullmatch(file.name)) and file.is_file(follow_symlinks=False):
                key, size = (int(match[1]), match[2]), file.stat(follow_symlinks=False).st_size
                if match[3] == "json":
                    texts[key] = size
                else:
                    pictures[key] = (match[3], size)
        self._places = OrderedDict()
        self.bytes = 0
        self._next = max((number for number, _ in [*texts, *pictures]), default=0) + 1
        for key in sorted({*texts, *pictures}):
            (number, id_), text, (form, size) = key, texts.get(key), pictures.get(key, ("", 0))
            place = SampleLocation(number, form, _disk_bytes(text or 0) + _disk_bytes(size))
            if text is None or not form or id_ in self._places:
                self._unlink(id_, place)
            else:
                self._places[id_] = place
                self.bytes += place.room
        self._evict(0, 0)
        self._read = True

    def _evict(self, room: int, samples: int) -> None:
        while self._places and (
            self.bytes + room > self._most_bytes or len(self._places) + samples > self._most_samples
        ):
            self._remove(next(iter(self._places)))

    def _remove(self, id_: str) -> None:
        place = self._places[id_]
        self._unlink(id_, place)
        del self._places[id_]
        self.bytes -= place.room

    def _forget(self, id_: str, place: SampleLocation) -> None:
        """Remove a damaged sample, unless another one has replaced it."""
        with self._lock:
            if self._places.get(id_) == place:
                self._remove(id_)

    def _unlink(self, id_: str, place: SampleLocation) -> None:
        self._path(id_, place, "json").unlink(missing_ok=True)
        if place.form:
            self._path(id_, place, place.form).unlink(missing_ok=True)

    def _sample(self, id_: str, place: SampleLocation) -> KeptSample | None:
        try:
            return self._read_sample(id_, place)
        except msgspec.DecodeError:
            self._forget(id_, place)
            return None

    def _read_sample(self, id_: str, place: SampleLocation) -> KeptSample | None:
        try:
            return msgspec.json.decode(self._path(id_, place, "json").read_bytes(), type=KeptSample)
        except FileNotFoundError:
            return None

    def _path(self, id_: str, place: SampleLocation, kind: str) -> Path:
        return self.folder / f"{place.number:012d}-{id_}.{kind}"


def last_stored(folder: Path) -> str:
    """Return the name of the newest document of a store; empty: there is none."""
    return max((path.name for path in folder.glob("*.json") if NAME.fullmatch(path.name)), default="")


def stored_samples(
    folder: Path, *, newest_first: bool = False, last: str | None = None
) -> Iterator[tuple[KeptSample, Path]]:
    """Yield the samples of another process's store by their age, each with the path of its picture.

    ``last``: the name of the newest document to read (``last_stored``). Reads only: samples that are incomplete or
    damaged, or are removed meanwhile, are left out. Raises OSError.
    """
    for text in sorted(folder.glob("*.json"), reverse=newest_first):
        if NAME.fullmatch(text.name) and (last is None or text.name <= last):
            with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
                sample = msgspec.json.decode(text.read_bytes(), type=KeptSample)
                yield sample, text.with_suffix(f".{sample.image.form}")


def _disk_bytes(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def labels(sample: KeptSample) -> Iterator[str]:
    """Yield the labels of the small model's and the final answer; without one, the labels of boxes."""
    for said in (sample.edge, sample.result.prediction):
        if said and said.label is not None:
            yield said.label
        for box in (said.boxes if said else None) or ():
            yield str(box.label)


def fits(sample: KeptSample, wanted: KeptRequest) -> bool:
    """Whether a sample matches the filters of a request, except for its owner."""
    result, edge = sample.result, sample.edge
    return (
        (not wanted.camera or result.camera == wanted.camera)
        and (not wanted.by or result.by == wanted.by)
        and (not wanted.reason or result.reason == wanted.reason)
        and (not wanted.label or wanted.label in labels(sample))
        and (not wanted.disagree or (edge is not None and edge.label != result.label))
        and (not wanted.stratum or (wanted.stratum == "easy") == result.audit)
        and sample.kept_ns >= wanted.since_ns
    )


def entry(sample: KeptSample, number: int) -> KeptEntry:
    """Return the summary of a sample."""
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
    """Return the document of a sample, without its picture. ``model`` and ``digest`` are the small model's."""
    return KeptSample(
        id=result.id,
        namespace=namespace,
        kept_ns=now_ns,
        result=msgspec.structs.replace(result, prediction=_slim(result.prediction), edge=None),
        edge=_slim(edge) if edge else None,
        edge_model=model[:256],
        edge_digest=digest[:256],
        audit_share=audit_share,
        image=NOTHING,
    )


def picture(frame: Frame) -> tuple[KeptImage, bytes]:
    """Return a frame's file and its description. Raises DecodeError if the frame is broken."""
    if frame.encoding == "raw":
        image, data = _written(decode(frame))
    else:
        claimed, data = READERS[frame.encoding](frame.data), bytes(frame.data)
        image = _image(frame.encoding, data, claimed.width, claimed.height)
    image.file = frame.file
    return image, data


def _written(pixels: Pixels) -> tuple[KeptImage, bytes]:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype == np.uint8 and (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        data = encode_image(pixels, "png")
        return _image("png", data, pixels.shape[1], pixels.shape[0]), data
    out = io.BytesIO()
    np.save(out, pixels, allow_pickle=False)
    return _image("npy", out.getvalue(), 0, 0), out.getvalue()


def _image(form: Literal["png", "jpeg", "npy"], data: bytes, width: int, height: int) -> KeptImage:
    digest = hashlib.sha256(data).hexdigest()
    return KeptImage(form=form, size=len(data), sha256=digest, width=width, height=height)


def _slim(said: Prediction) -> Prediction:
    """Remove features: they may take a megabyte."""
    return msgspec.structs.replace(said, embeddings=None) if said.embeddings else said


P = ParamSpec("P")
T = TypeVar("T")


class Thread(Protocol):
    """Runs blocking disk operations outside the event loop (``ModelThread``)."""

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in the thread."""


class HardSampleServer(RpcServer[KeptRequest, KeptReply]):
    """Answers requests for stored samples, and stores labels of persons.

    Each reply has ``names`` (namespace, service, worker, node).
    ``classes``: the model's; another label is refused. Without any, each label is accepted.
    """

    def __init__(
        self, bus: Bus, store: HardSampleStore, names: Mapping[str, str], thread: Thread, classes: Sequence[str] = ()
    ) -> None:
        super().__init__(
            bus,
            topics.KEPT_REQUEST.filter(),
            topics.KEPT_REPLY,
            self._answer,
            too_large=lambda error: self._entry_of(error=str(error)),
            optional=True,
        )
        self._store = store
        self._names = names
        self._thread = thread
        self._classes = list(classes)

    async def _answer(self, delivery: Delivery[KeptRequest]) -> KeptReply | None:
        wanted = delivery.body
        asked = {name: getattr(wanted, name) for name in self._names}
        if any(value and value != self._names[name] for name, value in asked.items()):
            return None
        return await self._thread.call(self._reply, wanted)

    def _reply(self, wanted: KeptRequest) -> KeptReply | None:
        """Return the reply; None for a sample that is not here, unless this worker was named."""
        try:
            if not wanted.id:
                page = self._store.page(wanted)
                return self._entry_of(entries=page.entries, next=page.next)
            if wanted.person:
                return self._label(wanted.id, wanted.person, named=bool(wanted.worker))
            found = self._store.get(wanted.id)
        except OSError as error:
            return self._entry_of(error=f"its store cannot be read: {error.strerror or error}")
        if found:
            return self._entry_of(sample=found[0], data=found[1])
        return self._entry_of(error=GONE) if wanted.worker else None

    def _label(self, id_: str, given: PersonLabel, *, named: bool) -> KeptReply | None:
        """Store a person's label. A label that is no class of the model is refused, if the sample is here."""
        if self._classes and given.label not in self._classes:
            if id_ not in self._store:
                return None
            known = ", ".join(self._classes[:20])
            return self._entry_of(error=f"label {given.label[:64]!r} is no class of the model: use one of {known}")
        try:
            sample = self._store.label(id_, given)
        except TooLargeError as error:
            return self._entry_of(error=str(error))
        if sample is None:
            return self._entry_of(error=GONE) if named else None
        return self._entry_of(sample=sample)

    def _entry_of(self, **said: Any) -> KeptReply:
        names: Mapping[str, Any] = self._names
        return KeptReply(samples=len(self._store), room=self._store.bytes, **names, **said)
