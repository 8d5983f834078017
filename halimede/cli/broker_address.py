"""Finds the broker that a command connects to, and the credentials for it.

The address is that of the option, of the environment, of the run file that a local system (``halimede up``) has
written, or the default port of this machine. Credentials are found in the same order; those of the run file are only
used for its broker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from halimede.bus.credentials import Credentials
from halimede.bus.settings import MqttSettings
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.home_folder import DEFAULT_HOME

#: the broker's host if nothing else is known; the port is the default
DEFAULT_HOST = "localhost"
#: the name of the run file in the folder of a local system
RUN_FILE = "run.json"
#: what to do without a broker
START_IT = "start a system here with `halimede up`, or give a broker with --broker host:port"
#: where the default address comes from; ``{file}`` is the run file
DEFAULT_SOURCE = (
    "default, because --broker and HALIMEDE_BROKER are not set and there is no {file}; if the system was started with"
    " --home DIR, first run `export HALIMEDE_HOME=DIR`"
)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The broker's address and credentials, and where the address was found (``source``), for people."""

    settings: MqttSettings
    source: str

    def __str__(self) -> str:
        return f"{self.settings.where} (from {self.source})"


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with all files of a local system: HALIMEDE_HOME, or its default."""
    return Path(environment.get("HALIMEDE_HOME") or DEFAULT_HOME).expanduser()


def find(option: str = "", environment: Mapping[str, str] = os.environ, *, credentials: str = "") -> BrokerAddress:
    """Return the broker to connect to. ``option`` and ``credentials`` are those of the command; empty: not given.

    It reads the run file only if neither ``option`` nor HALIMEDE_BROKER names a broker. Raises InvalidFieldError if the
    address, the credentials or the run file cannot be read, and HalimedeError if the local system was killed.
    """
    own = _credentials(credentials, environment)
    if option:
        return _read("--broker", option, own)
    if from_environment := environment.get("HALIMEDE_BROKER"):
        return _read("HALIMEDE_BROKER", from_environment, own)
    file = home(environment) / RUN_FILE
    try:
        run = json.loads(file.read_bytes())
        if "pid" in run and not _is_running(int(run["pid"])):
            # another system may use its port now
            raise HalimedeError(f"the system in {file.parent} was killed: {START_IT}")
        of_run = Credentials.at(run["credentials"], str(file)) if "credentials" in run else None
        return _read(str(file), run["broker"], own or of_run)
    except FileNotFoundError:
        return _read(DEFAULT_SOURCE.format(file=file), DEFAULT_HOST, own)
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        raise InvalidFieldError(str(file), str(error), "remove the file, or give --broker host:port") from error


def _is_running(pid: int) -> bool:
    """Whether a process exists, also of another user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # the process exists, and belongs to another user
    return True


def _credentials(option: str, environment: Mapping[str, str]) -> Credentials | None:
    """Return the credentials of the option or the environment; None: neither is set. Raises InvalidFieldError."""
    if option:
        return Credentials.at(option, "--credentials")
    folder = environment.get("HALIMEDE_CREDENTIALS")
    return Credentials.at(folder) if folder else None


def _read(source: str, text: str, credentials: Credentials | None) -> BrokerAddress:
    return BrokerAddress(MqttSettings.from_url(text, variable=source, credentials=credentials), source)
