"""Real digits and two ONNX models of them, for tests of whole workers; and users' cloud estimators that misbehave.

The estimators are scripts, as the neptune form runs them. They are steered by what a picture holds: its first pixel.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

#: every hard sample goes up, so that a test knows how many do
ALL_HARD = {"HEM_NAME": "CloudOnly", "HEM_PARAMETERS": ""}
#: pixel values that make an estimator of ``BREAKABLE`` fail, or end its process
RAISES, ABORTS = 241, 242


@dataclass(frozen=True, slots=True)
class Digits:
    """Paths of the small and the big model, and pictures (PNG, 8 x 8) that neither was trained on."""

    small: Path
    big: Path
    pictures: list[bytes]


def picture(value: int, side: int = 8) -> bytes:
    """Return a PNG of one grey value."""
    out = io.BytesIO()
    Image.fromarray(np.full((side, side), value, np.uint8)).save(out, format="PNG")
    return out.getvalue()


def slow(seconds: float, label: str = "slow", role: str = "cloud") -> str:
    """Return a worker's script that takes so long for each sample, and gets it as it came: nothing makes it smaller."""
    return f"""
        import time
        from halimede.worker import run_{role}

        class Big:
            def predict(self, data):
                time.sleep({seconds})
                return {{"label": "{label}", "probabilities": [0.9, 0.1]}}

        run_{role}(Big)
    """


def noting(seconds: float, notes: Path) -> str:
    """Return a cloud worker's script that notes ``begin <size>`` of each batch.

    A single sample takes it 50 ms, so that it gets several at a time; for those it takes ``seconds``.
    """
    return f"""
        import time
        from halimede.worker import run_cloud

        def note(text):
            with open({str(notes)!r}, "a") as file:
                file.write(text + "\\n")

        class Big:
            def predict(self, data):
                return self.predict_batch([data])[0]

            def predict_batch(self, batch):
                note(f"begin {{len(batch)}}")
                time.sleep({seconds} if len(batch) > 1 else 0.05)
                return [{{"label": "noted", "probabilities": [0.9, 0.1]}}] * len(batch)

        run_cloud(Big)
    """


BREAKABLE = f"""
    import os, sys, time
    import numpy as np
    from halimede.worker import run_cloud

    class Big:
        def load(self, model_url):
            self.calls = os.path.join(os.environ["HALIMEDE_STATE"], "calls")

        def predict(self, data):
            return self.predict_batch([data])[0]

        def predict_batch(self, batch):
            values = [int(np.asarray(data).flat[0]) for data in batch]
            with open(self.calls, "a") as file:
                file.write(" ".join(map(str, values)) + "\\n")
            time.sleep(0.02)
            if {ABORTS} in values:
                os.abort()
            if {RAISES} in values:
                raise RuntimeError("this picture breaks the model")
            return [{{"label": "big", "probabilities": [0.9, 0.1]}}] * len(batch)

    run_cloud(Big)
"""
