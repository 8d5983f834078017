"""Where the broker is: the option, the environment, the run file of a local system, the usual port, in this order.

What it is shown is found likewise; the run file's credentials go with the run file's broker alone.
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

DEFAULT_HOST = "localhost"
RUN_FILE = "run.json"
START_IT = "start a system here with `make up` (or `python -m services`), or name a broker with --broker host:port"


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """How to reach the broker, and where that was found."""

    settings: MqttSettings
    source: str

    def __str__(self) -> str:
        return f"{self.settings.where} (from {self.source})"


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder below which a local system keeps everything."""
    return Path(environment.get("HALIMEDE_HOME") or "~/.local/state/halimede").expanduser()


def find(option: str = "", environment: Mapping[str, str] = os.environ, *, credentials: str = "") -> BrokerAddress:
    """Return the broker to speak to, by the options ``--broker`` and ``--credentials`` where they are given.

    Raises InvalidFieldError when what names it, or what it is to be shown, cannot be read.
    """
    shown = _shown(credentials, environment)
    if option:
        return _read("--broker", option, shown)
    if from_environment := environment.get("HALIMEDE_BROKER"):
        return _read("HALIMEDE_BROKER", from_environment, shown)
    file = home(environment) / RUN_FILE
    try:
        run = json.loads(file.read_bytes())
        if "pid" in run and not _lives(int(run["pid"])):
            # its port may be another system's by now
            raise HalimedeError(f"the system in {file.parent} was killed and runs no more: {START_IT}")
        theirs = Credentials.at(run["credentials"], str(file)) if "credentials" in run else None
        return _read(str(file), run["broker"], shown or theirs)
    except FileNotFoundError:
        return _read("no --broker, HALIMEDE_BROKER or run file, so the usual place", DEFAULT_HOST, shown)
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        raise InvalidFieldError(str(file), str(error), "remove the file, or give --broker host:port") from error


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True


def _shown(option: str, environment: Mapping[str, str]) -> Credentials | None:
    if option:
        return Credentials.at(option, "--credentials")
    folder = environment.get("HALIMEDE_CREDENTIALS")
    return Credentials.at(folder) if folder else None


def _read(source: str, text: str, credentials: Credentials | None) -> BrokerAddress:
    return BrokerAddress(MqttSettings.from_url(text, variable=source, credentials=credentials), source)
