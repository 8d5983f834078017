"""``python -m halimede.serving.router``: runs ``halimede router``."""

from halimede.system.runtime import own_process

own_process()

from halimede.serving.router.server import main  # noqa: E402  # import after ``own_process``

raise SystemExit(main())
