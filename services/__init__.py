"""The applications: global manager, local controller, worker, and all of them on one machine. Not in the wheel."""

import sys

from halimede.system.runtime import own_process

# the value while Python loads a module for `python -m services.lc`; tests and benchmarks import others
if sys.argv[0] == "-m":
    own_process()
