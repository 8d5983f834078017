"""The tests. Exceptions that were logged are shown as our processes do: rich would take whole seconds for some of them.

Asserts of the modules that tests share say what they compared, as those of test modules do.
"""

import sys
from pathlib import Path

from halimede.system.runtime import plain_log_lines

plain_log_lines()
# programs of tests run without pytest
if pytest := sys.modules.get("pytest"):
    pytest.register_assert_rewrite(*(f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("[a-z]*")))
