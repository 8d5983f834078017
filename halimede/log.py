"""Log events: constant names with fields, formatted for people on a terminal, otherwise as JSON.

All output of a process has one form: its own log events, those of libraries (standard logging), and uncaught
exceptions. A field about one frame is named ``frame``. Secrets are removed, and an event that cannot be written (a full
disk) is dropped without further effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

HIDDEN = "***"
#: least seconds between two log lines of one event (``RateLimitedLogger``)
LIMIT_S = 10.0
#: fields whose values are never shown
SECRET_FIELD = re.compile(r"password|passwd|passphrase|token|secret|authorization|api_?key|private_?key", re.IGNORECASE)
#: secrets inside of a text: the user in a URL, ``password=...`` or ``"password": "..."``, an HTTP bearer
SECRET_TEXTS = (
    (re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@\"']+@"), rf"\1{HIDDEN}@"),
    (
        re.compile(
            r"((?:password|passwd|passphrase|token|secret|api[_-]?key)(?:=|[\"']\s*:\s*[\"']?))[^\s\"'&,;}]+",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
)
#: depth of nested values that are searched for secrets; deeper values are not shown
DEEPEST = 4


def configure(level: str = "INFO", **bound: str) -> None:
    """Configure all logging on standard error.

    ``HALIMEDE_LOG`` is ``json`` or ``console``, ``HALIMEDE_LOG_LEVEL`` a level; ``level`` is the default. Every event
    of every thread has the ``bound`` fields (node, service, worker); a process with such fields is a service, and its
    uncaught exceptions are logged as well.
    """
    form = os.environ.get("HALIMEDE_LOG") or ("console" if sys.stderr.isatty() else "json")
    wanted = os.environ.get("HALIMEDE_LOG_LEVEL", level).upper()
    threshold = logging.getLevelNamesMapping().get(wanted, logging.INFO)
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if form == "console"
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _Bound(bound),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact_fields,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=_Output,
        cache_logger_on_first_use=False,
    )
    _take_standard_logging(threshold)
    if bound:
        logging.captureWarnings(capture=True)
        sys.excepthook = _uncaught
        threading.excepthook = _uncaught_in_thread


def redact_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Remove secrets from an event (a processor of structlog)."""
    return {key: _hidden(key, value, 0) for key, value in event.items()}


def redact_text(text: str) -> str:
    """Return a text without possible secrets."""
    for pattern, instead in SECRET_TEXTS:
        text = pattern.sub(instead, text)
    return text


def _hidden(key: object, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(key, str) and SECRET_FIELD.search(key):
        return HIDDEN
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset) and depth >= DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return {redact_text(str(k)): _hidden(k, v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_hidden("", v, depth + 1) for v in value]
    return redact_text(repr(value))


class _Bound:
    """Adds the process's fields in every thread, unlike context variables. An event's own fields take precedence."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = dict(fields)

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**self._fields, **event}


class _Output:
    """Writes lines to the current standard error."""

    _lock = threading.Lock()

    def __init__(self, *_: object) -> None:
        """Accept and ignore the arguments that structlog passes to a logger's factory."""

    def msg(self, line: str) -> None:
        """Write one line. An error is ignored: there is no place to report it, and the service must continue."""
        with self._lock, contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    critical = debug = error = exception = fatal = info = log = warn = warning = msg


class _Forward(logging.Handler):
    """Converts a library's record to an event: its text is the event, its logger a field."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record. An error in it must not be raised in the library that logged it."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit the format
            text = str(record.msg)
        level = max(min(record.levelno // 10 * 10, logging.CRITICAL), logging.DEBUG)
        log = structlog.get_logger()
        if record.exc_info and record.exc_info[0]:
            log.log(level, text, logger=record.name, exc_info=record.exc_info)
        else:
            log.log(level, text, logger=record.name)


def _take_standard_logging(threshold: int) -> None:
    """Receive the log records of libraries; those below a warning only at level ``DEBUG``."""
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Forward)]:
        root.removeHandler(handler)
    root.addHandler(_Forward())
    root.setLevel(threshold if threshold <= logging.DEBUG else max(threshold, logging.WARNING))


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    structlog.get_logger().critical("uncaught exception", error=kind.__name__, exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or isinstance(args.exc_value, SystemExit):
        return
    structlog.get_logger().critical(
        "uncaught exception",
        error=args.exc_type.__name__,
        thread=args.thread.name if args.thread else "",
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )


class RateLimitedLogger:
    """Logs each event at most every ten seconds, with the number of dropped ones.

    So a stream of bad samples does not become a stream of log lines. The samples are counted elsewhere.
    """

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warning(self, event: str, **fields: object) -> None:
        """Log a warning, unless its event was logged recently."""
        now = asyncio.get_running_loop().time()
        if now < self._due.get(event, now):
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return
        self._due[event] = now + LIMIT_S
        structlog.get_logger().warning(event, **fields, unsaid=self._left_out.pop(event, 0))
