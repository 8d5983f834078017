"""The cloud worker as a user's own script: any class with load and predict."""

import onnxruntime

from halimede.worker import run_cloud


class Big:
    """The big model, loaded and asked by hand."""

    def load(self, model_url: str) -> None:
        """``model_url`` is the local path of the Model that the service names."""
        self.session = onnxruntime.InferenceSession(model_url)

    def predict(self, sample):  # noqa: ANN001, ANN201
        """``sample`` is a frame after the Model's own pre-processing: here 64 values. Returns probabilities."""
        return self.session.run(["probabilities"], {"X": sample[None]})[0][0]


if __name__ == "__main__":
    run_cloud(Big)
