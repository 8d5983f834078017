"""``python -m halimede.serving``: what ``halimede serve`` runs, for controllers and images without the command line."""

from halimede.serving.app import main

raise SystemExit(main())
