"""Counts the samples of this node's Datasets (``Datasets``): each in a child process, and again after a change.

A Dataset of another node may be copied first. Data elsewhere, as on a web server, is not counted: the node requests
its URL from time to time, so that a dead address is reported.

``set_required`` sets the Datasets, and one task watches each. A check is a few ``stat`` calls; a count reads only
changed files. Known facts stay valid during a new count: a service that waits for a Dataset waits only for the first
count.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog

from halimede.datasets import Counted, DatasetError
from halimede.datasets.count_process import CountJob, count_in_child
from halimede.datasets.count_report import Progress
from halimede.datasets.counting import FileState, state_of
from halimede.datasets.listing import Listing, index_of, read_index
from halimede.messages import DatasetFacts
from halimede.messages.file_facts import NO_SAMPLES, SAMPLES_REPEATED
from halimede.models import FetchError, FetchReason, local_path, probe, redact
from halimede.models.cache import in_thread
from halimede.names import Key
from services.lc.dataset_copies import DatasetCopies
from services.lc.planning.resource_state import Phase, Preparation, RequiredFile

log = structlog.get_logger()

#: seconds between two checks, and between two checks while a person must correct something
CHECK_S, MENDED_S = 60.0, 15.0
#: seconds after which all files of a folder are checked, even without a visible change
WHOLE_S = 600.0
#: seconds for which the counts of a Dataset that is no longer required are kept
LEDGER_KEEP_S = 24 * 3600.0
#: seconds until another attempt while another node does not have the list of files yet
WAITING_S = 1.0
#: steps, in percent, in which the progress of a copy is shown
COPY_STEP = 5
#: seconds until the next count after an unexpected error
ERROR_S = 60.0

#: the reason of a Dataset whose folder is not mounted into the LC's pod
NOT_MOUNTED = "HostPathNotMounted"
#: the state of a path that does not exist
ABSENT = FileState(-1, -1, -1)
#: failures of a URL whose messages do not say what to do
ORIGIN = frozenset({
    FetchReason.ACCESS_DENIED, FetchReason.HTTP_STATUS, FetchReason.INTERRUPTED, FetchReason.NOT_FOUND,
    FetchReason.TIMEOUT, FetchReason.UNREACHABLE,
})  # fmt: skip
#: counts a Dataset, and calls its second argument with the progress; raises DatasetError
Count = Callable[[CountJob, Callable[[Progress], None]], Awaitable[Counted]]
#: requests a URL without reading its content; raises FetchError
Probe = Callable[[str], Awaitable[None]]


class Datasets:
    """The Datasets of a node.

    ``changed`` is called with a Dataset's key after each change of its preparation. ``folder``: keeps the counts, so
    that the next count reads only changed files; None: nothing is kept. ``count`` and ``probe``: have the side effects,
    and tests replace them. ``root``: if the LC runs in a pod, the folder at which folders of the node are mounted: no
    other file of the pod is read for a Dataset. ``copies``: copies Datasets of other nodes; None: none are.

    Attributes:
        preparations: the progress of each required Dataset, by key.
        facts: the counts of each Dataset that was counted, by key.

    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        changed: Callable[[Key], None],
        folder: Path | None = None,
        count: Count = count_in_child,
        probe: Probe = probe,
        *,
        root: Path | None = None,
        copies: DatasetCopies | None = None,
    ) -> None:
        self.preparations: dict[Key, Preparation] = {}
        self.facts: dict[Key, DatasetFacts] = {}
        self._tasks = tasks
        self._changed = changed
        self._folder = folder
        self._count = count
        self._probe = probe
        self._root = root
        self._copies = copies
        self._running: dict[Key, asyncio.Task[None]] = {}
        #: one count at a time, because the disk limits it
        self._count_slot = asyncio.Semaphore(1)

    def set_required(self, files: Mapping[Key, RequiredFile]) -> None:
        """Watch exactly these Datasets from now on, by key; one whose spec has changed begins anew."""
        for key in [key for key, old in self.preparations.items() if old.required != files.get(key)]:
            del self.preparations[key]
            self.facts.pop(key, None)
            self._running.pop(key).cancel()
            if self._copies and key not in files:
                self._copies.shared.drop(key)
        for key, required in files.items():
            if key not in self.preparations:
                self.preparations[key] = Preparation(required)
                self._running[key] = self._tasks.create_task(self._supervise(required), name=f"dataset {key}")

    async def _supervise(self, required: RequiredFile) -> None:
        """Watch a Dataset, until cancelled; one with an invalid URL has failed, and is not watched."""
        try:
            path = None if required.source else local_path(required.url)
        except FetchError as error:
            self._fail(required, error.reason.value, str(error))
            return
        await in_thread(self._tidy)
        while True:
            try:
                if required.source:
                    await self._copy_and_count(required)
                else:
                    await (self._probe_once(required) if path is None else self._count_once(required, path, self._root))
            except Exception as error:  # an unexpected error in one dataset must not stop the others
                log.warning("dataset not counted", key=str(required.key), exc_info=error)
                self._fail(required, "Internal", "the count failed, by an error in LC: see its log")
                await asyncio.sleep(ERROR_S)

    async def _probe_once(self, required: RequiredFile) -> None:
        """Request a URL once, and wait until the next request is due."""
        try:
            await self._probe(required.url)
        except FetchError as error:
            log.warning("dataset not reachable", key=str(required.key), reason=error.reason, message=str(error))
            advice = ": correct spec.url, or make the data available there" if error.reason in ORIGIN else ""
            self._fail(required, error.reason.value, f"{error}{advice}", "Pending" if error.temporary else "Failed")
            await asyncio.sleep(CHECK_S)
            return
        text = f"not counted: only files and folders of a node are; {redact(required.url)} answers"
        self._set(Preparation(required, "Ready", "NotCounted", text))
        await asyncio.sleep(WHOLE_S)

    async def _copy_and_count(self, required: RequiredFile) -> None:
        """Copy the files of another node, count them, and wait until the next check is due."""
        assert self._copies is not None  # noqa: S101 - for the type checker
        try:
            path = await self._copies.update(required, functools.partial(self._report_copy, required))
        except (FetchError, DatasetError) as error:
            temporary = isinstance(error, FetchError) and error.temporary
            self._fail(required, str(error.reason), str(error), "Pending" if temporary else "Failed")
            if temporary and error.reason is FetchReason.NOT_FOUND:  # another node does not have it yet
                await asyncio.sleep(WAITING_S)
                return
            log.warning("dataset not copied", key=str(required.key), reason=error.reason, message=str(error))
            await asyncio.sleep(MENDED_S)
            return
        await self._count_once(required, path, None)

    def _report_copy(self, required: RequiredFile, files: int, size: int, listing: Listing) -> None:
        """Set the progress of a copy, in coarse steps: each is a write of the status.

        ``files`` and ``size``: number of files that are here, and their bytes. ``listing``: the list of all files.
        """
        share = 100 * size // max(1, listing.size) // COPY_STEP * COPY_STEP
        text = f"{share} % of {len(listing.files):,} files, {listing.size / 1e6:,.1f} MB, from node {required.source}"
        if files < len(listing.files):
            self._set(Preparation(required, "Pending", "Copying", text))

    async def _count_once(self, required: RequiredFile, path: Path, root: Path | None) -> None:
        """Count a Dataset once, and wait until the next count is due.

        ``path``: on the node. ``root``: where folders of the node are mounted; None: they are at their own paths.
        """
        node_path, path = path, path if root is None else root.joinpath(*path.parts[1:])
        path_state = await in_thread(state_of, path) or ABSENT
        if path_state is ABSENT and root and not await in_thread(_is_mounted, path, root):
            folder = node_path.parent
            text = f"{node_path} is not mounted into the pod of the node's local controller: mount {folder} of the node"
            self._fail(required, NOT_MOUNTED, f"{text} at {root}{folder} (docs/deploy.md, Datasets)")
            await self._until_changed({str(path): path_state}, MENDED_S, None)
            return
        preparation = self.preparations[required.key]
        if preparation.phase == "Pending" and self._count_slot.locked():
            self._set(replace(preparation, message="waiting for the count of another Dataset of this node"))
        try:
            async with self._count_slot:
                ledger = self._ledger(required)
                listing = ledger.with_suffix(".listing") if required.listed and not required.source and ledger else None
                job = CountJob(path, required.format, ledger, root, listing)
                counted = await self._count(job, functools.partial(self._report_progress, required))
        except DatasetError as error:
            message = str(error).replace(str(path), str(node_path))
            log.warning("dataset failed", key=str(required.key), reason=error.reason, message=message)
            self._fail(required, error.reason, message)
            hidden = path_state is not ABSENT and await in_thread(_can_change_unseen, path)
            await self._until_changed({str(path): path_state}, MENDED_S, CHECK_S if hidden else None)
            return
        if listing and self._copies:
            self._copies.shared.set(required.key, listing, await in_thread(read_index, index_of(listing)))
        self._ready(required, counted, node_path)
        await self._until_changed(counted.watch, CHECK_S, None if counted.whole else WHOLE_S)

    async def _until_changed(self, watch: Mapping[str, FileState], every: float, longest: float | None) -> None:
        """Wait until a path is not in its state of ``watch``, with checks every ``every`` seconds.

        ``longest``: most seconds; None: without a limit.
        """
        loop = asyncio.get_running_loop()
        end = None if longest is None else loop.time() + longest
        while end is None or loop.time() < end:
            await asyncio.sleep(every)
            if await in_thread(_has_changed, watch):
                return

    def _report_progress(self, required: RequiredFile, at: Progress) -> None:
        """Set the progress of a count; a Dataset that was counted before stays Ready."""
        preparation = self.preparations[required.key]
        share = f"{100 * at.done // at.total} %" if at.total else f"{at.files:,} files, {at.done / 1e6:,.0f} MB read"
        message = f"counting: {share}, {at.samples:,} samples so far"
        again = preparation.phase == "Ready"
        reason, message = ("", f"{message} (again)") if again else ("Counting", message)
        self._set(replace(preparation, reason=reason, message=message))

    def _ready(self, required: RequiredFile, counted: Counted, path: Path) -> None:
        """Set that a Dataset is counted; facts that a new count has not changed keep the time of the earlier count."""
        facts, before = counted.facts, self.facts.get(required.key)
        if before is not None and before == msgspec.structs.replace(facts, counted_at=before.counted_at):
            facts = before
        self.facts[required.key] = facts
        where = f", copied from node {required.source} to {path}" if required.source else ""
        reason, warning = _warning(counted, required.format)
        text = f"{warning}{_summary(facts)}{where}"
        self._set(Preparation(required, "Ready", reason, text, path=path, facts=facts))

    def _fail(self, required: RequiredFile, reason: str, message: str, phase: Phase = "Failed") -> None:
        """Set that a Dataset cannot be counted; its facts are dropped."""
        self.facts.pop(required.key, None)
        self._set(Preparation(required, phase, reason, message))

    def _set(self, preparation: Preparation) -> None:
        """Set the progress of a Dataset, and announce it if it is another one."""
        key = preparation.required.key
        if self.preparations.get(key) != preparation:
            self.preparations[key] = preparation
            self._changed(key)

    def _ledger(self, required: RequiredFile) -> Path | None:
        """Return the file with the counts of a Dataset; None: counts are not kept."""
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.sha256(f'{required.key} {required.uid}'.encode()).hexdigest()[:32]}.db"

    def _tidy(self) -> None:
        """Make the folder, and remove counts and copies of Datasets that are not required. Blocks.

        Counts stay for a day after their last change.
        """
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        required_files = [preparation.required for preparation in list(self.preparations.values())]
        ledgers = {ledger.stem for required in required_files if (ledger := self._ledger(required))}
        for path in self._folder.iterdir():  # ledgers with their journals, listings and indexes
            with contextlib.suppress(OSError):
                if path.name.partition(".")[0] not in ledgers and time.time() - path.stat().st_mtime > LEDGER_KEEP_S:
                    path.unlink()
        if self._copies:
            self._copies.tidy([required.key for required in required_files if required.source])


