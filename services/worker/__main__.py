"""``python -m services.worker edge|cloud|member|joint|camera``. A camera needs no model runtime, so it imports none."""

import sys

if sys.argv[1:2] == ["camera"]:
    from services.worker.camera import main
else:
    from services.worker.app import main

main()
