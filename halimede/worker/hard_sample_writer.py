"""Writes hard samples and audited easy ones to their folder, in a separate thread, and serves them over the bus.

No other part waits for it: samples that arrive faster than the disk writes, or that a full or unwritable disk refuses,
are dropped and counted. It also writes what a training on the samples needs: counts of all samples, and how the worker
mines (decides which samples are hard).
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
MAX_QUEUED, MAX_QUEUED_BYTES = 64, 64 * 1024 * 1024
#: seconds for which a stopping worker writes queued samples
DRAIN_S = 2.0
#: least seconds between two log lines about samples that were not stored
LOG_PERIOD_S = 60.0
#: seconds between two writes of the counts of all samples
COUNTS_PERIOD_S = 10.0

_QueuedSample = tuple[Frame, KeptSample]


class HardSampleWriter:
    """Stores the samples of one edge worker. An asynchronous context manager: use it inside its block.

    ``slot``: the worker's models.

    Attributes:
        store: the folder with the samples.
        dropped: samples that were not stored, because the disk was too slow (``busy``), or for any other reason
            (``disk``): the disk refused them, they cannot be decoded or are too large, or by a defect in this program.
        labelled: number of stored samples that got a label since the start: a sure answer of the next tier, or a
            person's label.
        labelled_easy: number of easy samples among them.
        audit_share: returns the share of the easy samples (0..1) that is audited now.

    """

    def __init__(self, settings: WorkerSettings, slot: ModelSlot, store: HardSampleStore) -> None:
        self.dropped = {"busy": 0, "disk": 0}
        self.store = store
        self.labelled = self.labelled_easy = 0
        self.audit_share: Callable[[], float] = lambda: settings.audit_share
        self._settings = settings
        self._slot = slot
        calibration = read_artefact(settings.calibration) if settings.calibration else None
        budget, ratio = settings.target_upload_ratio, calibration.metrics.get(UPLOAD_RATIO) if calibration else None
        self._mining = MiningSettings(
            rule=settings.hem_name,
            parameters=dict(settings.hem_parameters),
            mode=settings.hem_mode,
            target_upload_ratio=ratio if budget is None else budget,
            temperature=calibration.temperature_cloud if calibration else 1.0,
        )
        self._labels = LabelSettings(temperature=self._mining.temperature)
        self._stream = StreamCounts(store.folder)
        store.first_labelled = self._count_first_label
        self._queue: queue.Queue[_QueuedSample | None] = queue.Queue(MAX_QUEUED + 1)
        self._bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="keep_0", daemon=True)
        self._log_due = 0.0

    async def __aenter__(self) -> HardSampleWriter:
        """Start the thread, which stores offered samples."""
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let the thread write queued samples for up to DRAIN_S, and end."""
        self._queue.put_nowait(None)  # `offer` leaves one slot free for this
        await asyncio.to_thread(self._thread.join, DRAIN_S)

    def offer(self, frame: Frame, edge: Prediction | None, result: Result) -> None:
        """Queue an answered sample; drop it if the queue is full.

        ``edge``: the prediction of this worker's model; None: it gave none. ``result``: the final answer.
        """
        size = frame.data.nbytes
        with self._lock:
            is_full = self._queue.qsize() >= MAX_QUEUED or (self._bytes and self._bytes + size > MAX_QUEUED_BYTES)
            if is_full:
                self.dropped["busy"] += 1
                return
            self._bytes += size
        loaded = self._slot.choose(frame.id)
        sample = describe(
            result,
            edge,
            namespace=self._settings.namespace,
            now_ns=time.time_ns(),
            model=loaded.version,
            digest=loaded.digest,
            audit_share=self.audit_share(),
        )
        self._queue.put_nowait((frame, sample))

    def observe(self, frame: Frame, *, hard: bool) -> None:
        """Count a sample of the stream, stored or not, for the model version that it has or would have had."""
        self._stream.observe(self._slot.choose(frame.id).version, self.audit_share(), time.time(), hard=hard)

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of stored and dropped samples for Prometheus."""
        text = "Hard samples written to the worker's store since it started."
        yield counter("worker_kept_samples", text, self.store.added)
        dropped = [({"reason": reason}, n) for reason, n in self.dropped.items()]
        text = "Hard samples that were not kept: the disk was too slow (busy), or they could not be stored (disk)."
        yield counter("worker_unkept_samples", text, dropped)
        yield gauge("worker_store_samples", "Hard samples in the worker's store.", len(self.store))
        yield gauge("worker_store_bytes", "Disk space of the store of hard samples.", self.store.bytes)

    def _run(self) -> None:
        """Store how the worker mines, then samples and counts of the stream, until the end; runs in the thread."""
        self._save(lambda: write_mining(self.store.folder, self._mining))
        due = 0.0
        while True:
            if time.monotonic() >= due:
                self._save(self._stream.save)
                due = time.monotonic() + COUNTS_PERIOD_S
            with contextlib.suppress(queue.Empty):
                queued = self._queue.get(timeout=max(0.0, due - time.monotonic()))
                if queued is None:
                    break
                self._write(*queued)
        self._save(self._stream.save)

    def _write(self, frame: Frame, sample: KeptSample) -> None:
        """Store a sample, and count its label if it has one; count and log a sample that cannot be stored."""
        try:
            sample.image, data = picture(frame)
            self.store.add(sample, data)
            if self._is_sure(sample):
                self._count_label(sample)
        except (OSError, DecodeError, TooLargeError) as error:
            self.dropped["disk"] += 1
            self._log_refusal(error)
        except Exception:
            # an unexpected error here must not end the worker, nor stop the storing of later samples
            log.exception("hard sample not stored", frame=sample.id)
            self.dropped["disk"] += 1
        finally:
            with self._lock:
                self._bytes -= frame.data.nbytes

    def _is_sure(self, sample: KeptSample) -> bool:
        """Whether the next tier's answer to a sample is sure enough to be its label."""
        result = sample.result
        return result.by == "cloud" and sure_label(result.prediction, self._labels) is not None

    def _count_first_label(self, sample: KeptSample) -> None:
        """Count a sample that has got its first label from a person, unless it was counted before."""
        if not self._is_sure(sample):
            self._count_label(sample)

    def _count_label(self, sample: KeptSample) -> None:
        """Count a sample with a label. Two threads call this: the writing one, and the one for persons' labels."""
        with self._lock:
            self.labelled += 1
            self.labelled_easy += sample.result.audit

    def _save(self, write: Callable[[], None]) -> None:
        """Call ``write``; log an OSError that it raises."""
        try:
            write()
        except OSError as error:
            self._log_refusal(error)

    def _log_refusal(self, error: Exception) -> None:
        """Log why something was not stored, at most once in LOG_PERIOD_S."""
        if time.monotonic() >= self._log_due:
            self._log_due = time.monotonic() + LOG_PERIOD_S
            log.warning("hard samples not stored", folder=str(self.store.folder), error=shorten_middle(str(error)))


@asynccontextmanager
async def open_hard_sample_writer(context: WorkerContext) -> AsyncIterator[HardSampleWriter | None]:
    """Yield the writer of hard samples, and serve requests for them in the block; None: the service stores none."""
    settings = context.settings
    if settings.keep is None:
        yield None
        return
    store = HardSampleStore(settings.state / FOLDER, settings.keep.max_megabytes * 1_000_000, settings.keep.max_samples)
    keeper = HardSampleWriter(settings, context.slot, store)
    context.ledger.follow(Count.LABELLED, lambda: keeper.labelled)
    context.ledger.follow(Count.LABELLED_EASY, lambda: keeper.labelled_easy)
    context.metrics.collectors.append(keeper.metrics)
    async with keeper, ModelThread("kept") as reader:
        await HardSampleServer(context.bus, store, settings.names(), reader, settings.model.labels).start()
        yield keeper