def _warning(counted: Counted, form: str) -> tuple[str, str]:
    """Return why a counted Dataset is probably not as its user means it: a reason, and the begin of a message.

    Both are empty if it probably is. ``form``: the format in the spec.
    """
    facts = counted.facts
    if not facts.number_of_samples and (facts.size or facts.number_broken):
        size = f"{facts.size:,} bytes" if facts.size else "the files"
        return NO_SAMPLES, f"{size} have no usable sample: correct the data, or spec.format ({form}); "
    return (SAMPLES_REPEATED, f"{counted.repeated}; ") if counted.repeated else ("", "")


def _summary(facts: DatasetFacts) -> str:
    """Return the counts of a Dataset in one line, with the first broken sample."""
    parts = [f"{facts.number_of_samples:,} samples"]
    if facts.number_of_classes:
        parts.append(f"{facts.number_of_classes:,} classes")
    if facts.broken:
        first = facts.broken[0]
        parts.append(f"{facts.number_broken:,} broken: {first.name}: {first.reason}")
    return ", ".join(parts)[:1000]


def _can_change_unseen(path: Path) -> bool:
    """Whether the cause of a failure may end without a change of the path itself: in a folder, or by permissions."""
    return not os.access(path, os.R_OK) or path.is_dir()


def _is_mounted(path: Path, root: Path) -> bool:
    """Whether a path is in a folder that is mounted at or below ``root``."""
    return any(os.path.ismount(folder) for folder in (path, *path.parents) if folder.is_relative_to(root))


def _has_changed(watch: Mapping[str, FileState]) -> bool:
    """Whether a path is not in its state any more; the state of a missing one is ``ABSENT``. Blocks."""
    return any((state_of(path) or ABSENT) != path_state for path, path_state in watch.items())
