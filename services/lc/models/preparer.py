"""Installs the files of Models that services need on this node in advance (``Preparer``, ``ModelFiles``).

``set_required`` sets the files that should be present, and one task for each file tries until the file is present. The
task retries soon after temporary failures, and later if a person must act. It never gives up. A model is tried in a
child process (the trial) before workers get it.

Without a digest in the spec, the task then watches the origin: size, time and inode of a file of the node, the ETag or
the date of a server. Changed content is installed and tried as the first content was. Until it passes its trial, the
content before stays, also across a restart: the index of the cache has the digest of the content that a URL had then.

The task also watches the copy on this node: a copy that differs from its record in the cache is prepared again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from halimede.api.model_formats import FORMATS, ONNX, format_of
from halimede.blobs.download import with_fallback
from halimede.errors import HalimedeError
from halimede.messages import ModelFacts
from halimede.messages.file_facts import CONTENT_CHANGED, CONTENT_UNUSABLE, INPUT_NOT_SCALED, TrialReason
from halimede.models import Cache, Fetched, FetchError, FetchReason, fetch, redact
from halimede.models.address_policy import AddressPolicy
from halimede.models.archive import is_intact, model_file, unpack
from halimede.models.cache import UrlRecord, in_thread
from halimede.models.external_data import DataFilesError, fetch_model
from halimede.models.fetcher import Progress
from halimede.models.model_trial import Trial, TrialLimits, not_installed, try_model
from halimede.models.origin_watch import FILE_PERIOD_S, OriginWatch, wait_for_recheck, watch_origin
from halimede.models.source_registry import requester_of
from halimede.models.source_types import SourceOpener, TransferRate
from halimede.names import Key
from halimede.system.backoff import exponential
from halimede.system.files import write_atomic
from halimede.tracing.latency import Distribution
from services.lc.models.cache_janitor import CacheChanges
from services.lc.planning.resource_state import Phase, Preparation, RequiredFile, missing_text

log = structlog.get_logger()
#: seconds until another attempt: after the first temporary failure, at most, and if a person must act
FIRST_DELAY, LONGEST_DELAY, MENDED_DELAY = 1.0, 60.0, 15.0
#: seconds until another attempt while another node does not have the file yet
WAITING_DELAY = 5.0
#: an attempt that a person must correct is repeated after a multiple of its duration, at most after so many seconds:
#: otherwise a large wrong file would be downloaded, or an endless model tried, all the time
COST, MOST_DELAY = 10.0, 900.0
#: most downloads at a time
PARALLEL = 2
#: seconds between two reports of a download's progress
PROGRESS_S = 2.0
#: the reason of a failed trial that a user's own code may ignore: it may read the file in another way
UNFIT = TrialReason.INVALID
#: reasons of a file that is ready only for a user's own code
OWN_CODE_ONLY = frozenset({UNFIT, FetchReason.NOT_INSTALLED.value})
#: characters of a digest in messages
SHORT = 12
#: reasons of failed trials that depend only on the file: only these results, and successes, are stored
OF_THE_FILE = frozenset({UNFIT, "UnsafeModel"})
#: version of stored trial results: others are not used
FORMAT = 2
#: the begin of the message about content that has replaced other content of its URL
USED_NOW = "spec.url has new content, which is used now"
#: installs a required file in a cache, and calls its last argument with the progress; raises FetchError, UnusableError
Install = Callable[[RequiredFile, Cache, Progress], Awaitable["InstalledModel"]]
#: fetches a file of another node, by its digest, into a cache; raises FetchError
CopyModel = Callable[[RequiredFile, str, Cache, Progress], Awaitable[Fetched]]


@dataclass(slots=True)
class Downloads:
    """Counts since the LC's start: downloaded bytes, time of each download (ms), failed attempts by reason."""

    bytes: int = 0
    times: Distribution = field(default_factory=Distribution)
    failures: Counter[str] = field(default_factory=Counter)


