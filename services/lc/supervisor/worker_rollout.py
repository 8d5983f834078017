"""The rollout of models and settings in one worker: what is desired, what is proven, what was refused.

Pure, except for files in the folder of the worker, by which the rollout outlives the controller.
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
#: files next to a worker's ledger: its desired model, and the state of its rollout
DESIRED_FILE, ROLLOUT_FILE = "model.json", "rollout.json"
#: seconds that a worker must answer with a new model before that one counts as proven
PROVEN_S = 30.0
#: a worker that ends so often with an unproven model does not get it again
MODEL_STRIKES = 2
#: reason of a worker, and of its service, that continues with another model than the desired one
FAILED = "RolloutFailed"
#: reason of a worker, and of its service, that continues with its previous settings
SETTINGS_REFUSED = "SettingsRefused"


class Refusal(Struct, kw_only=True, frozen=True):
    """A model that a worker refused: the mark of its desired state, and the reason."""

    model_mark: str = msgspec.field(name="mark")
    digest: str = ""
    reason: str = ""
    message: str = ""


class RefusedSettings(Struct, kw_only=True, frozen=True):
    """Settings with which a worker could not start: the digest of its spec, and the reason."""

    spec_hash: str
    message: str = ""


class WorkerRollout(Struct, kw_only=True, frozen=True):
    """The rollout of a model and of settings in a worker: what is desired, what is proven, and what was refused.

    The proven model is kept until another one is proven: a worker that ends before that starts with it again. A refused
    model is not tried again before the Model changes. ``spec_hash``: of the process in which ``good`` was proven.

    Settings are proven when a worker has run with them. A worker that cannot start with new settings continues with the
    proven ones until the service changes.
    """

    spec_hash: str = ""
    good: DesiredModel | None = None
    refused: Refusal | None = None
    #: how often the worker ended with this desired model before it was proven
    struck: str = ""
    strikes: int = 0
    settings: ProcessSpec | None = None
    refused_settings: RefusedSettings | None = None

    def spec(self, desired: ProcessSpec) -> ProcessSpec:
        """Return the settings to start a worker with: the proven ones, if the desired ones were refused."""
        if self.settings is None or self.refused_settings is None:  # no digest at each report of a worker
            return desired
        return self.settings if self.settings_refusal(desired.digest) else desired

    def settings_refusal(self, desired: str) -> RefusedSettings | None:
        """Return why a worker does not have the settings with this digest, None if they were not refused."""
        refused = self.refused_settings
        return refused if refused and refused.spec_hash == desired else None

    def with_start(self, spec: ProcessSpec, desired: ProcessSpec) -> WorkerRollout:
        """Record that a worker runs with settings: the desired ones, or those to which it returned."""
        refused = self.refused_settings if spec is not desired else None
        if spec == self.settings and refused == self.refused_settings:
            return self
        return msgspec.structs.replace(self, settings=spec, refused_settings=refused)

    def with_failed_start(self, desired: ProcessSpec, cause: str) -> WorkerRollout:
        """Record that a worker cannot start. If the proven settings fail too, the desired ones are tried again."""
        if self.settings is None or self.settings.digest == desired.digest:
            return self
        tried = self.spec(desired) is desired
        refused = RefusedSettings(spec_hash=desired.digest, message=cause) if tried else None
        return msgspec.structs.replace(self, refused_settings=refused)

    def refusal(self, desired: DesiredModel | None) -> Refusal | None:
        """Return why the worker does not have the desired model, None if it was not refused."""
        return self.refused if self.refused and desired and self.refused.model_mark == desired.mark else None

    def with_desired(self, desired: DesiredModel) -> WorkerRollout:
        """Record the desired model. Refusals and strikes of another one are forgotten: it may be tried again."""
        refused = self.refused if self.refused and self.refused.model_mark == desired.mark else None
        struck, strikes = (self.struck, self.strikes) if self.struck == desired.mark else ("", 0)
        return msgspec.structs.replace(self, refused=refused, struck=struck, strikes=strikes)

    def first_model(self, desired: DesiredModel, spec_hash: str, intact: Container[Path]) -> DesiredModel:
        """Return the model that a worker starts with: the one proven in such a process, if its file is intact."""
        good = self.good
        if good is None or self.spec_hash != spec_hash or good.same(desired) or Path(good.path) not in intact:
            return desired
        return good

    def with_report(self, assigned: DesiredModel, report: ModelInUse, spec_hash: str, *, proven: bool) -> WorkerRollout:
        """Record a worker's report on its assigned model. ``proven``: the worker has answered with it long enough."""
        if not is_about(report, assigned):
            return self
        if report.refused:
            refusal = Refusal(
                model_mark=assigned.mark, digest=report.refused, reason=report.reason, message=report.message
            )
            return self if self.refused == refusal else msgspec.structs.replace(self, refused=refusal)
        accepted = msgspec.structs.replace(self, refused=None) if self.refusal(assigned) else self
        has_proven = self.good is not None and self.spec_hash == spec_hash
        if report.canary_version or (has_proven and not proven):
            return accepted
        return msgspec.structs.replace(accepted, good=assigned, spec_hash=spec_hash, struck="", strikes=0)

    def with_end(self, assigned: DesiredModel, cause: str, spec_hash: str) -> WorkerRollout:
        """Record that a worker has ended by itself with its assigned model."""
        if self.good is None or self.spec_hash != spec_hash or self.good.same(assigned):
            return self
        strikes = self.strikes + 1 if self.struck == assigned.mark else 1
        refused = self.refused
        if strikes >= MODEL_STRIKES:
            text = f"the worker ended {strikes} times with this model ({cause})"
            refused = Refusal(model_mark=assigned.mark, digest=assigned.digest, reason="ModelCrashed", message=text)
        return msgspec.structs.replace(self, struck=assigned.mark, strikes=strikes, refused=refused)


def is_about(report: ModelInUse, assigned: DesiredModel) -> bool:
    """Whether a worker's report is about this assigned model, and not about an earlier one."""
    return report.mark == assigned.mark if report.mark else assigned.digest in {report.digest, report.refused}


def read_assigned(folder: Path) -> Desired:
    """Return the last desired state of the worker of a folder, without models if it is unknown."""
    try:
        return desired_state.read(folder / DESIRED_FILE, DESIRED_FILE) or Desired()
    except InvalidFieldError as error:
        log.warning("desired model not readable", error=str(error))
        return Desired()


def write_assigned(folder: Path, model: DesiredModel, *, successor: bool = False) -> None:
    """Assign a model to the worker of a folder. ``successor``: see ``Desired``. Raises OSError."""
    desired = Desired(models=[model], successor=successor)
    if read_assigned(folder) != desired:
        desired_state.write(folder / DESIRED_FILE, desired)


def load(folder: Path) -> WorkerRollout:
    """Return the stored rollout state of the worker of a folder."""
    try:
        return msgspec.json.decode((folder / ROLLOUT_FILE).read_bytes(), type=WorkerRollout)
    except FileNotFoundError:
        return WorkerRollout()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("rollout unreadable", folder=str(folder), error=str(error))
        return WorkerRollout()


def save(folder: Path, rollout: WorkerRollout) -> None:
    """Store the rollout. If that fails, it is kept until the controller ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / ROLLOUT_FILE, msgspec.json.encode(rollout), mode=0o600)  # settings may have secrets
    except OSError as error:
        log.warning("rollout not written", folder=str(folder), error=error.strerror)
