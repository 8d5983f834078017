"""The rollout of models and settings in one worker (``WorkerRollout``): what is proven, and what was refused.

A model or settings are proven when the worker has run with them well. A worker that refuses a new model, or fails with
it, keeps the proven one; so it is with settings (the process that its service asks for). The rollout is computed
purely; functions at the end read and write it in the worker's folder, so that it outlives the LC.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from halimede.errors import InvalidFieldError
from halimede.messages import ModelInUse
from halimede.models import desired_state
from halimede.models.desired_state import Desired, DesiredModel
from halimede.system.files import write_atomic
from services.lc.supervisor.process import ProcessSpec

log = structlog.get_logger()
#: files in a worker's folder: its desired model, and its rollout
DESIRED_FILE, ROLLOUT_FILE = "model.json", "rollout.json"
#: seconds that a worker must answer with a new model before the model counts as proven
PROVEN_S = 30.0
#: ends of a worker with an unproven model after which the model is refused
MODEL_STRIKES = 2
#: reason of a worker, and of its service, that continues with another model than the desired one
FAILED = "RolloutFailed"
#: reason of a worker, and of its service, that continues with its previous settings
SETTINGS_REFUSED = "SettingsRefused"


class Refusal(Struct, kw_only=True, frozen=True):
    """A model that a worker refused, or ended with.

    Attributes:
        model_mark: fingerprint of the desired state with the model.
        digest: of the model's content.
        reason: one word.
        message: for users.

    """

    model_mark: str = msgspec.field(name="mark")
    digest: str = ""
    reason: str = ""
    message: str = ""


class RefusedSettings(Struct, kw_only=True, frozen=True):
    """Settings with which a worker could not start: the digest of its process, and the reason for users."""

    spec_hash: str
    message: str = ""


class WorkerRollout(Struct, kw_only=True, frozen=True):
    """The rollout of a model and of settings in one worker. Methods return the next rollout, or the same one.

    A worker that ends before its new model is proven starts with the proven one again. A refused model is not tried
    again before the Model changes. A worker that cannot start with new settings continues with the proven ones until
    the service changes.

    Attributes:
        spec_hash: digest of the process in which ``good`` was proven.
        good: the proven model; None: none is yet.
        refused: the desired model that was refused; None: it was not.
        struck: fingerprint of the desired model with which the worker has ended before the model was proven; or empty.
        strikes: how often it has.
        settings: the proven settings; None: none are yet.
        refused_settings: the desired settings that were refused; None: they were not.

    """

    spec_hash: str = ""
    good: DesiredModel | None = None
    refused: Refusal | None = None
    struck: str = ""
    strikes: int = 0
    settings: ProcessSpec | None = None
    refused_settings: RefusedSettings | None = None

    def spec(self, desired: ProcessSpec) -> ProcessSpec:
        """Return the settings to start a worker with: the desired ones, or the proven ones if those were refused."""
        if self.settings is None or self.refused_settings is None:  # no digest at each report of a worker
            return desired
        return self.settings if self.settings_refusal(desired.digest) else desired

    def settings_refusal(self, desired: str) -> RefusedSettings | None:
        """Return the refusal of settings, by their digest; None: they were not refused."""
        refused = self.refused_settings
        return refused if refused and refused.spec_hash == desired else None

    def with_start(self, spec: ProcessSpec, desired: ProcessSpec) -> WorkerRollout:
        """Record that a worker runs with the settings ``spec``: the desired ones, or the proven ones again."""
        refused = self.refused_settings if spec is not desired else None
        return msgspec.structs.replace(self, settings=spec, refused_settings=refused)

    def with_failed_start(self, desired: ProcessSpec, cause: str) -> WorkerRollout:
        """Record that a worker cannot start, for a cause; if the proven settings fail too, the desired come next."""
        if self.settings is None or self.settings.digest == desired.digest:
            return self
        tried = self.spec(desired) is desired
        refused = RefusedSettings(spec_hash=desired.digest, message=cause) if tried else None
        return msgspec.structs.replace(self, refused_settings=refused)

    def refusal(self, desired: DesiredModel | None) -> Refusal | None:
        """Return the refusal of the desired model; None: it was not refused."""
        return self.refused if self.refused and desired and self.refused.model_mark == desired.fingerprint else None

    def with_desired(self, desired: DesiredModel) -> WorkerRollout:
        """Record the desired model: refusals and strikes of another model are forgotten."""
        refused = self.refused if self.refused and self.refused.model_mark == desired.fingerprint else None
        struck, strikes = (self.struck, self.strikes) if self.struck == desired.fingerprint else ("", 0)
        return msgspec.structs.replace(self, refused=refused, struck=struck, strikes=strikes)

    def first_model(self, desired: DesiredModel, spec_hash: str, intact: Container[Path]) -> DesiredModel:
        """Return the model to start a worker with: the one proven in the same process, if its file is intact.

        Else it is the desired one. ``spec_hash``: digest of the process. ``intact``: paths of intact files.
        """
        good = self.good
        if good is None or self.spec_hash != spec_hash or good.matches(desired) or Path(good.path) not in intact:
            return desired
        return good

    def with_report(self, assigned: DesiredModel, report: ModelInUse, spec_hash: str, *, proven: bool) -> WorkerRollout:
        """Record a worker's report on the model that it was assigned; a report on another model changes nothing.

        ``spec_hash``: digest of the process. ``proven``: whether the worker has answered with the model long enough.
        The first model in a process is proven at once, unless it is a canary.
        """
        if not is_about(report, assigned):
            return self
        if report.refused:
            refusal = Refusal(
                model_mark=assigned.fingerprint, digest=report.refused, reason=report.reason, message=report.message
            )
            return msgspec.structs.replace(self, refused=refusal)
        accepted = msgspec.structs.replace(self, refused=None) if self.refusal(assigned) else self
        has_proven = self.good is not None and self.spec_hash == spec_hash
        if report.canary_version or (has_proven and not proven):
            return accepted
        return msgspec.structs.replace(accepted, good=assigned, spec_hash=spec_hash, struck="", strikes=0)

    def with_end(self, assigned: DesiredModel, cause: str, spec_hash: str) -> WorkerRollout:
        """Record that a worker has ended by itself, for a cause; after two ends, an unproven model is refused."""
        if self.good is None or self.spec_hash != spec_hash or self.good.matches(assigned):
            return self
        strikes = self.strikes + 1 if self.struck == assigned.fingerprint else 1
        refused = self.refused
        if strikes >= MODEL_STRIKES:
            text = f"the worker ended {strikes} times with this model ({cause})"
            refused = Refusal(
                model_mark=assigned.fingerprint, digest=assigned.digest, reason="ModelCrashed", message=text
            )
        return msgspec.structs.replace(self, struck=assigned.fingerprint, strikes=strikes, refused=refused)


def is_about(report: ModelInUse, assigned: DesiredModel) -> bool:
    """Whether a worker's report is about the model that it was assigned last, and not about an earlier one."""
    return report.mark == assigned.fingerprint if report.mark else assigned.digest in {report.digest, report.refused}


