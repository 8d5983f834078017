"""Entry points of workers: blocking functions for a user's script or ``halimede worker``.

This module also handles the end of the process: signals, the exit code, and the one line about a user's mistake.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import structlog

from halimede import log as logging
from halimede.bus import Announce, Bus
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.port import NO_NODE
from halimede.errors import InvalidFieldError, describe_exception, hide_secrets
from halimede.system import termination_message
from halimede.system.runtime import keep_freed_memory, rare_collections, stop_on_signal
from halimede.worker.bootstrap import serve
from halimede.worker.errors import WorkerError
from halimede.worker.joint_inference import joint_inference
from halimede.worker.roles import BusFactory, RoleJob
from halimede.worker.settings import Role, WorkerSettings, read

log = structlog.get_logger()

#: exit code of a user's mistake: a supervisor need not restart the process before a setting changes
MISTAKE = 2
#: prefixes of the names of the executor threads (``ModelThread``) whose calls may hang and would keep Python from
#: ending. ``upload_`` is not among them: its calls only encode pictures in memory
THREAD_PREFIXES = ("model_", "decode_", "joint_", "kept_")
#: seconds that an idle thread has to end
THREAD_END_S = 1.0


def run_edge(estimator: object | None = None) -> None:
    """Run an edge worker until SIGTERM or SIGINT.

    ``estimator`` is a class or an instance with ``predict`` and, if it loads something, ``load``. Without one, the
    environment names the estimator or the model file (ONNX unless MODEL_SPEC has another format). All other settings
    come from the environment (docs/reference/environment.md). After a user's mistake it prints one line and exits with
    code 2.
    """
    leave(main("edge", estimator))


def run_cloud(estimator: object | None = None) -> None:
    """Run a cloud worker until SIGTERM or SIGINT.

    ``estimator`` is a class or an instance with ``predict`` and, if it loads something, ``load``. Without one, the
    environment names the estimator or the model file (ONNX unless MODEL_SPEC has another format). All other settings
    come from the environment (docs/reference/environment.md). After a user's mistake it prints one line and exits with
    code 2.
    """
    leave(main("cloud", estimator))


#: returns the settings in an environment and the job; the second argument is whether the caller brings an estimator.
#: It raises InvalidFieldError
Prepare = Callable[[Mapping[str, str], bool], tuple[WorkerSettings, RoleJob]]


def main(
    program: str,
    estimator: object | None = None,
    environ: Mapping[str, str] = os.environ,
    prepare: Prepare | None = None,
) -> int:
    """Run a worker until SIGTERM or SIGINT; return its exit code: 0, or MISTAKE after a user's mistake.

    A mistake is printed to stderr, and written to the container's termination message.

    Args:
        program: the kind of worker, for messages; without ``prepare``: ``edge`` or ``cloud``.
        estimator: a user's class or object that replaces the model; None: the environment names estimator or model.
        environ: the environment.
        prepare: reads the settings; None: those of joint inference.

    Raises any other error, after it was written to the termination message.

    """
    # OpenCV would resize with a thread for each core, which the model's threads need
    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
    keep_freed_memory(environ)
    try:
        settings, job = (prepare or partial(_joint_inference, program))(environ, estimator is not None)
        broker = MqttSettings.from_url(settings.broker, credentials=settings.credentials)
        service = f"{settings.namespace}/{settings.service}"
        logging.configure(node=settings.node, service=service, worker=settings.worker)
        with rare_collections():
            asyncio.run(_run(settings, connect_to(broker, settings.node), estimator, job))
    except (InvalidFieldError, WorkerError) as error:
        reason = f"{error.reason}: " if isinstance(error, WorkerError) else ""
        print(f"halimede {program} worker: {reason}{error}", file=sys.stderr)
        termination_message.write(f"{reason}{error}")
        return MISTAKE
    except Exception as error:
        termination_message.write(hide_secrets(describe_exception(error)))
        raise
    return 0


def _joint_inference(program: str, environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: FBT001
    """Return the settings and the job of a worker of joint inference. Raises InvalidFieldError."""
    role: Role = "edge" if program == "edge" else "cloud"
    settings = read(role, environ, own_estimator=own_estimator)
    return settings, joint_inference(settings)


def connect_to(broker: MqttSettings, node: str = NO_NODE) -> BusFactory:
    """Return a function that makes connections to a broker, for clients on ``node``; NO_NODE: on none."""

    def connect(
        client_id: str, *, announce: Announce | None = None, receive_maximum: int | None = None, session_s: int = 0
    ) -> Bus:
        settings = replace(broker, receive_maximum=receive_maximum or broker.receive_maximum, session_s=session_s)
        bus = MqttBus(client_id, settings, announce)
        bus.node = node
        return bus

    return connect


async def _run(settings: WorkerSettings, connect: BusFactory, estimator: object | None, job: RoleJob) -> None:
    """Run the worker until a signal."""
    await serve(settings, connect, stop_on_signal(), estimator, job)


def leave(code: int) -> None:
    """Exit with a code. On 0 return, so that a script may continue, unless a hanging model keeps Python from ending.

    Each thread with one of THREAD_PREFIXES has THREAD_END_S to end; after that the process ends at once.
    """
    for thread in threading.enumerate():
        if thread.name.startswith(THREAD_PREFIXES):
            thread.join(THREAD_END_S)
            if thread.is_alive():
                log.warning("model call abandoned at exit", thread=thread.name)
                os._exit(code)
    if code:
        raise SystemExit(code)
