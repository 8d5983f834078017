"""Sedna's logger ``LOGGER``: the standard library's, so that its lines appear with those of the worker."""

import logging

__all__ = ("LOGGER",)

LOGGER = logging.getLogger("sedna")
# libraries only log warnings; this is the script itself
LOGGER.setLevel(logging.INFO)