class Preparer:
    """Prepares the required files, with one task in ``tasks`` for each.

    ``changed`` is called with a Model's key when its preparation has changed. ``install`` brings a file into ``cache``.
    ``changes``: tells ``CacheJanitor`` which files of the cache are new, and which are no longer needed.

    Attributes:
        preparations: the progress of each required file, by the key of its Model.
        downloads: counts for the metrics.

    """

    def __init__(
        self,
        cache: Cache,
        tasks: asyncio.TaskGroup,
        changed: Callable[[Key], None],
        install: Install,
        changes: CacheChanges,
    ) -> None:
        self.preparations: dict[Key, Preparation] = {}
        self.downloads = Downloads()
        self._cache = cache
        self._tasks = tasks
        self._changed = changed
        self._install = install
        self._changes = changes
        self._running: dict[Key, asyncio.Task[None]] = {}
        #: for each file: check its origin now
        self._rechecks: dict[Key, asyncio.Event] = {}
        #: the files whose origin did not answer last time
        self._unreachable: set[Key] = set()
        self._download_slots = asyncio.Semaphore(PARALLEL)

    def set_required(self, files: Mapping[Key, RequiredFile]) -> None:
        """Prepare exactly these files from now on, by the keys of their Models; a changed one begins anew."""
        for key in [key for key, old in self.preparations.items() if old.required != files.get(key)]:
            preparation = self.preparations.pop(key)
            self._running.pop(key).cancel()
            del self._rechecks[key]
            self._unreachable.discard(key)
            self._changes.record_release(preparation, for_good=key not in files)
        for key, required in files.items():
            if key not in self.preparations:
                self._begin(Preparation(required))

    def paths(self) -> list[Path]:
        """Return the paths of the required files that are present."""
        return [preparation.path for preparation in self.preparations.values() if preparation.path]

    def recheck(self, key: Key) -> None:
        """Have the origin of a Model's file checked now, or a failed attempt repeated."""
        if event := self._rechecks.get(key):
            event.set()

    def missing(self, path: Path) -> None:
        """Prepare the file again that was ready at a path, because it is missing or damaged now."""
        for key, preparation in list(self.preparations.items()):
            if preparation.phase == "Ready" and preparation.path == path:
                self._begin_again(key)

    def _begin_again(self, key: Key) -> None:
        """Prepare a file again whose copy here is missing or damaged."""
        preparation = self.preparations[key]
        message = missing_text(preparation.path) if preparation.path else ""
        log.warning("prepared file missing", key=str(key), message=message)
        self._begin(Preparation(preparation.required, reason="ModelMissing", message=message))
        self._changed(key)

    def _begin(self, preparation: Preparation) -> None:
        """Start the task for a file, in place of an earlier one."""
        required = preparation.required
        self.preparations[required.key] = preparation
        if task := self._running.get(required.key):
            task.cancel()
        self._rechecks[required.key] = asyncio.Event()
        self._running[required.key] = self._tasks.create_task(self._prepare(required), name=f"prepare {required.key}")

    async def _prepare(self, required: RequiredFile) -> None:
        """Bring a file, and then watch it and its origin, until cancelled or begun anew."""
        attempts, recheck = 1, self._rechecks[required.key]
        while True:
            delay = await self._attempt(required, exponential(attempts, FIRST_DELAY, LONGEST_DELAY))
            if delay is not None:
                await wait_for_recheck(delay, recheck)
                attempts += 1
            elif await self._needs_new_copy(required, recheck):
                self._begin_again(required.key)
                return
            else:
                attempts = 1

    async def _needs_new_copy(self, required: RequiredFile, recheck: asyncio.Event) -> bool:
        """Wait until a file's copy here is damaged (True), or its origin may have other content (False)."""
        watch = OriginWatch() if required.sha256 or required.source else await watch_origin(required.url, self._cache)
        path = self.preparations[required.key].path
        while True:
            at_once = await wait_for_recheck(FILE_PERIOD_S, recheck)
            if path and not await in_thread(is_intact, self._cache, path):
                return True
            if await watch.has_changed(at_once=at_once):
                return False

    async def _attempt(self, required: RequiredFile, backoff: float) -> float | None:
        """Try once; return the seconds until the next attempt, None: none is needed.

        ``backoff``: the seconds after a temporary failure.
        """
        if self.preparations[required.key].phase == "Ready" and _lack(required):
            return LONGEST_DELAY  # the file is here; its package still is not
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with self._download_slots:
                began = loop.time()
                installed = await self._install_with_progress(required)
        except FetchError as error:
            self.downloads.failures[error.reason.value] += 1
            phase: Phase = "Pending" if error.temporary else "Failed"
            await self._fail(required, phase, error.reason.value, str(error))
            if error.temporary:
                return WAITING_DELAY if required.source and error.reason is FetchReason.NOT_FOUND else backoff
            full = error.reason is FetchReason.DISK_FULL  # space may be freed at any time: duration is ignored
            return MENDED_DELAY if full else _retry_delay(MENDED_DELAY, loop.time() - began)
        except UnusableError as error:
            self.downloads.failures[error.reason] += 1
            untried = error.reason == TrialReason.FAILED  # nothing is known of the model: a repetition may succeed
            await self._fail(required, "Pending" if untried else "Failed", error.reason, str(error))
            self._changes.record_addition()  # the file takes space all the same
            return backoff if untried else _retry_delay(LONGEST_DELAY, loop.time() - began)
        except Exception as error:  # an unexpected error of a library must not stop the other models
            log.warning("preparation crashed", key=str(required.key), exc_info=error)
            self.downloads.failures["Internal"] += 1
            await self._fail(required, "Failed", "Internal", "the download failed, by an error in LC: see its log")
            return LONGEST_DELAY
        await self._finish(required, installed)
        self._changes.record_addition()
        if installed.is_incomplete:
            return _retry_delay(MENDED_DELAY, loop.time() - began)
        return LONGEST_DELAY if installed.lack else None

    async def _install_with_progress(self, required: RequiredFile) -> InstalledModel:
        """Install a file, and set its progress every 2 s. Raises FetchError, UnusableError."""
        loop = asyncio.get_running_loop()
        began = reported_at = loop.time()
        transfer_rate = TransferRate(loop.time)
        received: int | None = None

        def progress(done: int, total: int | None) -> None:
            nonlocal reported_at, received
            # bytes that were present (the first call), or that are discarded by a restart, were not downloaded now
            self.downloads.bytes += max(0, done - (done if received is None else received))
            received, rate = done, transfer_rate.update(done)
            if loop.time() - reported_at >= PROGRESS_S:
                reported_at = loop.time()
                of_total = f" of {total / 1e6:.0f}" if total else ""
                message = f"{done / 1e6:.0f}{of_total} MB downloaded, {rate / 1e6:.1f} MB/s"
                coming = ModelFacts(size=total or 0, done=done, rate=round(rate))
                preparation = self.preparations[required.key]
                if preparation.path is None:  # otherwise other content is in use meanwhile
                    self._set(replace(preparation, reason="Downloading", message=message, facts=coming))

        try:
            return await self._install(required, self._cache, progress)
        finally:
            if received is not None:  # otherwise it was in the cache
                self.downloads.times.record((loop.time() - began) * 1000)

    async def _finish(self, required: RequiredFile, installed: InstalledModel) -> None:
        """Set that a file is ready, unless its content fails its trial and earlier content has passed it."""
        self._log_reachability(required, installed)
        if installed.invalid and (usable := await self._usable(required)):
            self._keep_usable(usable, UNFIT, installed.invalid)
            return
        before = self.preparations[required.key]
        old = before.facts.digest if isinstance(before.facts, ModelFacts) and _is_usable(before) else ""
        new = installed.facts.digest
        if new == old and not installed.fresh:
            return  # its origin may have other content by now
        last = before.message if before.message.startswith(USED_NOW) else ""
        change = f"{USED_NOW}: sha256 {old[:SHORT]}.. -> {new[:SHORT]}.." if old and new != old else last
        notes = {
            FetchReason.NOT_INSTALLED.value: installed.lack,
            UNFIT: installed.invalid,
            INPUT_NOT_SCALED: installed.warning,
            CONTENT_CHANGED: change,
        }
        reason = next((reason for reason, text in notes.items() if text), "")
        ready = Preparation(required, "Ready", reason, notes.get(reason, ""), installed.path, installed.facts)
        self._set(ready)
        if _is_usable(ready) and not required.sha256 and not required.source and new != old:
            await in_thread(_remember_usable, self._cache, required.url, new)

    async def _fail(self, required: RequiredFile, phase: Phase, reason: str, message: str) -> None:
        """Set that a file has failed; usable content of it stays ready: workers run it, whatever its origin has now."""
        if usable := await self._usable(required):
            self._keep_usable(usable, reason, message)
        elif self._set(Preparation(required, phase, reason, message)):
            log.warning("preparation failed", key=str(required.key), reason=reason, message=message)

    def _keep_usable(self, usable: Preparation, reason: str, message: str) -> None:
        """Set that the present content stays in use, because that of its origin cannot be used, for a reason."""
        text = f"spec.url has new content, which cannot be used, and the one before stays: {reason}: {message}"
        if self._set(replace(usable, reason=CONTENT_UNUSABLE, message=text)):
            log.warning("content before stays", key=str(usable.required.key), reason=reason, message=message)

    async def _usable(self, required: RequiredFile) -> Preparation | None:
        """Return the content that is in use, or was used before a restart of the LC; None: there is none."""
        before = self.preparations[required.key]
        if _is_usable(before) or required.sha256 or required.source:
            return before if _is_usable(before) else None
        digest = await in_thread(_usable_digest, self._cache, required.url)
        try:
            if not digest or await self._cache.find(digest) is None:
                return None
            installed = await self._install(replace(required, sha256=digest), self._cache, lambda *_: None)
        except (HalimedeError, OSError) as error:
            log.info("content before not usable", key=str(required.key), digest=digest, error=str(error))
            return None
        ready = Preparation(required, "Ready", "", "", installed.path, installed.facts)
        return None if installed.invalid or installed.lack else ready

    def _log_reachability(self, required: RequiredFile, installed: InstalledModel) -> None:
        """Log once when an origin cannot be reached, and once when it can be again."""
        if installed.fresh is (required.key not in self._unreachable):  # it is as it was last time
            return
        if installed.fresh:
            self._unreachable.discard(required.key)
            log.info("origin of a model answers again", key=str(required.key), url=redact(required.url))
        else:
            self._unreachable.add(required.key)
            log.warning("origin of a model does not answer: its cached content is used", key=str(required.key))

    def _set(self, preparation: Preparation) -> bool:
        """Set the state of a file; return whether it differs from the one before."""
        key = preparation.required.key
        differs = self.preparations[key] != preparation
        if differs:
            self.preparations[key] = preparation
            self._changed(key)
        return differs


