"""How a Model comes to this node: brought by the one fetcher, unpacked, tried in a process of its own, described.

What is dangerous or does not come back is refused here, before any worker is given it. One that merely does not fit
its spec is left to the worker to judge: it may read the file in its own way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from halimede.blobs.opener import with_fallback
from halimede.errors import HalimedeError
from halimede.messages import ModelFacts
from halimede.models import Cache, Fetched, fetch
from halimede.models.address_policy import AddressPolicy
from halimede.models.archive import model_file, unpack
from halimede.models.cache import in_thread
from halimede.models.fetcher import Progress
from halimede.models.model_trial import Trial, TrialLimits, try_model
from halimede.models.source_types import SourceOpener
from halimede.system.files import write_atomic
from services.lc.models.preparation import RequiredFile

log = structlog.get_logger()

#: formats whose files are opened by us; others are for users' own code, which alone can try them
OURS = frozenset({"onnx"})
#: a verdict that is the worker's: it may have code of its user's that reads the file
UNFIT = "ModelInvalid"
#: verdicts that would be the same at any time and on any machine: only these are kept
OF_THE_FILE = frozenset({UNFIT, "UnsafeModel"})
FORMAT = 1

#: brings what is wanted; raises FetchError and UnusableError
Bring = Callable[[RequiredFile, Cache, Progress], Awaitable["InstalledModel"]]


class UnusableError(HalimedeError):
    """The file is here and must not be used. ``reason`` is one word for conditions."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model that is here: its file, and what is known of it."""

    path: Path
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The real way. ``openers`` are further schemes, such as the bus's own."""

    policy: AddressPolicy | None = None
    openers: Mapping[str, SourceOpener] = field(default_factory=dict)
    limits: TrialLimits = field(default_factory=TrialLimits)

    async def __call__(self, want: RequiredFile, cache: Cache, progress: Progress) -> InstalledModel:
        """Bring a Model. Raises FetchError, and UnusableError for one that must not be used."""
        fetched = await with_fallback(
            fetch, want.url, want.sha256, cache, progress, openers=self.openers, policy=self.policy
        )
        with cache.using(fetched.digest):
            if want.format.lower() not in OURS:  # such as .pt, which is an archive that only its own code may open
                return InstalledModel(fetched.path, facts(fetched, Trial(ok=True, skipped=True)))
            place = await unpack(cache, fetched)
            path = model_file(place) if place.is_dir() else place
            return InstalledModel(path, facts(fetched, await self._try(want, fetched, path, cache)))

    async def _try(self, want: RequiredFile, fetched: Fetched, path: Path, cache: Cache) -> Trial:
        record = cache.root / "index" / f"trial-{_mark(want, fetched)}.json"
        trial = await in_thread(_remembered, record)
        if trial is None:
            trial = await try_model(path, want.spec, self.limits)
            if not trial.skipped and (trial.ok or trial.reason in OF_THE_FILE):
                await in_thread(_remember, record, trial)
        if not trial.ok and trial.reason != UNFIT:
            log.warning("model refused", key=str(want.key), reason=trial.reason, message=trial.message)
            raise UnusableError(trial.reason, trial.message)
        return trial


def plain(fetch_: Callable[..., Awaitable[Fetched]]) -> Bring:
    """Return a way that fetches and does no more."""

    async def bring(want: RequiredFile, cache: Cache, progress: Progress) -> InstalledModel:
        fetched = await fetch_(want.url, want.sha256, cache, progress)
        return InstalledModel(fetched.path, facts(fetched, Trial(ok=True, skipped=True)))

    return bring


def facts(fetched: Fetched, trial: Trial) -> ModelFacts:
    """Return what a status shows of a model."""
    since = datetime.fromtimestamp(fetched.path.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelFacts(digest=fetched.digest, size=fetched.size, since=since, inputs=trial.inputs, outputs=trial.outputs)


def _mark(want: RequiredFile, fetched: Fetched) -> str:
    """What a verdict is about: the content, and how it is to be used."""
    return hashlib.sha256(f"{FORMAT} {fetched.digest} {want.spec}".encode()).hexdigest()


def _remembered(record: Path) -> Trial | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=Trial)
    except (OSError, msgspec.DecodeError):
        return None


def _remember(record: Path, trial: Trial) -> None:
    """One that cannot be written costs another trial."""
    try:
        write_atomic(record, msgspec.json.encode(trial))
    except OSError as error:
        log.info("verdict not kept", error=error.strerror)
