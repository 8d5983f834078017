"""``python -m services.worker edge|cloud``."""

from services.worker.app import main

main()
