"""``python -m halimede.serving.router``: what ``halimede router`` runs."""

from halimede.system.runtime import own_process

own_process()

from halimede.serving.router.server import main  # noqa: E402  # once that is done

raise SystemExit(main())
