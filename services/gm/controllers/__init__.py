"""The controllers of all kinds; ``plan`` selects one by the resource's plural."""

from services.gm.controllers import dataset, inferencemodel, model, training_jobs, trainingmodel, worker_service
from services.gm.controllers.base import CONTROLLERS, Controller, Observed, plan

__all__ = [
    "CONTROLLERS",
    "Controller",
    "Observed",
    "dataset",
    "inferencemodel",
    "model",
    "plan",
    "training_jobs",
    "trainingmodel",
    "worker_service",
]
