"""How a user's script, or ``services/worker``, becomes a worker: blocking entry points around ``serve``.

What ends the process is decided here: signals, the exit code, and the one line that a user sees after a mistake.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace

import structlog

from halimede import log as logging
from halimede.bus import Announce, Bus
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import InvalidFieldError
from halimede.worker.serve import Connect, WorkerError, serve
from halimede.worker.settings import Role, Settings, read

log = structlog.get_logger()

#: exit code of a user's mistake; whoever supervises need not try again before something changes
MISTAKE = 2
#: our threads' names, and how many seconds an idle one has to end
THREADS = ("model_", "decode_")
STUCK_S = 1.0


def run_edge(estimator: object | None = None) -> None:
    """Run an edge worker until SIGTERM or SIGINT.

    ``estimator`` is a class or an instance with ``predict`` and, where it has something to load, ``load``; without
    one the model file is ONNX. Everything else comes from the environment (docs/architecture.md). Exits with code 2
    after a mistake of the user's, which it prints in one line.
    """
    _exit(main("edge", estimator))


def run_cloud(estimator: object | None = None) -> None:
    """Run a cloud worker until SIGTERM or SIGINT; as ``run_edge``."""
    _exit(main("cloud", estimator))


def main(role: Role, estimator: object | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run a worker and return its exit code."""
    try:
        settings = read(role, environ, own_estimator=estimator is not None)
        broker = MqttSettings.from_url(settings.broker, credentials=settings.credentials)
        logging.configure(
            node=settings.node, service=f"{settings.namespace}/{settings.service}", worker=settings.worker
        )
        asyncio.run(_run(settings, connect_to(broker), estimator))
    except (InvalidFieldError, WorkerError) as error:
        reason = f"{error.reason}: " if isinstance(error, WorkerError) else ""
        print(f"halimede {role} worker: {reason}{error}", file=sys.stderr)
        return MISTAKE
    return 0


def connect_to(broker: MqttSettings) -> Connect:
    """Return what makes connections to a broker."""

    def connect(client_id: str, *, announce: Announce | None = None, receive_maximum: int | None = None) -> Bus:
        chosen = replace(broker, receive_maximum=receive_maximum) if receive_maximum else broker
        return MqttBus(client_id, chosen, announce)

    return connect


async def _run(settings: Settings, connect: Connect, estimator: object | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(settings, connect, stop, estimator)


def _exit(code: int) -> None:
    """Leave with a code; return on 0, so that a script may go on, unless a model hangs: Python would wait for it."""
    for thread in threading.enumerate():
        if thread.name.startswith(THREADS):
            thread.join(STUCK_S)
            if thread.is_alive():
                log.warning("the model did not return; leaving without it", thread=thread.name)
                os._exit(code)
    if code:
        raise SystemExit(code)
