"""Prints topics.md, or writes or checks all documents of the contract: ``python -m halimede.contract``."""

import sys

from halimede.contract.render import main

if __name__ == "__main__":
    sys.exit(main())
