"""Prints, writes or checks topics.md: ``python -m halimede.contract``."""

import sys

from halimede.contract.render import main

if __name__ == "__main__":
    sys.exit(main())