def read_assigned(folder: Path) -> Desired:
    """Return the last desired state in a worker's folder; without models if there is none, or it cannot be read."""
    try:
        return desired_state.read(folder / DESIRED_FILE, DESIRED_FILE) or Desired()
    except InvalidFieldError as error:
        log.warning("desired model not readable", error=str(error))
        return Desired()


def write_assigned(folder: Path, model: DesiredModel, *, successor: bool = False) -> None:
    """Write the desired model into a worker's folder, where the worker reads it. Raises OSError.

    ``successor``: whether another process of the worker will continue its MQTT sessions.
    """
    desired = Desired(models=[model], successor=successor)
    if read_assigned(folder) != desired:
        desired_state.write(folder / DESIRED_FILE, desired)


def load(folder: Path) -> WorkerRollout:
    """Return the rollout stored in a worker's folder; an empty one if there is none, or it cannot be read."""
    try:
        return msgspec.json.decode((folder / ROLLOUT_FILE).read_bytes(), type=WorkerRollout)
    except FileNotFoundError:
        return WorkerRollout()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("rollout unreadable", folder=str(folder), error=str(error))
        return WorkerRollout()


def save(folder: Path, rollout: WorkerRollout) -> None:
    """Store a rollout in a worker's folder; a failure is only logged."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / ROLLOUT_FILE, msgspec.json.encode(rollout), mode=0o600)  # settings may have secrets
    except OSError as error:
        log.warning("rollout not written", folder=str(folder), error=error.strerror)
