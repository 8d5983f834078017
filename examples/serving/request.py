"""A picture as a request of the inference protocol: ``python examples/serving/request.py PICTURE > request.json``."""

import base64
import json
import sys
from pathlib import Path

picture = base64.b64encode(Path(sys.argv[1]).read_bytes()).decode()
tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [picture]}
json.dump({"inputs": [tensor]}, sys.stdout)
