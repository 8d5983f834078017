"""Environment variables of a multi-edge service's worker, in addition to those of every worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from halimede.api.multiedge import KIND, ApplicationSpec
from halimede.errors import InvalidFieldError
from halimede.messages import Label
from halimede.multiedge.stage import Parameters
from halimede.worker.settings import WorkerSettings, read, read_json

#: kind of the service that is the owner of the workers
OWNER_KIND = KIND
#: the kinds of workers: an edge worker of the service, and the cloud worker with its joint
Program = Literal["member", "joint"]


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The settings of one worker of a multi-edge service.

    Attributes:
        worker: the settings that every worker has.
        application: name or entry of the application, with its parameters.
        part: the worker's name within the service.
        members: the names of all edge workers within the service.
        cameras: the cameras of all edge workers; empty if none is named.
        members_join: there is no cloud worker, so an edge worker runs the joint, if the application has one.

    """

    worker: WorkerSettings
    application: ApplicationSpec
    part: str
    members: tuple[str, ...]
    cameras: tuple[str, ...]
    members_join: bool

    @property
    def parameters(self) -> Parameters:
        """The application's parameters, by name."""
        return Parameters({parameter.key: parameter.value for parameter in self.application.parameters})


def read_member(program: Program, environ: Mapping[str, str], *, own_estimator: bool = False) -> MemberSettings:
    """Return the settings in ``environ`` of an edge worker (``member``) or a cloud worker (``joint``).

    ``own_estimator``: a user's class replaces the model, so no model file is needed. Raises InvalidFieldError.
    """
    optional = own_estimator or program == "joint"
    role: Literal["edge", "cloud"] = "edge" if program == "member" else "cloud"
    if not environ.get("APPLICATION"):
        raise InvalidFieldError("APPLICATION", "", 'write JSON such as {"name": "reid"}: the local controller sets it')
    where = environ.get("JOINT") or "members"
    if where not in {"cloud", "members"}:
        raise InvalidFieldError("JOINT", where, "write cloud or members")
    return MemberSettings(
        worker=read(role, environ, own_estimator=optional, mines=False),
        application=read_json(environ, "APPLICATION", ApplicationSpec),
        part=environ.get("PART") or environ["WORKER_NAME"],
        members=tuple(_names(environ, "MEMBERS")),
        cameras=tuple(_names(environ, "CAMERAS")),
        members_join=where == "members",
    )


def _names(environ: Mapping[str, str], name: str) -> list[Label]:
    """Return the names in a variable's JSON list; none without the variable. Raises InvalidFieldError."""
    return read_json(environ, name, list[Label]) if environ.get(name) else []
