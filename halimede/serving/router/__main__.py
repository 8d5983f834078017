"""``python -m halimede.serving.router``: what ``halimede router`` runs."""

from halimede.serving.router.app import main

raise SystemExit(main())
