"""Sedna's logger: the standard library's, so that its lines come out with those of the worker."""

import logging

__all__ = ("LOGGER",)

LOGGER = logging.getLogger("sedna")
# of libraries only warnings come out; this is the script itself
LOGGER.setLevel(logging.INFO)
