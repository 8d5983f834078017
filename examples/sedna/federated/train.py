"""A training script as one writes it for Sedna: softmax regression of digits, on the samples of one node."""
# ruff: noqa: ANN001, ANN003, ANN201, ANN204, ANN205, ARG002  # as such scripts are

import os

import numpy as np
from sedna.common.config import BaseConfig
from sedna.core.federated_learning import FederatedLearning
from sedna.datasources import CSVDataParse


class Estimator:
    """A model whose weights are two arrays."""

    def __init__(self, **kwargs):
        self.weights = [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]

    def train(self, train_data, valid_data=None, epochs=5, learning_rate=0.5, **kwargs):
        """Train on all samples at a time."""
        weight, bias = (each.copy() for each in self.weights)
        samples, labels = train_data.x / 16, np.eye(10)[train_data.y.astype(int)]
        for _ in range(epochs):
            gradient = (self._probabilities(samples, weight, bias) - labels) / len(samples)
            weight -= learning_rate * (samples.T @ gradient)
            bias -= learning_rate * gradient.sum(axis=0)
        self.weights = [weight.astype(np.float32), bias.astype(np.float32)]
        return {"num_examples": len(samples)}

    def evaluate(self, data, **kwargs):
        answers = self._probabilities(data.x / 16, *self.weights).argmax(axis=1)
        return {"accuracy": float((answers == data.y.astype(int)).mean())}

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights

    @staticmethod
    def _probabilities(samples, weight, bias):
        scores = np.exp(samples @ weight + bias)
        return scores / scores.sum(axis=1, keepdims=True)


def main():
    train_data = CSVDataParse(data_type="train")
    train_data.parse(BaseConfig.train_dataset_url, label="label")
    valid_data = CSVDataParse(data_type="test")
    valid_data.parse(BaseConfig.test_dataset_url, label="label")
    job = FederatedLearning(estimator=Estimator, aggregation="FedAvg")
    metrics = job.train(train_data=train_data, valid_data=valid_data, epochs=10)
    np.savez(os.environ["OUTPUT"], *job.estimator.get_weights())
    print(metrics)


if __name__ == "__main__":
    main()
