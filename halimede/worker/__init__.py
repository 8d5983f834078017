"""The runtime of workers. It is part of the library, so that a user's script runs a worker in three lines.

```python
from halimede.worker import run_edge

class Small:
    def load(self, model_url): ...
    def predict(self, data): ...

run_edge(Small)
```
"""

from halimede.worker.main import run_cloud, run_edge

__all__ = ["run_cloud", "run_edge"]
