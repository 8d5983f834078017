"""The applications: global manager, local controller, worker, and all of them on one machine. Not in the wheel."""

import sys

from halimede.system.runtime import own_process

# Python's word for a module of ours that it is about to run (`python -m services.lc`): tests and benches import others
if sys.argv[0] == "-m":
    own_process()
