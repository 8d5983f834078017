"""Configures the logging of a process, and removes secrets from what it logs.

A log event is a constant text with named fields. Each one is a line on standard error, for people on a terminal,
otherwise as JSON. The log records of libraries (standard logging) and uncaught exceptions have the same form. The id of
a frame is the field ``frame``. An event that cannot be written (a full disk) is dropped.
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

#: the text in the place of a secret
HIDDEN = "***"
#: least seconds between two log lines of one event of a ``RateLimitedLogger``
REPEAT_S = 10.0
#: names of fields whose values are never shown, except for numbers, booleans and None
SECRET_FIELD = re.compile(r"password|passwd|passphrase|token|secret|authorization|api_?key|private_?key", re.IGNORECASE)
#: secrets inside a text, and what replaces them: the user in a URL, ``password=...`` or ``"password": "..."``, and
#: the credentials of an HTTP header
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
#: depth of nested lists and mappings that are searched for secrets; deeper ones become ``...``
MOST_DEPTH = 4


def configure(level: str = "INFO", **bound: str) -> None:
    """Send all log events of the process to standard error.

    The environment variable ``HALIMEDE_LOG`` sets the form, ``json`` or ``console``; without it, a terminal gets
    ``console``. ``HALIMEDE_LOG_LEVEL`` sets the least level, such as ``DEBUG``; ``level`` is its default, and ``INFO``
    replaces an unknown one. Every event of every thread has the ``bound`` fields (node, service, worker). With such
    fields, warnings of Python and uncaught exceptions are logged as well.
    """
    form = os.environ.get("HALIMEDE_LOG") or ("console" if sys.stderr.isatty() else "json")
    level_name = os.environ.get("HALIMEDE_LOG_LEVEL", level).upper()
    threshold = logging.getLevelNamesMapping().get(level_name, logging.INFO)
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if form == "console"
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _ProcessFields(bound),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact_fields,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=_StandardError,
        cache_logger_on_first_use=False,
    )
    _forward_standard_logging(threshold)
    if bound:
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread


def redact_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Return the fields of an event without secrets. It is a processor of structlog, which gives three arguments."""
    return {key: _redact(key, value, 0) for key, value in event.items()}


def redact_text(text: str) -> str:
    """Return a text in which ``***`` replaces everything that looks like a secret (``SECRET_TEXTS``)."""
    for pattern, replacement in SECRET_TEXTS:
        text = pattern.sub(replacement, text)
    return text


def _redact(key: object, value: Any, depth: int) -> Any:
    """Return a field's value without secrets, as plain data; ``depth``: the number of values that contain it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(key, str) and SECRET_FIELD.search(key):
        return HIDDEN
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset) and depth >= MOST_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return {redact_text(str(k)): _redact(k, v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact("", v, depth + 1) for v in value]
    return redact_text(repr(value))


class _ProcessFields:
    """A processor of structlog that adds the process's fields to events of every thread, if they lack them."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = dict(fields)

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**self._fields, **event}


class _StandardError:
    """A logger of structlog that writes lines to ``sys.stderr``, as it is at the time of each line."""

    _lock = threading.Lock()

    def __init__(self, *_: object) -> None:
        """Accept and ignore the arguments that structlog passes to a logger's factory."""

    def msg(self, line: str) -> None:
        """Write one line. An error is ignored: there is no place to report it, and the service must continue."""
        with self._lock, contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    critical = debug = error = exception = fatal = info = log = warn = warning = msg


class _ForwardHandler(logging.Handler):
    """A handler of standard logging that logs a library's record as an event, with the logger's name as a field."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record. Arguments that do not fit its format raise nothing: its text is then logged without them."""
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


def _forward_standard_logging(threshold: int) -> None:
    """Log the records of libraries from ``threshold`` on; records below a warning only if that is ``DEBUG``."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _ForwardHandler)]:
        root.removeHandler(handler)
    root.addHandler(_ForwardHandler())
    root.setLevel(threshold if threshold <= logging.DEBUG else max(threshold, logging.WARNING))


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log an exception that ends the process, except for Ctrl-C (a ``sys.excepthook``)."""
    if issubclass(kind, KeyboardInterrupt):
        return
    structlog.get_logger().critical("uncaught exception", error=kind.__name__, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    """Log an exception that ends a thread (a ``threading.excepthook``)."""
    if args.exc_value is None or isinstance(args.exc_value, SystemExit):
        return
    structlog.get_logger().critical(
        "uncaught exception",
        error=args.exc_type.__name__,
        thread=args.thread.name if args.thread else "",
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )


class RateLimitedLogger:
    """Logs each event at most once in ten seconds, so that many bad samples do not become many log lines.

    The field ``unsaid`` is the number of equal events that were dropped since the last line. Use the logger only on a
    running event loop, whose clock it reads.
    """

    def __init__(self) -> None:
        #: by event: the loop's time from which it is logged again, and how often it was dropped since its last line
        self._due: dict[str, float] = {}
        self._dropped: dict[str, int] = {}

    def warning(self, event: str, **fields: object) -> None:
        """Log a warning; drop it, with its fields, if the same event was logged less than ten seconds ago."""
        now = asyncio.get_running_loop().time()
        if now < self._due.get(event, now):
            self._dropped[event] = self._dropped.get(event, 0) + 1
            return
        self._due[event] = now + REPEAT_S
        structlog.get_logger().warning(event, **fields, unsaid=self._dropped.pop(event, 0))
