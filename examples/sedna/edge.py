"""An edge script as one writes it for Sedna: a small model of the digits, asked picture by picture."""
# ruff: noqa: ANN001, ANN003, ANN201, ARG002, B905, PTH123  # as such scripts are

import json
import sys
import time

import onnxruntime
from sedna.common.config import Context
from sedna.common.file_ops import FileOps
from sedna.common.log import LOGGER
from sedna.core.joint_inference import JointInference
from sklearn.datasets import load_digits

OUTPUT = Context.get_parameters("all_examples_inference_output", "/tmp/digits/output")
COUNT = int(Context.get_parameters("pictures", 100))
PAUSE = float(Context.get_parameters("pause_s", 0))


class Estimator:
    """The small model."""

    def load(self, model_url=""):
        self.session = onnxruntime.InferenceSession(model_url)

    def predict(self, data, **kwargs):
        """Return the probabilities of the ten digits, for one row of 64 values."""
        return self.session.run(["probabilities"], {"X": data[None]})[0][0].tolist()


def main():
    FileOps.clean_folder([OUTPUT], clean=True)
    mining = JointInference.get_hem_algorithm_from_config()
    service = JointInference(estimator=Estimator, hard_example_mining=mining)
    pictures, truths = load_digits(return_X_y=True)
    counts = {"pictures": 0, "hard": 0, "cloud": 0, "right": 0, "edge_right": 0}
    for picture, truth in zip(pictures[-COUNT:], truths[-COUNT:]):
        is_hard, final, edge_result, cloud_result = service.inference((picture / 16).astype("float32"))
        counts["pictures"] += 1
        counts["hard"] += is_hard
        counts["cloud"] += cloud_result is not None
        counts["right"] += bool(final.index(max(final)) == truth)
        counts["edge_right"] += bool(edge_result.index(max(edge_result)) == truth)
        time.sleep(PAUSE)
    LOGGER.info("all pictures are answered: %s", counts)
    with open(f"{OUTPUT}/counts.json", "w") as file:
        json.dump(counts, file)
    while "--stay" in sys.argv:
        time.sleep(1)


if __name__ == "__main__":
    main()
