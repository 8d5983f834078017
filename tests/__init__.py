"""Tests show exceptions that were logged as our processes do: rich would take whole seconds to show some of them."""

from halimede.system.runtime import plain_log_lines

plain_log_lines()
