"""How a process becomes a worker of a multi-edge service: blocking entry points, as ``halimede.worker`` has them."""

from __future__ import annotations

from collections.abc import Mapping

from halimede.multiedge.roles import joint, member
from halimede.multiedge.settings import read_member
from halimede.worker.main import leave, main
from halimede.worker.roles import RoleJob
from halimede.worker.settings import WorkerSettings


def run_member(estimator: object | None = None) -> None:
    """Run an edge worker of a multi-edge service until SIGTERM or SIGINT.

    ``estimator`` is a class or an instance with ``predict`` that stands for the model; without one the model file is
    ONNX. Everything else comes from the environment (docs/worker-environment.md). Exits with code 2 after a mistake of
    the user's, which it prints in one line.
    """
    leave(main("member", estimator, prepare=_member))


def run_joint() -> None:
    """Run the cloud worker of a multi-edge service; as ``run_member``."""
    leave(main("joint", prepare=_joint))


def _member(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: FBT001  # of Prepare
    settings = read_member("member", environ, own_estimator=own_estimator)
    return settings.worker, member(settings)


def _joint(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: FBT001  # of Prepare
    settings = read_member("joint", environ, own_estimator=own_estimator)
    return settings.worker, joint(settings)
