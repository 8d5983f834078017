"""The controllers: the rules of each kind of resource. ``plan`` applies those of a resource's kind."""

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
