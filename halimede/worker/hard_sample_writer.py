"""Writes hard samples and audited easy ones to their folder, in a separate thread.

No other part waits for it: samples that arrive faster than the disk writes, or that a full or unwritable disk refuses,
are dropped and counted. Requests over the bus receive the stored samples. Next to them it writes what a training on
them needs: counts of all samples, and how the worker mines.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import structlog
from prometheus_client.metrics_core import Metric

from halimede.errors import DecodeError, TooLargeError, shorten_middle
from halimede.hard_samples import FOLDER
from halimede.hard_samples.store import HardSampleServer, HardSampleStore, describe, picture
from halimede.hard_samples.stream_counts import MiningSettings, StreamCounts, write_mining
from halimede.learning_loop.labels import LabelSettings, sure_label
from halimede.messages import Count, Frame, KeptSample, Prediction, Result
from halimede.mining.calibration_file import UPLOAD_RATIO, read_artefact
from halimede.observe.metrics import counter, gauge
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import ModelSlot
from halimede.worker.roles import WorkerContext
from halimede.worker.settings import WorkerSettings

log = structlog.get_logger()

#: most samples, and most bytes of them, that wait for the disk
WAITING, WAITING_BYTES = 64, 64 * 1024 * 1024
#: seconds for which a stopping worker writes queued samples
PATIENCE_S = 2.0
#: least seconds between two log lines about samples that were not stored
EVERY_S = 60.0
#: seconds between two writes of the counts of all samples
COUNTS_S = 10.0

_Waiting = tuple[Frame, KeptSample]


class HardSampleWriter:
    """Stores the samples of one edge worker in ``store``. Use it with ``async with``.

    ``labels``: when an answer of the next tier is a label. ``audit_share`` returns the share of the easy samples that
    is audited now.
    """

    def __init__(self, settings: WorkerSettings, slot: ModelSlot, store: HardSampleStore) -> None:
        #: samples that were not stored: the disk was too slow, or refused them
        self.dropped = {"busy": 0, "disk": 0}
        self.store = store
        #: stored samples with a label, and easy ones among them
        self.labelled = self.labelled_easy = 0
        self.audit_share: Callable[[], float] = lambda: settings.audit_share
        self._settings = settings
        self._slot = slot
        calibration = read_artefact(settings.calibration) if settings.calibration else None
        budget, ratio = settings.target_upload_ratio, calibration.figures.get(UPLOAD_RATIO) if calibration else None
        self._mining = MiningSettings(
            rule=settings.hem_name,
            parameters=dict(settings.hem_parameters),
            mode=settings.hem_mode,
            target_upload_ratio=ratio if budget is None else budget,
            temperature=calibration.temperature_cloud if calibration else 1.0,
        )
        self._labels = LabelSettings(temperature=self._mining.temperature)
        self._stream = StreamCounts(store.folder)
        store.first_labelled = self._labelled_by_person
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(WAITING + 1)
        self._bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="keep_0", daemon=True)
        self._due = 0.0

    async def __aenter__(self) -> HardSampleWriter:
        """Open the store in the thread, and store offered samples."""
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write queued samples, within a short deadline."""
        self._queue.put_nowait(None)  # `offer` leaves one slot free for this
        await asyncio.to_thread(self._thread.join, PATIENCE_S)

    def offer(self, frame: Frame, edge: Prediction | None, result: Result) -> None:
        """Queue an answered sample; ``edge`` is this worker's prediction. Never blocks."""
        size = frame.data.nbytes
        with self._lock:
            full = self._queue.qsize() >= WAITING or (self._bytes and self._bytes + size > WAITING_BYTES)
            if full:
                self.dropped["busy"] += 1
                return
            self._bytes += size
        loaded = self._slot.choose(frame.id)
        said = describe(
            result,
            edge,
            namespace=self._settings.namespace,
            now_ns=time.time_ns(),
            model=loaded.version,
            digest=loaded.digest,
            audit_share=self.audit_share(),
        )
        self._queue.put_nowait((frame, said))

    def observe(self, frame: Frame, *, hard: bool) -> None:
        """Count a sample for the version that ``offer`` stores it with, also if mining kept it from the model."""
        self._stream.observe(self._slot.choose(frame.id).version, self.audit_share(), time.time(), hard=hard)

    def metrics(self) -> Iterator[Metric]:
        """Return the metrics of stored and refused samples."""
        yield counter(
            "worker_kept_samples", "Hard samples written to the worker's store since it started.", self.store.added
        )
        dropped = [({"reason": reason}, n) for reason, n in self.dropped.items()]
        yield counter(
            "worker_unkept_samples",
            "Hard samples that were not kept: the disk was too slow (busy), or refused them (disk).",
            dropped,
        )
        yield gauge("worker_store_samples", "Hard samples in the worker's store.", len(self.store))
        yield gauge("worker_store_bytes", "Disk space of the store of hard samples.", self.store.bytes)

    def _run(self) -> None:
        self._save(lambda: write_mining(self.store.folder, self._mining))
        due = 0.0
        while True:
            if time.monotonic() >= due:
                self._save(self._stream.save)
                due = time.monotonic() + COUNTS_S
            with contextlib.suppress(queue.Empty):
                waiting = self._queue.get(timeout=max(0.0, due - time.monotonic()))
                if waiting is None:
                    break
                self._write(*waiting)
        self._save(self._stream.save)

    def _write(self, frame: Frame, sample: KeptSample) -> None:
        try:
            sample.image, data = picture(frame)
            self.store.add(sample, data)
            if self._is_sure(sample):
                self._count_label(sample)
        except (OSError, DecodeError, TooLargeError) as error:
            self.dropped["disk"] += 1
            self._refused(error)
        except Exception:
            # an unexpected error here must not end the worker, nor stop the storing of later samples
            log.exception("hard sample not stored", frame=sample.id)
            self.dropped["disk"] += 1
        finally:
            with self._lock:
                self._bytes -= frame.data.nbytes

    def _is_sure(self, sample: KeptSample) -> bool:
        """Whether the next tier's answer is a label."""
        result = sample.result
        return result.by == "cloud" and sure_label(result.prediction, self._labels) is not None

    def _labelled_by_person(self, sample: KeptSample) -> None:
        """Count a sample that has its first label from a person."""
        if not self._is_sure(sample):
            self._count_label(sample)

    def _count_label(self, sample: KeptSample) -> None:
        with self._lock:  # of the writing thread, and of the one that stores persons' labels
            self.labelled += 1
            self.labelled_easy += sample.result.audit

    def _save(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._refused(error)

    def _refused(self, error: Exception) -> None:
        """Log what was not stored: the first one, then at most one a minute."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_S
            log.warning("hard samples not stored", folder=str(self.store.folder), error=shorten_middle(str(error), 256))


@asynccontextmanager
async def keeping(parts: WorkerContext) -> AsyncIterator[HardSampleWriter | None]:
    """Store hard samples during the block, and serve requests for them; None: the service stores none."""
    settings = parts.settings
    if settings.keep is None:
        yield None
        return
    store = HardSampleStore(settings.state / FOLDER, settings.keep.max_megabytes * 1_000_000, settings.keep.max_samples)
    keeper = HardSampleWriter(settings, parts.slot, store)
    parts.ledger.follow(Count.LABELLED, lambda: keeper.labelled)
    parts.ledger.follow(Count.LABELLED_EASY, lambda: keeper.labelled_easy)
    parts.metrics.more.append(keeper.metrics)
    async with keeper, ModelThread("kept") as reader:
        await HardSampleServer(parts.bus, store, settings.names(), reader, settings.model.labels).start()
        yield keeper
