"""A script's environment: that of a worker, with defaults for missing variables."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping

from halimede.errors import InvalidFieldError
from halimede.names import check_name
from halimede.worker.settings import Role, WorkerSettings, read

#: variables of which at least one is set if the script belongs to a service
ON_A_BUS = ("SERVICE_NAME", "HALIMEDE_BROKER")


def is_alone(environ: Mapping[str, str]) -> bool:
    """Whether no variable assigns the script to a service, so that it runs without a bus."""
    return not any(environ.get(name) for name in ON_A_BUS)


def settings(role: Role, environ: Mapping[str, str] = os.environ) -> WorkerSettings:
    """Return the settings of a script as a worker with this role. Raises InvalidFieldError.

    For a manual start SERVICE_NAME is enough: then this machine is the node, and the worker gets a new name and
    temporary files.
    """
    variables = dict(environ)
    if not variables.get("SERVICE_NAME"):
        fix = "name the service whose edge and cloud workers belong together; the local controller sets it by itself"
        raise InvalidFieldError("SERVICE_NAME", "", fix)
    check_name("SERVICE_NAME", variables["SERVICE_NAME"])
    variables.setdefault("NODE_NAME", _node())
    if not variables.get("WORKER_NAME"):
        variables["WORKER_NAME"] = f"{variables['SERVICE_NAME']}-{role}-{secrets.token_hex(3)}"
        variables.setdefault("HALIMEDE_STATE", _folder())
    return read(role, variables, own_estimator=True, mines=role == "edge" and bool(variables.get("HEM_NAME")))


def _node() -> str:
    """Return a node name derived from this machine's."""
    return re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-") or "localhost"


def _folder() -> str:
    """Make a temporary folder, which is removed at exit; return its path."""
    folder = tempfile.mkdtemp(prefix="halimede-sedna-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def check_main_thread(what: str) -> None:
    """Raise InvalidFieldError, which names ``what``, in a thread that cannot handle signals."""
    if threading.current_thread() is not threading.main_thread():
        raise InvalidFieldError(what, threading.current_thread().name, "call it from the script's main thread")
