"""``python -m halimede.serving``: runs ``halimede serve``, for controllers and images without the command line."""

from halimede.system.runtime import own_process

own_process()

from halimede.serving.server import main  # noqa: E402  # import after ``own_process``

raise SystemExit(main())
