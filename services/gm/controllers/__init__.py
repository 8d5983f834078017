"""The controllers of all kinds; ``plan`` finds the right one by the plural."""

from services.gm.controllers import inferencemodel, model, worker_service
from services.gm.controllers.base import CONTROLLERS, Controller, Observed, plan

__all__ = [
    "CONTROLLERS",
    "Controller",
    "Observed",
    "inferencemodel",
    "model",
    "plan",
    "worker_service",
]
