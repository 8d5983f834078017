"""``python -m halimede.serving``: what ``halimede serve`` runs, for controllers and images without the command line."""

from halimede.system.runtime import own_process

own_process()

from halimede.serving.server import main  # noqa: E402  # once that is done

raise SystemExit(main())