def _lack(required: RequiredFile) -> str:
    """Return which package the file's format needs that is missing here, and how to install it; empty: none."""
    form = format_of(required.format)
    return not_installed(form) if form else ""


def _usable_digest(cache: Cache, url: str) -> str:
    """Return the digest of the last usable content of a URL; empty: there was none. Blocks."""
    record = cache.recall(f"usable {requester_of(url).key}")
    return record.digest if record else ""


def _remember_usable(cache: Cache, url: str, digest: str) -> None:
    """Store the digest of the usable content of a URL, for after a restart; a failure is only logged. Blocks."""
    try:
        if _usable_digest(cache, url) != digest:
            cache.remember(f"usable {requester_of(url).key}", UrlRecord(digest, ""))
    except OSError as error:
        log.info("usable content not stored", error=error.strerror)


def _is_usable(preparation: Preparation) -> bool:
    """Whether there is a file that halimede itself can use."""
    return preparation.path is not None and preparation.reason not in OWN_CODE_ONLY


def _retry_delay(min_s: float, duration_s: float) -> float:
    """Return the seconds until an attempt of ``duration_s`` is repeated after a failure that a person must correct."""
    return max(min_s, min(COST * duration_s, MOST_DELAY))


class UnusableError(HalimedeError):
    """A model's file is present but must not be used. ``reason``: one word for a condition."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model on this node.

    Attributes:
        path: its file or folder.
        facts: what is known of its content.
        lack: why only a user's own code can use it here; empty: halimede can.
        invalid: why it failed its trial, so that only a user's own code may use it; empty: it passed.
        warning: what its trial warns of; empty: nothing.
        fresh: whether its origin has answered; if not, it was in the cache.
        is_incomplete: whether data files that belong to it are missing.

    """

    path: Path
    facts: ModelFacts
    lack: str = ""
    invalid: str = ""
    warning: str = ""
    fresh: bool = True
    is_incomplete: bool = False


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """An ``Install``: downloads a Model, unpacks it, tries it in a child process, and describes it.

    A dangerous model, or one whose trial does not end, is refused here before any worker receives it. A model that only
    does not fit its spec is ``invalid``: a worker's own code may read the file in its own way.

    Attributes:
        policy: the addresses that may be requested; None: public ones.
        openers: openers of further URL schemes, such as ``bus``.
        limits: of a trial.
        copy: fetches a file that this node copies from another one; None: its URL is used.
        formats: names of the formats that are unpacked and tried here.

    """

    policy: AddressPolicy | None = None
    openers: Mapping[str, SourceOpener] = field(default_factory=dict)
    limits: TrialLimits = field(default_factory=TrialLimits)
    copy: CopyModel | None = None
    formats: Collection[str] = frozenset(FORMATS)

    async def __call__(self, required: RequiredFile, cache: Cache, progress: Progress) -> InstalledModel:
        """Install a Model's file in ``cache``. Raises FetchError, and UnusableError for a model that must not be used.

        If its format needs a package that is missing here, only a user's own code (an estimator) can use it.
        """
        form = format_of(required.format) if required.format.lower() in self.formats else None
        lack = _lack(required) if form else ""
        if lack and not required.own_code:
            raise FetchError(FetchReason.NOT_INSTALLED, lack)
        try:
            fetched = await self._fetch(required, fetch_model if form is ONNX else fetch, cache, progress)
        except DataFilesError as error:
            if error.temporary or not required.own_code:
                raise
            described = facts(error.model, Trial(ok=True, skipped=True))
            return InstalledModel(error.model.path, described, lack, str(error), is_incomplete=True)
        url = redact(required.url)
        log.info("model fetched", key=str(required.key), url=url, digest=fetched.digest, size=fetched.size)
        with cache.pin(fetched.digest):
            as_it_is = InstalledModel(
                fetched.path, facts(fetched, Trial(ok=True, skipped=True)), lack, fresh=fetched.fresh
            )
            if form is None:  # such as .pt, an archive that only the user's code may open
                return as_it_is
            try:
                path = await in_thread(model_file, await unpack(cache, fetched), form)
            except FetchError as error:
                if error.temporary or form is ONNX or not required.own_code:
                    raise
                return as_it_is  # the user's code may read another file of the same framework
            trial = await self._try(required, fetched, path, cache)
            invalid = "" if trial.ok else trial.message
            return InstalledModel(path, facts(fetched, trial), lack, invalid, trial.warning, fetched.fresh)

    async def _fetch(
        self, required: RequiredFile, from_origin: Callable[..., Awaitable[Fetched]], cache: Cache, progress: Progress
    ) -> Fetched:
        """Fetch a file from another node, or by ``from_origin``. Raises FetchError."""
        if required.source and self.copy:
            return await self.copy(required, required.sha256, cache, progress)
        options: dict[str, Any] = {"openers": self.openers, "policy": self.policy}
        return await with_fallback(from_origin, required.url, required.sha256, cache, progress, **options)

    async def _try(self, required: RequiredFile, fetched: Fetched, path: Path, cache: Cache) -> Trial:
        """Return the result of a model's trial, stored or new. Raises UnusableError for a model not to be used."""
        record = cache.root / "index" / f"trial-{_trial_digest(required, fetched)}.json"
        trial = await in_thread(_recall_trial, record)
        if trial is None:
            trial = await try_model(path, required.spec, self.limits)
            if not trial.skipped and (trial.ok or trial.reason in OF_THE_FILE):
                await in_thread(_store_trial, record, trial)
        if not trial.ok and trial.reason != UNFIT:
            log.warning("model refused", key=str(required.key), reason=trial.reason, message=trial.message)
            raise UnusableError(trial.reason, trial.message)
        return trial


