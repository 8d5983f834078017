"""Finds the broker's address: by the option, the environment, the run file of a local system, or the default port.

Credentials are found in the same order; the run file's credentials are only used for the run file's broker.
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

DEFAULT_HOST = "localhost"
RUN_FILE = "run.json"
START_IT = "start a system here with `halimede up`, or give a broker with --broker host:port"
DEFAULT_SOURCE = (
    "default, because --broker and HALIMEDE_BROKER are not set and there is no {file}; if the system was started with"
    " --home DIR, first run `export HALIMEDE_HOME=DIR`"
)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The broker's address and credentials, and where they were found."""

    settings: MqttSettings
    source: str

    def __str__(self) -> str:
        return f"{self.settings.where} (from {self.source})"


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with all files of a local system."""
    return Path(environment.get("HALIMEDE_HOME") or DEFAULT_HOME).expanduser()


def find(option: str = "", environment: Mapping[str, str] = os.environ, *, credentials: str = "") -> BrokerAddress:
    """Return the broker to connect to; the options ``--broker`` and ``--credentials`` come first if they are set.

    Raises InvalidFieldError when the address or the credentials cannot be read.
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
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # the process exists, and belongs to another user
    return True


def _credentials(option: str, environment: Mapping[str, str]) -> Credentials | None:
    if option:
        return Credentials.at(option, "--credentials")
    folder = environment.get("HALIMEDE_CREDENTIALS")
    return Credentials.at(folder) if folder else None


def _read(source: str, text: str, credentials: Credentials | None) -> BrokerAddress:
    return BrokerAddress(MqttSettings.from_url(text, variable=source, credentials=credentials), source)
