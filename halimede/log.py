"""Log lines: constant event names with fields, for people on a terminal, as JSON everywhere else."""

from __future__ import annotations

import logging
import os
import sys

import structlog


def configure(level: str = "INFO", **bound: str) -> None:
    """Set up structlog on standard error. ``HALIMEDE_LOG`` is ``json`` or ``console``; ``HALIMEDE_LOG_LEVEL`` a level.

    ``level`` holds where the environment says nothing. ``bound`` fields (node, service, worker) stand on every line.
    """
    form = os.environ.get("HALIMEDE_LOG") or ("console" if sys.stderr.isatty() else "json")
    wanted = os.environ.get("HALIMEDE_LOG_LEVEL", level).upper()
    threshold = logging.getLevelNamesMapping().get(wanted, logging.INFO)
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer() if form == "console" else structlog.processors.JSONRenderer()
    )
    processors: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form != "console":
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