def plain(fetch_: Callable[..., Awaitable[Fetched]]) -> Install:
    """Return an ``Install`` that only downloads by ``fetch_``, without a trial: for tests and simulations."""

    async def install(required: RequiredFile, cache: Cache, progress: Progress) -> InstalledModel:
        fetched = await fetch_(required.url, required.sha256, cache, progress)
        return InstalledModel(fetched.path, facts(fetched, Trial(ok=True, skipped=True)), fresh=fetched.fresh)

    return install


def facts(fetched: Fetched, trial: Trial) -> ModelFacts:
    """Return the facts about a fetched model for a status. Blocks."""
    since = datetime.fromtimestamp(fetched.path.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelFacts(digest=fetched.digest, size=fetched.size, since=since, inputs=trial.inputs, outputs=trial.outputs)


def _trial_digest(required: RequiredFile, fetched: Fetched) -> str:
    """Return a digest that identifies a trial: of the content, and of the spec by which it is used."""
    return hashlib.sha256(f"{FORMAT} {fetched.digest} {required.spec}".encode()).hexdigest()


def _recall_trial(record: Path) -> Trial | None:
    """Return a stored result; None: there is none. Blocks."""
    try:
        return msgspec.json.decode(record.read_bytes(), type=Trial)
    except (OSError, msgspec.DecodeError):
        return None


def _store_trial(record: Path, trial: Trial) -> None:
    """Store the result of a trial; if that fails, the model is only tried again later. Blocks."""
    try:
        write_atomic(record, msgspec.json.encode(trial))
    except OSError as error:
        log.info("model trial result not stored", error=error.strerror)
