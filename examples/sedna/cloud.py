"""A cloud script as one writes it for Sedna: the big model of the digits."""
# ruff: noqa: ANN001, ANN003, ANN201, ARG002  # as such scripts are

import numpy as np
import onnxruntime
from sedna.core.joint_inference import BigModelService


class Estimator:
    """The big model."""

    def load(self, model_url=""):
        self.session = onnxruntime.InferenceSession(model_url)

    def predict(self, data, **kwargs):
        """Return the probabilities of the ten digits, for one row of 64 values."""
        data = np.array(data, np.float32)
        return self.session.run(["probabilities"], {"X": data[None]})[0][0].tolist()


if __name__ == "__main__":
    BigModelService(estimator=Estimator).start()
